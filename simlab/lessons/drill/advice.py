"""What an interview showed: where the learner is strong, where weak, and what to do next."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from simlab.lessons import book
from simlab.lessons.drill import rounds
from simlab.lessons.drill.posed import Item
from simlab.lessons.words import word

STRONG, WEAK = 0.75, 0.5
"""The part of right answers from which on somebody is strong in something, and up to which weak."""
LEAST = 2
"""The fewest right answers from which somebody is strong, and wrong ones from which weak: one may be luck."""
MOST_LESSONS = MOST_SKILLS = 3
SLOW_S = {"aloud": 150, "exercise": 300, "chain": 180, "board": 240, "artefact": 300, "case": 300}
"""{kind: the seconds after which an interviewer has stopped to wait for an answer}."""
MOST_TO_DO = 5


class Advice(TypedDict):
    """What is said at the end of an interview, in the learner's language.

    strong, weak: skills and subjects. slow: what was right and took too long. next: what to do, the most
    valuable first.
    """

    minutes: float
    strong: list[str]
    weak: list[str]
    slow: list[str]
    next: list[str]


Results = Sequence[Mapping[str, Any]]


def advice(results: Results, planned: Iterable[Item]) -> Advice:
    """The `Advice` on what was answered. planned: the items of the session; those that time did not reach
    are told."""
    answered = [(Item(*one["item"]), one) for one in results]
    skills, areas = _scores(answered)
    weak = _named("skills", skills, weak=True) + _named("areas", areas, weak=True)
    strong = _named("skills", skills, weak=False) + _named("areas", areas, weak=False)
    slow = [
        word("drill.advice.slow", what=_title(item), minutes=f"{one['took_s'] / 60:.1f}")
        for item, one in answered
        if one["right"] and one["took_s"] > SLOW_S[item.kind]
    ]
    reached = {item.kind for item, _ in answered}
    missed = [kind for kind in SLOW_S if kind in {one.kind for one in planned} - reached]
    return {
        "minutes": round(sum(one["took_s"] for one in results) / 60, 1),
        "strong": strong,
        "weak": weak,
        "slow": slow,
        "next": _to_do(answered, skills, areas, missed, bool(slow))[:MOST_TO_DO],
    }


Scores = dict[str, list[bool]]
Pairs = Sequence[tuple[Item, Mapping[str, Any]]]


def advice_text(found: Advice) -> str:
    """The report of an interview, for reading: Markdown that a terminal can show as it is."""
    parts = {
        "strong": found["strong"],
        "weak": found["weak"],
        "slow": found["slow"],
        "next": found["next"],
    }
    lines = [word("drill.advice.head", minutes=f"{found['minutes']:g}")]
    for name, told in parts.items():
        if told or name != "slow":
            lines += ["", word(f"drill.advice.of_{name}")]
            lines += [f"- {one}" for one in told] or [f"- {word('drill.advice.nothing')}"]
    return "\n".join(lines)


def _scores(answered: Pairs) -> tuple[Scores, Scores]:
    """{skill: which answers were right}, {subject: the same}; an answer after a hint is not."""
    skills: Scores = defaultdict(list)
    areas: Scores = defaultdict(list)
    for item, one in answered:
        right = _is_held(one)
        skills[rounds.skill(item)].append(right)
        areas[rounds.subject(item)].append(right)
    return skills, areas


def _is_held(one: Mapping[str, Any]) -> bool:
    return bool(one["right"]) and not one.get("hints")


def _gaps(answered: Pairs, skills: Scores, areas: Scores) -> list[str]:
    """Weak subjects, the weakest first: not those in which only answers of weak kinds were wrong, for then it
    is the kind. Somebody who is strong in no kind has it all to learn."""
    apart = {*_weak(skills)} if _strong(skills) else set()
    wrong = [item for item, one in answered if not _is_held(one)]
    known = {rounds.subject(item) for item in wrong if rounds.skill(item) not in apart}
    return [name for name in _weak(areas) if name in known]


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def _weak(scores: Scores) -> list[str]:
    """What is weak, the weakest first."""
    found = [
        name
        for name, flags in scores.items()
        if _share(flags) <= WEAK and flags.count(False) >= LEAST
    ]
    return sorted(found, key=lambda name: (_share(scores[name]), -len(scores[name])))


def _strong(scores: Scores) -> list[str]:
    return [
        name
        for name, flags in scores.items()
        if _share(flags) >= STRONG and flags.count(True) >= LEAST
    ]


def _named(table: str, scores: Scores, *, weak: bool) -> list[str]:
    """The names of what is weak, the weakest first, or of what is strong, with right answers of all."""
    chosen = _weak(scores) if weak else _strong(scores)
    return [
        word(
            "drill.advice.scored",
            what=word(f"drill.{table}.{name}"),
            right=sum(scores[name]),
            count=len(scores[name]),
        )
        for name in chosen
    ]


def _to_do(
    answered: Pairs, skills: Scores, areas: Scores, missed: Sequence[str], is_slow: bool
) -> list[str]:
    """What to do next: lessons of weak subjects, single questions, weak skills, what was not reached."""
    wrong = dict.fromkeys(rounds.question(item) for item, one in answered if not one["right"])
    questions = [name for name in wrong if book.subject(name)]
    others = [name for name in wrong if not book.subject(name)]
    weak = _weak(skills)
    lessons = sorted(map(book.number, _gaps(answered, skills, areas)[:MOST_LESSONS]))
    told = [word("drill.advice.lessons", numbers=", ".join(map(str, lessons)))] if lessons else []
    told += [word(f"drill.advice.{kind}") for kind in weak[:MOST_SKILLS]]
    if questions:
        told.append(word("drill.advice.questions", names=" ".join(questions[:8])))
    if others and not {"board", "artefact", "case"} & {*weak}:
        told.append(word("drill.advice.others", names=" ".join(others[:6])))
    if is_slow:
        told.append(word("drill.advice.shorter"))
    if missed:
        told.append(
            word(
                "drill.advice.missed",
                kinds=", ".join(word(f"drill.skills.{one}") for one in missed),
            )
        )
    return told or [word("drill.advice.harder")]


def _title(item: Item) -> str:
    name = rounds.whole(item).name
    return f"{name} ({word(f'drill.skills.{item.kind}')})"
