"""A gradebook: what a class has done, with a row for each learner and a column for each question."""

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from simlab.errors import InputError, shortened
from simlab.input_files import read_bytes
from simlab.lessons import NOTEBOOKS, book
from simlab.lessons.teaching.handed_in import handed_in, one_line

HEADS = ("who", "name", "learner", "student", "username", "login")
"""What the column of a roster's names is called, in any letters."""

ENCODINGS = ("utf-8-sig", "gb18030")
"""What a roster may be written in: a spreadsheet in Chinese saves its CSV as GB18030."""
UNGRADED = "not graded: needs processes"


class Learner(TypedDict):
    """What a learner has done in all.

    tried:     how many questions; a prediction counts apart from the exercise of its question.
    solved:    how many of them.
    questions: {question, or "b07 prediction": whether it was solved; None: it was not tried; or why it was not
               graded}.
    """

    who: str
    solved: int
    tried: int
    questions: dict[str, bool | str | None]


def roster(path: str | Path) -> list[str]:
    """The learners who should be there, in the order of the file: a name on each line or, of a file that
    ends in .csv, the column with one of the `HEADS`; the only column needs none. `InputError` for a file
    without names."""
    content = read_bytes(path)
    encoding = next((its for its in ENCODINGS if _is(content, its)), None)
    if encoding is None:
        raise InputError(f"cannot read {str(path)!r}: save it as UTF-8 or GB18030")
    lines = content.decode(encoding).splitlines()
    if Path(path).suffix.lower() == ".csv" and lines:
        rows = [*csv.reader(lines, delimiter=max(",;\t", key=lines[0].count))]
        heads = [cell.strip().lower() for cell in rows[0]]
        at = next((place for place, cell in enumerate(heads) if cell in HEADS), None)
        if at is None and len(heads) > 1:
            raise InputError(
                f"{str(path)!r} begins with {shortened(lines[0])}: head the column of names "
                f"with one of {', '.join(HEADS)}"
            )
        rows = rows if at is None else rows[1:]
        lines = [row[at or 0] for row in rows if len(row) > (at or 0)]
    names = [one_line(line.strip()) for line in lines if line.strip()]
    if not names:
        raise InputError(f"{str(path)!r} has no names: give one on each line")
    return [*dict.fromkeys(names)]


def _is(content: bytes, encoding: str) -> bool:
    try:
        return "\0" not in content.decode(encoding)
    except UnicodeDecodeError:
        return False


def held_against(names: Iterable[str], there: Collection[str]) -> list[str]:
    """A line for each learner of a roster who is not `there`, and for each who is and is not on it."""
    names = [*names]
    return [
        *(f"{who}: nothing was handed in" for who in names if who not in there),
        *(f"{who}: is not on the roster" for who in sorted(there) if who not in names),
    ]


def lessons_in(folder: str | Path, rows: Iterable[Mapping[str, Any]]) -> set[int]:
    """The numbers of the lessons whose notebooks a class has handed in, or whose questions it has tried."""
    files = {path.name for path in NOTEBOOKS.glob("*.ipynb")}
    handed = {each.path.name for each in handed_in(folder, (".ipynb",))} & files
    tried = {row["question"] for row in rows} & {*book.predictions()}
    return {int(name[:2]) for name in handed} | {*map(book.home, tried)}


def asked(numbers: Collection[int], kinds: Collection[str]) -> list[str]:
    """The columns of all questions of lessons, by their numbers. kinds: "prediction", "exercise" or both."""
    homes = {name: book.home(name) for name in book.predictions()}
    names = [name for name, home in homes.items() if home in numbers]
    exercises = [name for name in names if book.level(name)] if "exercise" in kinds else []
    return exercises + [f"{name} prediction" for name in names if "prediction" in kinds]


def by_learner(
    rows: Sequence[Mapping[str, Any]],
    learners: Iterable[str] = (),
    columns: Iterable[str] = (),
    *,
    alone: bool = False,
) -> list[Learner]:
    """A row for each of the `learners`, and for each of `rows`: the `Row`s of a collection, or the `Mark`s of
    a class. columns: questions that are there, too, where nobody has tried them; alone: and no others."""
    names = {*columns}
    tried: dict[str, dict[str, bool]] = {who: {} for who in learners}
    ungraded: set[tuple[str, str]] = set()
    for row in rows:
        of_learner = tried.setdefault(row["who"], {})
        if not row["question"]:
            continue
        name = row["question"] + (" prediction" if row.get("kind") == "prediction" else "")
        if alone and name not in names:
            continue
        names.add(name)
        if row["solved"] is not None:
            of_learner[name] = row["solved"]
        elif row.get("verdict") == "needs_processes":
            ungraded.add((row["who"], name))
    return [
        Learner(
            who=who,
            solved=sum(its.values()),
            tried=len(its),
            questions={
                name: UNGRADED if (who, name) in ungraded else its.get(name)
                for name in sorted(names)
            },
        )
        for who, its in tried.items()
    ]


def sheet(learners: Iterable[Learner]) -> list[dict[str, Any]]:
    """The rows with a column for each question: 1 where it is solved, 0 where it is not, None where it was not
    tried, and why where it was not graded."""
    return [
        {"who": each["who"], "solved": each["solved"], "tried": each["tried"]}
        | {
            name: int(its) if isinstance(its, bool) else its
            for name, its in each["questions"].items()
        }
        for each in learners
    ]
