"""What `class collect` and `class grade` print and write: the table, a row for each learner, CSV files."""

import argparse
import csv
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from simlab.cli.commands.learning.feedback import feedback
from simlab.cli.options import value_text
from simlab.cli.output import (
    print_json,
    print_table,
    print_text,
    progress,
    refuse_existing,
    write_file,
)
from simlab.errors import InputError, require_positive
from simlab.lessons.exercise import Exercise
from simlab.lessons.teaching.apart import Limits
from simlab.lessons.teaching.attempts import EXERCISES, attempts, defined
from simlab.lessons.teaching.collect import Row, collect
from simlab.lessons.teaching.grade import Mark, grade
from simlab.lessons.teaching.gradebook import (
    Learner,
    asked,
    by_learner,
    held_against,
    lessons_in,
    roster,
    sheet,
)
from simlab.lessons.teaching.handed_in import learners
from simlab.lessons.teaching.pack import chosen
from simlab.lessons.words import language, word
from simlab.units import GIB

SUMS = ("who", "solved", "tried")


class Collected(TypedDict):
    """What a class has done, by question and by learner, and a line for each file that cannot be used."""

    rows: list[Row]
    learners: list[Learner]
    wrong: list[str]


class Grades(TypedDict):
    """What the functions of a class are worth, by question and by learner, and a line for each file that
    cannot be used."""

    marks: list[Mark]
    learners: list[Learner]
    wrong: list[str]


class Class(NamedTuple):
    """Who should be there, and the numbers of the lessons whose questions have a column; None: of those that
    were handed in."""

    names: list[str]
    numbers: set[int] | None


def collected(arguments: argparse.Namespace) -> int:
    """Run `class collect`."""
    of = _class(arguments)
    rows, wrong = collect(arguments.path)
    head = ("who", "question", "kind", "tries", "solved", "shown", "time")
    return _shown(arguments, of, "rows", rows, head, wrong, ("exercise", "prediction"))


def graded(arguments: argparse.Namespace) -> int:
    """Run `class grade`."""
    limits = Limits(
        10.0 if arguments.limit_s is None else arguments.limit_s,
        GIB * (1.0 if arguments.memory_gib is None else arguments.memory_gib),
    )
    require_positive("--limit-s", limits.seconds)
    require_positive("--memory-gib", limits.memory_bytes)
    of, path = _class(arguments), arguments.questions
    pages = _pages(arguments)
    made = own_questions(path, "--questions", EXERCISES) if path else {}
    questions: dict[str, Exercise] = {name: its.asked for name, its in made.items()}
    tasks = {name: its.id for name, its in questions.items()}
    stubs = attempts(Path(path), tasks)[0] if path else []
    marks, wrong = grade(
        arguments.path, questions, limits, lambda them: progress(them, "grading"), stubs
    )
    own = {its.id: its for its in questions.values()}
    head = ("who", "question", "solved", "verdict")
    status = _shown(arguments, of, "marks", marks, head, [*wrong], ("exercise",), [*own])
    for who, page in pages.items():
        left = [line for line, its in wrong.items() if its == who]
        text = feedback(who, marks, left, own, arguments.lang or language())
        write_file(str(page), partial(Path.write_text, data=text, encoding="utf-8"))
    for mark in () if arguments.json else marks:
        if mark["solved"] is False or mark["verdict"] == "needs_processes":
            print_text(f"{mark['file']}: {mark['question']}: {mark['text']}")
    return status


def _pages(arguments: argparse.Namespace) -> dict[str, Path]:
    """{learner: the page to write} where pages are asked for; their folder is made."""
    if not arguments.feedback:
        return {}
    folder = Path(arguments.feedback)
    pages = {who: folder / f"{who}.html" for who in learners(arguments.path)}
    refuse_existing([*pages.values()], arguments.force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {arguments.feedback!r}: {error.strerror}") from error
    return pages


def _class(arguments: argparse.Namespace) -> Class:
    refuse_existing([arguments.csv, arguments.by_learner], arguments.force)
    if arguments.csv and arguments.csv == arguments.by_learner:
        raise InputError(f"--by-learner {arguments.csv!r}: --csv writes it: give another name")
    chosen_ones = None if arguments.lessons is None else chosen(arguments.lessons)
    numbers = None if chosen_ones is None else {lesson.number for lesson in chosen_ones}
    return Class(roster(arguments.roster) if arguments.roster else [], numbers)


def own_questions(path: str, option: str, makes: Sequence[str]) -> Mapping[str, Any]:
    """{name: what a teacher's own file makes of it with the functions `makes`}. The file is run here, as the
    teacher's own."""
    try:
        return defined(Path(path), makes)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{option} {path!r}: {type(error).__name__}: {error}") from error


def _shown(
    arguments: argparse.Namespace,
    of: Class,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    head: Sequence[str],
    wrong: Sequence[str],
    kinds: Sequence[str],
    own: Sequence[str] = (),
) -> int:
    """Print the rows and their sums by learner as tables, or as JSON, and write them to the CSV files that
    are asked for. kinds, own: what has a column in the sheet, see `asked`, and questions of one's own."""
    there = learners(arguments.path)
    wrong = [*wrong, *(held_against(of.names, there) if of.names else [])]
    numbers = lessons_in(arguments.path, rows) if of.numbers is None else of.numbers
    names = dict.fromkeys([*of.names, *sorted(there)])
    alone = of.numbers is not None
    members = by_learner(rows, names, [*asked(numbers, kinds), *own], alone=alone)
    if arguments.csv:
        write_file(arguments.csv, lambda path: _write_csv(path, head, rows))
    if arguments.by_learner:
        write_file(arguments.by_learner, lambda path: _write_csv(path, SUMS, sheet(members)))
    if arguments.json:
        print_json({name: [*rows], "learners": members, "wrong": [*wrong]})
    else:
        print_table(headings(head), [[_cell(row[column]) for column in head] for row in rows])
        if members:
            print_text("")
            sums: Sequence[Mapping[str, Any]] = members
            print_table(headings(SUMS), [[_cell(each[column]) for column in SUMS] for each in sums])
        for line in wrong:
            print_text(f"{word('form.left_out')}{line}")
    return int(bool(wrong))


def headings(columns: Sequence[str], tongue: str | None = None) -> list[str]:
    """The headings of a table in the language of the class."""
    return [word(f"form.columns.{column}", tongue=tongue) for column in columns]


def _cell(value: Any) -> str:
    return "-" if value in (None, "") else value_text(value)


def _write_csv(path: Path, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    lines = [
        rows[0] if rows else names,
        *([_harmless(its) for its in row.values()] for row in rows),
    ]
    plain = all(str(value).isascii() for line in lines for value in line)
    encoding = "utf-8" if plain else "utf-8-sig"  # by which a spreadsheet knows it
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file).writerows(lines)


def _harmless(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return (
        f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
    )
