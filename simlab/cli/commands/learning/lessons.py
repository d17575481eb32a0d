"""The command lessons: copies of the notebooks, in one language, to work in."""

import argparse
from pathlib import Path
from shlex import quote
from typing import TypedDict

from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, print_text
from simlab.errors import InputError
from simlab.lessons.copies import copy_lessons
from simlab.lessons.words import LANGUAGES, language


class Answer(TypedDict):
    """The folder of the copies, their language, and the files that are new."""

    folder: str
    language: str
    copied: list[str]


def lessons(arguments: argparse.Namespace) -> int:
    """Copy the lessons, which come with simlab, into a folder, in one language and without results.

    Any JupyterLab opens them. Where torch is not installed, cells that execute show recorded runs and
    say so. A lesson that the folder has already is the learner's own and stays.
    """
    folder, tongue = Path(arguments.folder), arguments.lang or language()
    try:
        copied = [path.name for path in copy_lessons(folder, tongue)]
    except OSError as error:
        raise InputError(f"{str(folder)!r}: {error.strerror}") from None
    if arguments.json:
        print_json(Answer(folder=str(folder), language=tongue, copied=copied))
        return 0
    print_text(f"copied: {len(copied)} lessons; those that were there are yours and stay")
    print_text(f"open them: jupyter lab {quote(str(folder))}")
    return 0


def add_lessons(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `lessons`."""
    command.add_argument("action", choices=("copy",), help="what to do with them")
    command.add_argument("folder", metavar="DIR", help="where the copies go; it is made")
    command.add_argument(
        "--lang", choices=LANGUAGES, help="language (SIMLAB_LANG, or the locale's)"
    )
    add_json_options(command, Answer)
