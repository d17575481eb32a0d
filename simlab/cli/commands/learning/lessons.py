"""The command lessons: which there are, and copies of the notebooks, in one language, to work in."""

import argparse
from pathlib import Path
from shlex import quote
from typing import TypedDict

from simlab.cli.commands.learning.reading import headings
from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, print_table, print_text
from simlab.errors import InputError
from simlab.lessons import course
from simlab.lessons.copies import copy_lessons
from simlab.lessons.words import LANGUAGES, language, word


class Copied(TypedDict):
    """The folder of the copies, their language, and the files that are new."""

    folder: str
    language: str
    copied: list[str]


class Lesson(TypedDict):
    """A lesson: its title, the minutes of each sitting, how many processes it starts where torch is installed,
    whether it computes with numpy, and {question's id: its title}."""

    number: int
    file: str
    title: str
    minutes: list[int]
    processes: int
    numpy: bool
    questions: dict[str, str]


class Listed(TypedDict):
    """The lessons, in their order, in one language."""

    language: str
    lessons: list[Lesson]


Answer = Copied | Listed


def lessons(arguments: argparse.Namespace) -> int:
    """List the lessons, or copy them, which come with simlab, into a folder, in one language and without results.

    list: how many minutes each lesson takes, what it needs, and which questions it answers. copy: any
    JupyterLab opens the copies. Where torch is not installed, cells that execute show recorded runs and
    say so. A lesson that the folder has already is the learner's own and stays.
    """
    tongue = arguments.lang or language()
    if arguments.action == "list":
        if arguments.folder is not None:
            raise InputError(f"lessons list {arguments.folder!r}: it takes no folder")
        return _list(arguments, tongue)
    if arguments.folder is None:
        raise InputError("lessons copy: give the folder where the copies go")
    folder = Path(arguments.folder)
    try:
        copied = [path.name for path in copy_lessons(folder, tongue)]
    except OSError as error:
        raise InputError(f"{str(folder)!r}: {error.strerror}") from None
    if arguments.json:
        print_json(Copied(folder=str(folder), language=tongue, copied=copied))
        return 0
    print_text(f"copied: {len(copied)} lessons; those that were there are yours and stay")
    print_text(f"open them: jupyter lab {quote(str(folder))}")
    return 0


def _list(arguments: argparse.Namespace, tongue: str) -> int:
    found = [
        Lesson(
            number=one.number,
            file=one.file,
            title=getattr(one, tongue),
            minutes=one.minutes,
            processes=one.processes,
            numpy=one.numpy,
            questions={its.id: getattr(its, tongue) for its in one.questions},
        )
        for one in course.lessons()
    ]
    if arguments.json:
        print_json(Listed(language=tongue, lessons=found))
        return 0
    rows = [
        (
            str(one["number"]),
            "+".join(map(str, one["minutes"])),
            str(one["processes"] or "-"),
            "yes" if one["numpy"] else "-",
            str(len(one["questions"])),
        )
        for one in found
    ]
    columns = ("lesson", "minutes", "processes", "numpy", "questions")
    print_table(headings(columns, tongue), rows)
    print_text("")
    for one in found:
        print_text(f"{one['number']:>2}  {one['title']}: {' '.join(one['questions']) or '-'}")
    print_text("\n" + word("form.columns.note", tongue=tongue))
    return 0


def add_lessons(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `lessons`."""
    command.add_argument("action", choices=("copy", "list"), help="what to do with them")
    command.add_argument(
        "folder", metavar="DIR", nargs="?", help="copy: where the copies go; it is made"
    )
    command.add_argument(
        "--lang", choices=LANGUAGES, help="language (SIMLAB_LANG, or the locale's)"
    )
    add_json_options(command, Answer)
