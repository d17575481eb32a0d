"""The course: which lesson answers which question, how long it takes, and what it needs, read from
the notebooks."""

import ast
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from simlab.errors import InputError
from simlab.lessons import NOTEBOOKS, book

SITTING = re.compile(r"## \w+ sitting\b")
"""The heading at which a learner can stop, and go on another day."""
TITLE = re.compile(r"# Lesson (\d+): (.+?) · 第 \d+ 课：(.+)")
HEADING = re.compile(r"## (\w\d+) · (.+)\n\*\*(.+)\*\*")


class Question(NamedTuple):
    """A question of a lesson: its id, its titles in English and Chinese, and the level of its
    exercise, from 1 to 3; 0 where it has none."""

    id: str
    en: str
    zh: str
    level: int


class Lesson(NamedTuple):
    """A notebook of the course.

    minutes:   how long each sitting takes; one number for a lesson that is done in one.
    processes: how many processes it starts where torch is installed (else it shows what was
               recorded); 0 for a lesson that executes nothing.
    numpy:     whether it computes with numpy.
    """

    number: int
    file: str
    en: str
    zh: str
    minutes: list[int]
    questions: list[Question]
    processes: int
    numpy: bool


def lessons(folder: Path = NOTEBOOKS) -> list[Lesson]:
    """The lessons of `folder`, in their order. `InputError` for a folder without lessons."""
    found = [read(path) for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))]
    if not found:
        raise InputError(f"no lessons in {folder}: give the folder of the notebooks")
    return found


def read(path: Path) -> Lesson:
    """The lesson in the notebook `path`. `InputError` for a notebook without a lesson's title."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = [_source(cell) for cell in cells if cell["cell_type"] == "markdown"]
    code = "\n".join(_source(cell) for cell in cells if cell["cell_type"] == "code")
    title = TITLE.match(text[0]) if text else None
    if title is None:
        raise InputError(f"{path.name} does not begin with '# Lesson 1: … · 第 1 课：…'")
    pools = [int(count) for count in re.findall(r"Pool\((\d+)", code)]
    return Lesson(
        number=int(title[1]),
        file=path.name,
        en=title[2],
        zh=title[3],
        minutes=[round(book.minutes(sitting)) for sitting in sittings(cells)],
        questions=[_question(heading) for heading in filter(None, map(HEADING.match, text))],
        processes=max(pools, default=0),
        numpy="import numpy" in code,
    )


def untouched(identifier: str, text: str) -> bool:
    """Whether `text`, a function's source, is what the lesson's cell of an exercise comes with, whatever its
    comments and empty lines; of an exercise that no lesson has, it never is."""
    if identifier not in book.predictions():
        return False
    found = tree(text)
    return bool(found) and found == _stubs(book.home(identifier)).get(identifier)


def tree(text: str) -> str:
    """The functions of a source, by what they say and not by how it is laid out; "" where there is none."""
    try:
        found = ast.parse(textwrap.dedent(text)).body
        return "".join(ast.dump(node) for node in found if isinstance(node, ast.FunctionDef))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


@cache
def _stubs(number: int) -> dict[str, str]:
    """{question's id: the `tree` of what its exercise's cell comes with} of a lesson; empty where the notebooks
    are not there, as in a browser."""
    return {
        tag[2:]: tree(_source(cell))
        for path in NOTEBOOKS.glob(f"{number:02}_*.ipynb")
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        for tag in cell["metadata"].get("tags", ())
        if tag.startswith("e:")
    }


def sittings(cells: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The cells of a lesson, cut at each heading such as `## Second sitting`."""
    parts: list[list[Mapping[str, Any]]] = [[]]
    for cell in cells:
        if cell["cell_type"] == "markdown" and SITTING.match(_source(cell)):
            parts.append([])
        parts[-1].append(cell)
    return parts


def _question(heading: re.Match[str]) -> Question:
    return Question(heading[1], heading[2], heading[3], book.level(heading[1]))


def _source(cell: Mapping[str, Any]) -> str:
    return "".join(cell["source"])
