"""The command class: lessons to hand out, and what learners hand in."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, TypedDict

from simlab.cli.commands.learning.reading import Collected, Grades, collected, graded, own_questions
from simlab.cli.options import add_json_options, refuse_given
from simlab.cli.output import print_json, print_text, refuse_existing, write_file
from simlab.errors import InputError
from simlab.lessons.copies import learner_copy
from simlab.lessons.teaching.pack import chosen, pack, write
from simlab.lessons.words import LANGUAGES, language, set_language

PACKED = "class.zip"
QUESTIONS = ("prediction", "exercise")
"""Functions that make a question of one's own."""
OWN = re.compile(r"\boracle *=|\bsl\.prediction\(")
"""What a file has that makes one."""


class Packed(TypedDict):
    """What was written for a class to work with."""

    written: str
    files: list[str]


Answer = Packed | Collected | Grades


def class_(arguments: argparse.Namespace) -> int:
    """Hand lessons out to a class, and read what comes back.

    template: write a notebook with a question of one's own, to change; pack: lessons without their
    results, as a zip or a folder, that keep each learner's progress beside themselves; handout: their questions
    to print, as HTML or, with Chromium, as PDF; collect: who has answered what, from the progress files in a
    folder; grade: judge the functions in learners' notebooks, each in a process with limits. Both end with a
    line for each learner. The first part of a file's path in the folder is its learner. Files that
    cannot be used are a line each, and then the exit status is 1. No file is overwritten without --force.
    """
    action = ACTIONS[arguments.action]
    others = [name for name in OPTIONS if name not in action.options]
    refuse_given(arguments, others, f"is an option of other actions, not of {arguments.action!r}")
    if arguments.path is None and arguments.action != "pack":
        raise InputError(f"class {arguments.action}: give {action.path}")
    if arguments.lang:
        set_language(arguments.lang)
    return action.run(arguments)


def _template(arguments: argparse.Namespace) -> int:
    refuse_existing([arguments.path], arguments.force)
    text = (files("simlab.lessons") / "teaching" / "template.ipynb").read_text("utf-8")
    notebook = json.loads(text)
    pairs = zip(notebook["cells"], learner_copy(notebook, arguments.lang or language())["cells"])
    cells = [was if was["cell_type"] == "code" else its for was, its in pairs]
    text = json.dumps(notebook | {"cells": cells}, ensure_ascii=False, indent=1) + "\n"
    write_file(arguments.path, lambda path: path.write_text(text, encoding="utf-8"))
    return _packed(arguments, arguments.path, [Path(arguments.path).name])


def _pack(arguments: argparse.Namespace) -> int:
    path = Path(PACKED if arguments.path is None else arguments.path)
    if arguments.path == "" or (path.suffix == ".zip" and path.is_dir()):
        raise InputError(f"cannot write {str(path)!r}: give the path of a zip, or of a folder")
    refuse_existing([path], arguments.force)
    own = arguments.own or []
    lessons = [] if own and arguments.lessons is None else chosen(arguments.lessons or "")
    solutions = not arguments.without_solutions
    made = pack(lessons, own, arguments.lang or language(), solutions=solutions)
    for file in own:
        if OWN.search(made[Path(file).name]):
            own_questions(file, "--own", QUESTIONS)
    try:
        if path.suffix != ".zip":
            refuse_existing([path / name for name in made], arguments.force)
        write(made, path)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}") from error
    print(f"wrote {path}", file=sys.stderr)
    return _packed(arguments, str(path), [*made])


def _handout(arguments: argparse.Namespace) -> int:
    path = Path(arguments.path)
    if path.suffix not in (".html", ".pdf"):
        raise InputError(f"cannot write {arguments.path!r}: a handout ends in .html or .pdf")
    try:
        from simlab.cli.commands.learning.handout import as_pdf, handout, points
    except ImportError as error:
        raise InputError(
            f"a handout needs {error.name}: pip install ipywidgets anywidget markdown-it-py"
        ) from error
    own = arguments.own or []
    lessons = [] if own and arguments.lessons is None else chosen(arguments.lessons or "")
    questions = [(Path(file).stem, own_questions(file, "--own", QUESTIONS)) for file in own]
    tongue, answers = arguments.lang or language(), not arguments.without_solutions
    later = path.with_stem(f"{path.stem}-points") if lessons and not answers else None
    refuse_existing([path, later], arguments.force)
    pages = {path: handout(lessons, questions, tongue, answers=answers)}
    if later:
        pages[later] = points(lessons, tongue)
    for target, page in pages.items():
        content = as_pdf(page) if path.suffix == ".pdf" else page.encode("utf-8")
        write_file(str(target), partial(_put, content))
    return _packed(arguments, arguments.path, [target.name for target in pages])


def _put(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _packed(arguments: argparse.Namespace, path: str, names: Sequence[str]) -> int:
    if arguments.json:
        print_json(Packed(written=path, files=[*names]))
    else:
        for name in names:
            print_text(name)
    return 0


class Action(NamedTuple):
    """Something that the command does."""

    run: Callable[[argparse.Namespace], int]
    path: str
    options: tuple[str, ...]


ACTIONS = {
    "template": Action(_template, "the notebook to write", ("lang", "force")),
    "pack": Action(
        _pack,
        "the zip or the folder to write",
        ("lessons", "without_solutions", "own", "lang", "force"),
    ),
    "handout": Action(
        _handout,
        "the .html or .pdf to write",
        ("lessons", "without_solutions", "own", "lang", "force"),
    ),
    "collect": Action(
        collected,
        "the folder of what was handed in",
        ("lessons", "roster", "csv", "by_learner", "force"),
    ),
    "grade": Action(
        graded,
        "the folder of what was handed in",
        (
            *("lessons", "roster", "csv", "by_learner", "force"),
            *("questions", "limit_s", "memory_gib", "lang", "feedback"),
        ),
    ),
}
OPTIONS = {name for action in ACTIONS.values() for name in action.options}


def add_class(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `class`."""
    command.add_argument(
        "action", choices=tuple(ACTIONS), metavar="ACTION", help=", ".join(ACTIONS)
    )
    command.add_argument(
        "path", nargs="?", metavar="PATH",
        help=f"template: the notebook to write; pack: the zip or folder to write ({PACKED}); handout: the .html or "
        ".pdf to write; "
        "collect, grade: the folder that holds a file or a folder of each learner",
    )  # fmt: skip
    command.add_argument(
        "--lessons", metavar="N,N",
        help="which lessons: 1,4,9; pack, handout: (all); collect, grade: whose questions have a column (those "
        "that were handed in)",
    )  # fmt: skip
    command.add_argument(
        "--force", action="store_const", const=True, help="overwrite files that are there"
    )
    packing = command.add_argument_group("pack, handout")
    packing.add_argument(
        "--without-solutions",
        action="store_const",
        const=True,
        help="exercises show no solution; a handout has no answers, and its points are a file of their own",
    )
    packing.add_argument(
        "--own", nargs="+", metavar="FILE", help="notebooks of your own, and modules they import"
    )
    command.add_argument(
        "--lang",
        choices=LANGUAGES,
        help="template, pack, handout, grade: the language (SIMLAB_LANG, or the locale's)",
    )
    reading = command.add_argument_group("collect, grade")
    reading.add_argument("--csv", metavar="FILE", help="also write the table to FILE")
    reading.add_argument(
        "--by-learner",
        metavar="FILE",
        help="also write a row for each learner to FILE, with a column for each question (CSV)",
    )
    reading.add_argument(
        "--roster",
        metavar="FILE",
        help="who should be there: a name on each line, or a CSV with a column such as name",
    )
    reading.add_argument(
        "--questions",
        metavar="FILE",
        help="grade: your notebook that defines exercises of your own",
    )
    reading.add_argument(
        "--limit-s",
        type=float,
        metavar="X",
        help="grade: seconds of the processor of a function (10)",
    )
    reading.add_argument(
        "--memory-gib", type=float, metavar="X", help="grade: memory of a function, GiB (1)"
    )
    reading.add_argument(
        "--feedback", metavar="DIR",
        help="grade: also write a page for each learner into DIR, to be given back (HTML)",
    )  # fmt: skip
    add_json_options(command, Answer)
