"""python -m simlab.lessons.copies NOTEBOOKS FOLDER: copies of the lessons for a learner to work in.

The lessons in the repository are for reading: executed, with their results. A learner's copy has no
outputs, so that nothing is seen before it is predicted, and the code that compares a prediction,
asserts a result or gives a picture its title is folded, for it says what is right, and so is a cell
with the tag `folded`, which spells out the formula that is asked for; a click opens it.
With SIMLAB_LANG=zh the Chinese of each text is open. A copy that is there already is the learner's own
and stays as it is; who wants a lesson anew deletes or renames the copy.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simlab.lessons.words import language

_FOLDED = "<details><summary>中文</summary>"


def learner_copy(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook (nbformat 4 JSON) without what its cells showed when it was executed."""
    cells = [
        _code(cell) if cell["cell_type"] == "code" else _text(cell) for cell in notebook["cells"]
    ]
    return notebook | {"cells": cells}


def _code(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell of code; folded where it holds a prediction's answer and no line to change."""
    source = "".join(cell["source"])
    tells = any(text in source for text in (".compare(", "\nassert ", "title"))
    metadata = cell["metadata"]
    answers = source.startswith("after(") and (tells or "folded" in metadata.get("tags", ()))
    if answers and "# <- change this line" not in source:
        metadata = metadata | {"jupyter": {"source_hidden": True}}
    return cell | {"outputs": [], "execution_count": None, "metadata": metadata}


def _text(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell of text; who learns in Chinese has its Chinese open."""
    if language() == "en":
        return cell
    source = "".join(cell["source"]).replace(
        _FOLDED, _FOLDED.replace("<details>", "<details open>")
    )
    return cell | {"source": source.splitlines(keepends=True)}


def copy_lessons(notebooks: Path, folder: Path) -> list[Path]:
    """Copy each lesson that `folder` does not have, and return the new files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for lesson in sorted(notebooks.glob("*.ipynb")):
        copy = folder / lesson.name
        if copy.exists():
            continue
        notebook = learner_copy(json.loads(lesson.read_text(encoding="utf-8")))
        copy.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        written.append(copy)
    return written


def main(arguments: Sequence[str]) -> int:
    """Copy the lessons from one folder to another, and say where they are."""
    if len(arguments) != 2 or not Path(arguments[0]).is_dir():
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    notebooks, folder = map(Path, arguments)
    try:
        new = copy_lessons(notebooks, folder)
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{len(new)} lessons copied to {folder}; those that were there are yours and stay.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
