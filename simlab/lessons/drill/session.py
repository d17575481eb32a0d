"""A session of the drill: which questions come, in which order, and what is kept of the answers.

Items come back after longer and longer times as they are answered rightly (a Leitner system: 0, 1,
3, 7, 16, 35 days), and at once after a wrong answer. A session is kept after each answer, so it goes
on where it was left. The parts of a whiteboard case or of a chain come one after the other; a chain ends
at the first question that the learner does not hold. An interview asks nothing twice, goes through many
subjects, and comes back to a subject in which an answer was wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from random import Random
from time import monotonic
from typing import Any, TypedDict

from simlab.errors import InputError, whole
from simlab.lessons import progress
from simlab.lessons.drill import rounds
from simlab.lessons.drill.advice import LEAST, SLOW_S, Advice, advice
from simlab.lessons.drill.items import KINDS, SHORT, items, pose
from simlab.lessons.drill.posed import Item, Posed
from simlab.lessons.prediction import Value
from simlab.lessons.words import word

DAYS = (0, 1, 3, 7, 16, 35)
"""After how many days an item comes back, by the number of right answers in a row."""

MOST = 1000
"""The most questions of one drill."""
INTERVIEW_MIN = 45
ORDER = (
    "aloud",
    "exercise",
    "chain",
    "artefact",
    "board",
    "chain",
    "case",
    "exercise",
    "aloud",
    "chain",
)
"""The kinds of an interview's items, in their order: so many take about so long."""
MORE = ("artefact", "exercise", "chain", "aloud", "case") * 8
"""What follows for somebody who is quicker, until the time is up."""


class Answered(TypedDict):
    """One question of a session, and how it was answered: with how many hints, and in how many seconds."""

    item: tuple[str, str]
    right: bool
    given: dict[str, Value]
    hints: int
    took_s: float


class Report(TypedDict):
    """A session as it went. advice: of an interview, else null."""

    questions: int
    answered: int
    right: int
    results: list[Answered]
    advice: Advice | None


class Session:
    """`count` items, drawn with `seed`, of those whose question is in `only` (None: all) and whose kind is
    in `kinds` (None: those of one question each, or with `only` all kinds but chains, which have the ids of
    other questions).

    clock: seconds, of which differences count. Raises `InputError` for an id that nothing is asked about,
    and for a count below 1 or above `MOST`.
    """

    def __init__(
        self,
        count: int,
        seed: str,
        only: list[str] | None = None,
        *,
        kinds: Sequence[str] | None = None,
        today: date | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if not 1 <= count <= MOST:
            raise InputError(f"a drill of {count} questions: give 1 to {MOST}")
        kinds = kinds or ([kind for kind in KINDS if kind != "chain"] if only else SHORT)
        known = items(kinds)
        chosen = [item for item in known if only is None or item.name in only]
        missing = {*(only or ())} - {item.name for item in chosen}
        if missing or not chosen:
            asked = sorted({item.name for item in known})
            raise InputError(
                f"nothing is asked about {', '.join(sorted(missing))}; there are {', '.join(asked)}"
                if asked
                else f"nothing of the kind {', '.join(kinds)} can be asked yet: predict in a lesson first"
            )
        self._begin(today, clock)
        drawn = self._drawn(chosen, count, Random(f"session {seed}"))
        self.state: dict[str, Any] = {
            "seed": seed,
            "items": [[*part] for item in drawn for part in rounds.parts(item)],
            "results": [],
        }

    def _begin(self, today: date | None, clock: Callable[[], float]) -> None:
        self.today, self._clock = today or date.today(), clock
        self._asked: tuple[int, float] = (
            -1,
            0.0,
        )  # the number of the question asked last, and when

    @classmethod
    def interview(
        cls, seed: str, *, today: date | None = None, clock: Callable[[], float] = monotonic
    ) -> "Session":
        """A session of `INTERVIEW_MIN` minutes, mixed: it ends when they are over."""
        session = cls.__new__(cls)
        session._begin(today, clock)
        drawn = {
            kind: session._drawn(items([kind]), MOST, Random(f"interview {kind} {seed}"))
            for kind in {*ORDER, *MORE}
        }
        chosen = rounds.varied((*ORDER, *MORE), drawn)
        asked = [[*part] for item in chosen for part in rounds.parts(item)]
        session.state = {"seed": seed, "items": asked, "results": [], "minutes": INTERVIEW_MIN}
        return session

    @classmethod
    def kept(
        cls,
        seed: str | None = None,
        *,
        today: date | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> "Session | None":
        """The session that was left before its end, if it has this `seed` (None: any); else None."""
        state = progress.load()["drill"].get("session")
        if not _is_state(state) or len(state["results"]) >= len(state["items"]):
            return None
        if seed not in (None, state["seed"]):
            return None
        left = {Item(*item) for item in state["items"]}
        there = {part for item in items(KINDS) for part in rounds.parts(item)}
        if not left <= there:  # one that is gone
            return None
        session = cls.__new__(cls)
        session._begin(today, clock)
        session.state = state
        return None if session.left_min == 0 else session

    @property
    def count(self) -> int:
        """The number of questions, each part of a case or a chain as one."""
        return len(self.state["items"])

    @property
    def at(self) -> int:
        """The number of questions that are answered."""
        return len(self.state["results"])

    def place(self, asked: int) -> tuple[int, int]:
        """(how many questions have begun with the first `asked`, of how many), a case or a chain as one."""
        items = [Item(*each) for each in self.state["items"]]
        begins = [rounds.parts(rounds.whole(each))[0] == each for each in items]
        return sum(begins[:asked]), sum(begins)

    @property
    def right(self) -> int:
        """The number of questions that were answered rightly."""
        return sum(result["right"] for result in self.state["results"])

    @property
    def left_min(self) -> float | None:
        """The minutes that are left of an interview; None of a drill, which has no end in time."""
        minutes = self.state.get("minutes")
        if minutes is None:
            return None
        return max(0.0, minutes - sum(one.get("took_s", 0) for one in self.state["results"]) / 60)

    @property
    def is_over(self) -> bool:
        """Whether all is answered, or the time is up."""
        return self.at == self.count or self.left_min == 0

    def question(self) -> Posed | None:
        """The question to answer now; None at the end."""
        if self.is_over:
            return None
        if self._asked[0] != self.at:
            self._asked = self.at, self._clock()
        item = Item(*self.state["items"][self.at])
        first = self.at - rounds.parts(rounds.whole(item)).index(item)
        return pose(item, f"{self.state['seed']} {first}")

    def answer(self, texts: Mapping[str, str], hints: int = 0) -> tuple[bool, list[str]]:
        """Take an answer, {field: text}, which was given after so many hints: whether it is right, and what
        is said about it.

        `InputError`, with nothing kept, for a text that is no value of its field.
        """
        asked = self.question()
        if asked is None:
            raise InputError("this drill is at its end")
        given = asked.read(texts)
        right = asked.right(given)
        took_s = self._clock() - self._asked[1]
        self._keep(
            {
                "item": (asked.item.kind, asked.item.name),
                "right": right,
                "given": given,
                "hints": hints,
                "took_s": round(took_s, 1),
            }
        )
        return right, [*asked.said(given), *self._chain_said(asked.item)]

    def _chain_said(self, item: Item) -> list[str]:
        """At the end of a chain, how far it went."""
        chain = rounds.parts(rounds.whole(item))
        is_last = item == chain[-1]
        if item.kind != "chain" or not (is_last or not self.state["results"][-1]["right"]):
            return []
        held = chain.index(item) + self.state["results"][-1]["right"]
        return [word("drill.chain_held", held=held, links=len(chain))]

    def report(self) -> Report:
        """What was asked, and how it was answered."""
        return {
            "questions": self.count,
            "answered": self.at,
            "right": self.right,
            "results": self.state["results"],
            "advice": self.advice(),
        }

    def advice(self) -> Advice | None:
        """What an interview showed; None of a drill."""
        if self.left_min is None:
            return None
        planned = [Item(*item) for item in self.state["items"]]
        return advice(self.state["results"], planned if self.left_min == 0 else [])

    def head(self) -> str:
        """Which question it is, and of how many, or how much time is left."""
        if self.left_min is None:
            asked = [Item(*each) for each in self.state["items"]]
            parts = rounds.parts(rounds.whole(asked[self.at]))
            number, count = self.place(self.at + 1)
            part = parts.index(asked[self.at]) + 1
            key = "drill.intro_part" if len(parts) > 1 else "drill.intro"
            return word(key, number=number, count=count, part=part)
        return word("drill.interview", number=self.at + 1, left=f"{self.left_min:.0f}")

    def ended(self) -> str:
        """How many answers were right, and how a session that was stopped goes on."""
        how = "done" if self.is_over else "stopped" if self.at else "stopped_at_once"
        left = self.left_min
        if how == "stopped" and left is not None:
            how = "interview_stopped"
        begun, count = self.place(self.at)
        told: dict[str, Any] = {
            "answered": begun if how == "stopped" else self.at,
            "right": self.right,
            "left": f"{left or 0:.0f}",
        }
        return word(f"drill.{how}", count=count if how == "stopped" else self.at, **told)

    def _keep(self, answered: Answered) -> None:
        item, right = Item(*answered["item"]), answered["right"]
        self.state["results"].append({**answered, "item": [*item]})
        if item.kind == "chain" and not right:
            self._end_chain(rounds.whole(item))
        if self.left_min is not None and not right:
            self._come_back(item)
        kept = progress.load()
        boxes = kept["drill"]["boxes"] = _boxes(kept)
        step = min(boxes.get(_key(item), {"step": 0})["step"] + 1, len(DAYS) - 1) if right else 0
        due = self.today + timedelta(days=DAYS[step])
        boxes[_key(item)] = {"step": step, "due": due.isoformat()}
        kept["drill"]["session"] = self.state
        progress.save(kept)

    def _end_chain(self, chain: Item) -> None:
        """Leave out the questions that press on an answer which the learner did not have."""
        while self.at < self.count and rounds.whole(Item(*self.state["items"][self.at])) == chain:
            del self.state["items"][self.at]

    def _come_back(self, item: Item) -> None:
        """Ask about a subject again, until enough answers about it tell a gap from bad luck."""
        subjects = [rounds.subject(Item(*one["item"])) for one in self.state["results"]]
        if subjects.count(rounds.subject(item)) <= LEAST:
            left = [Item(*part) for part in self.state["items"][self.at :]]
            self.state["items"][self.at :] = [[*part] for part in rounds.forward(item, left)]

    def _drawn(self, chosen: list[Item], count: int, random: Random) -> list[Item]:
        """Items that are due first, then new ones, then the others. An item of one question can come
        twice when there are fewer than asked for."""
        boxes = _boxes(progress.load())
        due: list[Item] = []
        new: list[Item] = []
        later: list[Item] = []
        for item in random.sample(chosen, len(chosen)):
            dues = [boxes[key]["due"] for key in map(_key, rounds.parts(item)) if key in boxes]
            if not dues:
                new.append(item)
            elif min(dues) <= self.today.isoformat():
                due.append(item)
            else:
                later.append(item)
        order = [*due, *_mixed(new), *later]
        again = [item for item in order if item.kind not in rounds.KINDS]
        while again and len(order) < count:
            order += again
        return order[:count]


def _is_state(state: Any) -> bool:
    """Whether a part of the file of the progress is a session."""
    if not isinstance(state, dict) or not {"seed", "items", "results"} <= {*state}:
        return False
    if "minutes" in state and state["minutes"] != INTERVIEW_MIN:
        return False
    pairs, results = state["items"], state["results"]
    return (
        isinstance(pairs, list)
        and isinstance(results, list)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
        and all(isinstance(text, str) for pair in pairs for text in pair)
        and all(isinstance(one, dict) and isinstance(one.get("right"), bool) for one in results)
        and ("minutes" not in state or all(map(_is_timed, results)))
    )


def _is_timed(one: dict[str, Any]) -> bool:
    """Whether an answer has what an interview is judged by."""
    item, took_s = one.get("item"), one.get("took_s")
    if (
        not isinstance(item, list)
        or len(item) != 2
        or not all(isinstance(its, str) for its in item)
    ):
        return False
    return item[0] in SLOW_S and isinstance(took_s, int | float)


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
