"""It makes the lessons of a class: learners' copies, which keep what was answered beside themselves."""

import ast
import json
import re
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from simlab.errors import InputError, shortened
from simlab.input_files import read_bytes
from simlab.lessons import NOTEBOOKS, course
from simlab.lessons.copies import learner_copy
from simlab.lessons.teaching.attempts import asked_in

MOST_NOTEBOOK_BYTES = 32_000_000
DEFINES = re.compile(r"\bexercise\(")
CELL = """from simlab.apps import for_class

for_class({tongue!r}, solutions={solutions})  # what you answer is kept in progress.json, beside this notebook"""


def chosen(numbers: str) -> list[course.Lesson]:
    """The lessons of a text such as "1,4,9"; all of them for "". `InputError` names those there are."""
    known = {str(lesson.number): lesson for lesson in course.lessons()}
    asked = (
        list(dict.fromkeys(part.strip() for part in numbers.split(","))) if numbers else [*known]
    )
    for one in asked:
        if one not in known:
            raise InputError(f"--lessons {shortened(one)}: there is {', '.join(known)}")
    return [known[one] for one in asked]


def pack(
    lessons: Iterable[course.Lesson], own: Sequence[str], tongue: str, *, solutions: bool
) -> dict[str, str]:
    """{name of a file: its text} of lessons, and of notebooks of one's own, for a class that learns in
    `tongue`, "en" or "zh", and sees solutions or not."""
    paths = [*(NOTEBOOKS / lesson.file for lesson in lessons), *map(Path, own)]
    files = {}
    for path in paths:
        if path.suffix not in (".ipynb", ".py"):
            raise InputError(
                f"--own {str(path)!r}: give notebooks (.ipynb), or modules that they import (.py)"
            )
        if path.name in files:
            raise InputError(f"--own {str(path)!r}: a file of this name is there already")
        text = read_bytes(path, MOST_NOTEBOOK_BYTES).decode("utf-8", "replace")
        if path.suffix == ".py" and not solutions:
            (text,) = _without_solutions([text])
        files[path.name] = (
            text if path.suffix == ".py" else _for_class(path, text, tongue, solutions)
        )
    return files


def _for_class(path: Path, text: str, tongue: str, solutions: bool) -> str:
    """A notebook for the class: a learner's copy, whose first code says how the class works. A cell that
    defines an exercise of one's own, and so has its answer, is folded."""
    try:
        notebook = json.loads(text)
        copy = learner_copy(notebook, tongue)
        own = path.parent != NOTEBOOKS  # its texts are in its teacher's language, and stay
        if own and not solutions:
            codes = [its for its in copy["cells"] if its["cell_type"] == "code"]
            texts = _without_solutions(["".join(its["source"]) for its in codes])
            for its, source in zip(codes, texts):
                its["source"] = source.splitlines(keepends=True)
        pairs = zip(notebook["cells"], copy["cells"])
        cells = [
            was if own and its["cell_type"] != "code" else _folded(its) if own else its
            for was, its in pairs
        ]
        first = next((at for at, cell in enumerate(cells) if _is_work(cell)), len(cells))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"cannot read {str(path)!r}: it is no notebook") from error
    lines = CELL.format(tongue=tongue, solutions=solutions).splitlines(keepends=True)
    words = {"cell_type": "code", "metadata": {"tags": ["class"]}, "source": lines}
    made: dict[str, Any] = {"outputs": [], "execution_count": None}
    if notebook.get("nbformat_minor", 0) >= 5:  # older ones have no names of cells
        made["id"] = "class"
    cells.insert(first, words | made)
    return json.dumps(copy | {"cells": cells}, ensure_ascii=False, indent=1) + "\n"


def _without_solutions(sources: Sequence[str]) -> list[str]:
    """The code of cells, without what a call of `exercise` has as `solution=`, and without a function that is
    nothing else. Code that is no Python stays."""
    trees = [*map(_tree, sources)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    told = [
        its.value
        for node in nodes
        if isinstance(node, ast.Call) and asked_in(node) is not None
        for its in node.keywords
        if its.arg == "solution"
    ]
    names = {its.id for its in told if isinstance(its, ast.Name)}
    names -= {its.id for its in nodes if isinstance(its, ast.Name) and its not in told}
    made = []
    for source, tree in zip(sources, trees):
        lines = source.encode().splitlines(keepends=True)
        for node in reversed([*ast.walk(tree)]):
            if node in told:
                _replaced(lines, node, b"None")
        for node in reversed(tree.body):
            if isinstance(node, ast.FunctionDef) and node.name in names:
                first = min([node.lineno, *(its.lineno for its in node.decorator_list)])
                lines[first - 1 : node.end_lineno] = []
        made.append(b"".join(lines).decode())
    return made


def _tree(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _replaced(lines: list[bytes], node: Any, by: bytes) -> None:
    """Put `by` in the place of an expression. The number of lines stays."""
    first, last = node.lineno - 1, node.end_lineno - 1
    rest = lines[last][node.end_col_offset :]
    lines[first] = lines[first][: node.col_offset] + by + (rest if first == last else b"")
    if first != last:
        lines[first + 1 : last + 1] = [*[b""] * (last - first - 1), rest]


def _is_work(cell: dict[str, Any]) -> bool:
    """Whether a cell is code that may import simlab: one that installs it stands before."""
    return cell["cell_type"] == "code" and "install" not in cell["metadata"].get("tags", ())


def _folded(cell: dict[str, Any]) -> dict[str, Any]:
    if not DEFINES.search("".join(cell["source"])):
        return cell
    return cell | {"metadata": cell["metadata"] | {"jupyter": {"source_hidden": True}}}


def write(files: dict[str, str], path: Path) -> None:
    """Write the files into the zip, or the folder, at `path`, over those of the same names that are there."""
    if path.suffix == ".zip":
        content = BytesIO()
        with ZipFile(content, "w", ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(f"{path.stem}/{name}", text)
        path.write_bytes(content.getvalue())
        return
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text, encoding="utf-8")
