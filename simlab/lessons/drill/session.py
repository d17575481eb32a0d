"""A session of the drill: which questions come, in which order, and what is kept of the answers.

Items come back after longer and longer times as they are answered rightly (a Leitner system: 0, 1,
3, 7, 16, 35 days), and at once after a wrong answer. A session is kept after each answer, so it goes
on where it was left.
"""

from collections.abc import Mapping
from datetime import date, timedelta
from random import Random
from typing import Any, TypedDict

from simlab.errors import InputError, whole
from simlab.lessons import progress
from simlab.lessons.drill.items import Item, Posed, items, pose
from simlab.lessons.prediction import Value

DAYS = (0, 1, 3, 7, 16, 35)
"""After how many days an item comes back, by the number of right answers in a row."""

MOST = 1000
"""The most questions of one drill."""


class Answered(TypedDict):
    """One question of a session, and how it was answered."""

    item: tuple[str, str]
    right: bool
    given: dict[str, Value]


class Report(TypedDict):
    """A session as it went."""

    questions: int
    answered: int
    right: int
    results: list[Answered]


class Session:
    """`count` questions, drawn with `seed`, of those items whose question is in `only` (None: all).

    Raises `InputError` for an id that nothing is asked about, and for a count below 1 or above `MOST`.
    """

    def __init__(
        self, count: int, seed: str, only: list[str] | None = None, *, today: date | None = None
    ) -> None:
        if not 1 <= count <= MOST:
            raise InputError(f"a drill of {count} questions: give 1 to {MOST}")
        self.today = today or date.today()
        known = items()
        chosen = [item for item in known if only is None or item.name in only]
        missing = {*(only or ())} - {item.name for item in chosen}
        if missing:
            asked = sorted({item.name for item in known})
            raise InputError(
                f"nothing is asked about {', '.join(sorted(missing))}; there are {', '.join(asked)}"
            )
        self.state: dict[str, Any] = {
            "seed": seed,
            "items": self._drawn(chosen, count, Random(f"session {seed}")),
            "results": [],
        }

    @classmethod
    def kept(cls, seed: str | None = None, *, today: date | None = None) -> "Session | None":
        """The session that was left before its end, if it has this `seed` (None: any); else None."""
        state = progress.load()["drill"].get("session")
        if not _is_state(state) or len(state["results"]) >= len(state["items"]):
            return None
        if seed not in (None, state["seed"]):
            return None
        if not {Item(*item) for item in state["items"]} <= {*items()}:  # one that is gone
            return None
        session = cls.__new__(cls)
        session.state, session.today = state, today or date.today()
        return session

    @property
    def count(self) -> int:
        """The number of questions."""
        return len(self.state["items"])

    @property
    def at(self) -> int:
        """The number of questions that are answered."""
        return len(self.state["results"])

    @property
    def right(self) -> int:
        """The number of questions that were answered rightly."""
        return sum(result["right"] for result in self.state["results"])

    def question(self) -> Posed | None:
        """The question to answer now; None at the end."""
        if self.at == self.count:
            return None
        return pose(Item(*self.state["items"][self.at]), f"{self.state['seed']} {self.at}")

    def answer(self, texts: Mapping[str, str]) -> tuple[bool, list[str]]:
        """Take an answer, {field: text}: whether it is right, and what is said about it.

        `InputError`, with nothing kept, for a text that is no value of its field.
        """
        asked = self.question()
        if asked is None:
            raise InputError("this drill is at its end")
        given = asked.read(texts)
        right = asked.right(given)
        self._keep(asked.item, right, given)
        return right, asked.said(given)

    def report(self) -> Report:
        """What was asked, and how it was answered."""
        return {
            "questions": self.count,
            "answered": self.at,
            "right": self.right,
            "results": self.state["results"],
        }

    def _keep(self, item: Item, right: bool, given: Mapping[str, Value]) -> None:
        self.state["results"].append({"item": [*item], "right": right, "given": dict(given)})
        kept = progress.load()
        boxes = kept["drill"]["boxes"] = _boxes(kept)
        step = min(boxes.get(_key(item), {"step": 0})["step"] + 1, len(DAYS) - 1) if right else 0
        due = self.today + timedelta(days=DAYS[step])
        boxes[_key(item)] = {"step": step, "due": due.isoformat()}
        kept["drill"]["session"] = self.state
        progress.save(kept)

    def _drawn(self, chosen: list[Item], count: int, random: Random) -> list[list[str]]:
        """Items that are due first, then new ones, then the others; an item can come twice when
        there are fewer than asked for."""
        boxes = _boxes(progress.load())
        due: list[Item] = []
        new: list[Item] = []
        later: list[Item] = []
        for item in random.sample(chosen, len(chosen)):
            box = boxes.get(_key(item))
            if not box:
                new.append(item)
            elif box["due"] <= self.today.isoformat():
                due.append(item)
            else:
                later.append(item)
        order = [*due, *_mixed(new), *later]
        return [[*order[at % len(order)]] for at in range(count)] if order else []


def _is_state(state: Any) -> bool:
    """Whether a part of the file of the progress is a session."""
    if not isinstance(state, dict) or {*state} != {"seed", "items", "results"}:
        return False
    pairs, results = state["items"], state["results"]
    return (
        isinstance(pairs, list)
        and isinstance(results, list)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
        and all(isinstance(text, str) for pair in pairs for text in pair)
        and all(isinstance(one, dict) and isinstance(one.get("right"), bool) for one in results)
    )


def _boxes(kept: Mapping[str, Any]) -> dict[str, Any]:
    """{item: {step, due}} of the file of the progress; what is no box is left out."""
    boxes = kept["drill"].get("boxes")
    return {
        name: box
        for name, box in (boxes.items() if isinstance(boxes, dict) else ())
        if isinstance(box, dict) and isinstance(box.get("due"), str) and whole(box.get("step"), 0)
    }


def _key(item: Item) -> str:
    """The item's name in the file of the progress."""
    return " ".join(item)


def _mixed(new: list[Item]) -> list[Item]:
    """New items in turn by kind, so that a session is not all of one."""
    kinds: dict[str, list[Item]] = {}
    for item in new:
        kinds.setdefault(item.kind, []).append(item)
    longest = max(map(len, kinds.values()), default=0)
    return [these[at] for at in range(longest) for these in kinds.values() if at < len(these)]
