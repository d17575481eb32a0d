"""A gradebook: what a class has done, with a row for each learner."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict


class Learner(TypedDict):
    """What a learner has done in all.

    tried:     how many questions; a prediction counts apart from the exercise of its question.
    solved:    how many of them.
    questions: {question, or "b07 prediction": whether it was solved}, of those that were tried.
    """

    who: str
    solved: int
    tried: int
    questions: dict[str, bool]


def by_learner(rows: Sequence[Mapping[str, Any]], learners: Iterable[str] = ()) -> list[Learner]:
    """A row for each of the `learners`, and for each of `rows`: the `Row`s of a collection, or the `Mark`s of
    a class."""
    tried: dict[str, dict[str, bool]] = {who: {} for who in learners}
    for row in rows:
        of_learner = tried.setdefault(row["who"], {})
        if row["solved"] is not None:
            kind = " prediction" if row.get("kind") == "prediction" else ""
            of_learner[row["question"] + kind] = row["solved"]
    return [
        Learner(who=who, solved=sum(its.values()), tried=len(its), questions=its)
        for who, its in sorted(tried.items())
    ]


def columns(learners: Sequence[Learner]) -> list[dict[str, Any]]:
    """The rows with a column for each question that somebody has tried: 1 where it is solved, 0 where it
    is not, and None where it was not tried."""
    names = sorted({name for each in learners for name in each["questions"]})
    return [
        {"who": each["who"], "solved": each["solved"], "tried": each["tried"]}
        | {name: _mark(each["questions"].get(name)) for name in names}
        for each in learners
    ]


def _mark(solved: bool | None) -> int | None:
    return None if solved is None else int(solved)
