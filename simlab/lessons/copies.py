"""Copies of the lessons for a learner to work in.

The lessons are for reading: executed, with their results, in two languages. A learner's copy is in
one language and has no outputs, so that nothing is seen before it is predicted, and the code that
compares a prediction, asserts a result or gives a picture its title is folded, for it says what is
right, and so is a cell with the tag `folded`, which spells out the formula that is asked for; a click
opens it. A copy that is there already is the learner's own and stays as it is; who wants a lesson
anew deletes or renames the copy.

Headings say "English · 中文", and the Chinese of a question stands in bold below its heading. Other
Chinese is folded behind the English text, or stands below it, or at the end of its line. Code,
formulas and tables are for both, but for a table's column of questions.
"""

import json
import re
from pathlib import Path
from typing import Any

from simlab.lessons import NOTEBOOKS
from simlab.lessons.words import language

HAN = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
FOLD = re.compile(r"<details><summary>中文</summary>\n\n(.*?)\n\n</details>", re.DOTALL)
QUESTION = re.compile(r"(#+ \w\d+ · )(.+)\n\*\*(.+)\*\*()")
BELOW_HEADING = re.compile(r"^(#.+)\n(?=[^\n*])", re.MULTILINE)
TITLE = re.compile(r"(#+ |<details><summary>)(.+?) · (.+?)(</summary>|)")
PARTS = re.compile(r"```.*?```|\$\$.*?\$\$|(?:(?!\n\n|```|\$\$).)+", re.DOTALL)
"""What a text consists of: code, formulas, and what stands between empty lines."""
LINE = re.compile(r"((?:\d+\. |- )?)(.*)")
SENTENCE = re.compile(r"(?<=[.:;?!)]) ")
CELL = re.compile(rf"([^·|]+) · ([^|]*{HAN.pattern}[^|]*) (?=\|)")
COLUMNS = {"en": "问题", "zh": "question"}
"""The column of a table that a reader of a language does without."""


def learner_copy(notebook: dict[str, Any], tongue: str) -> dict[str, Any]:
    """A notebook (nbformat 4 JSON) in the language `tongue`, "en" or "zh", without what its cells
    showed when it was executed."""
    cells = [
        _code(cell, tongue) if cell["cell_type"] == "code" else _text(cell, tongue)
        for cell in notebook["cells"]
    ]
    return notebook | {"cells": cells}


def _code(cell: dict[str, Any], tongue: str) -> dict[str, Any]:
    """A cell of code; folded where it holds a prediction's answer and no line to change. What cells
    show begins in the language of the copy."""
    source = "".join(cell["source"])
    tells = any(text in source for text in (".compare(", "\nassert ", "title"))
    metadata = cell["metadata"]
    answers = source.startswith("after(") and (tells or "folded" in metadata.get("tags", ()))
    if answers and "# <- change this line" not in source:
        metadata = metadata | {"jupyter": {"source_hidden": True}}
    new = {"outputs": [], "execution_count": None, "metadata": metadata}
    return cell | new | _lines(source.replace("tongue()", f'tongue("{tongue}")'))


def _text(cell: dict[str, Any], tongue: str) -> dict[str, Any]:
    return cell | _lines(in_tongue("".join(cell["source"]), tongue))


def _lines(source: str) -> dict[str, list[str]]:
    return {"source": source.splitlines(keepends=True)}


def copy_lessons(folder: Path, tongue: str | None = None) -> list[Path]:
    """Copy each lesson that `folder` does not have, and return the new files.

    tongue: "en" or "zh"; None: the learner's language.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for lesson in sorted(NOTEBOOKS.glob("*.ipynb")):
        copy = folder / lesson.name
        if copy.exists():
            continue
        notebook = json.loads(lesson.read_text(encoding="utf-8"))
        text = json.dumps(
            learner_copy(notebook, tongue or language()), ensure_ascii=False, indent=1
        )
        copy.write_text(text + "\n", encoding="utf-8")
        written.append(copy)
    return written


def in_tongue(text: str, tongue: str) -> str:
    """`text`, Markdown, in the language "en" or "zh"."""
    text = BELOW_HEADING.sub(r"\1\n\n", text)
    read: list[str] = []
    run: list[tuple[str, bool]] = []  # what stands between two headings, and whether it was folded
    for at, piece in enumerate(FOLD.split(text)):
        for part in (part.strip("\n") for part in PARTS.findall(piece) if part.strip()):
            if part.startswith(("#", "<")):
                read += [*_of_run(run, tongue), _heading(part, tongue)]
                run = []
            else:
                run.append((part, at % 2 == 1))
    return "\n\n".join([*read, *_of_run(run, tongue)])


def _heading(part: str, tongue: str) -> str:
    """A heading, or a tag that begins or ends a fold."""
    found = QUESTION.fullmatch(part) or TITLE.fullmatch(part)
    return found[1] + found[2 if tongue == "en" else 3] + found[4] if found else part


def _of_run(run: list[tuple[str, bool]], tongue: str) -> list[str]:
    """The parts that are read. Chinese stands where the English text begins; where there is none, the
    text is for both."""
    shared = [not folded and part.startswith(("|", "```", "$$")) for part, folded in run]
    texts = [each for each, both in zip(run, shared) if not both]
    translated = any(folded or HAN.search(part) for part, folded in texts)
    read: list[str] = []
    for (part, folded), both in zip(run, shared):
        if both:
            read.append(_table(part, tongue))
        elif not translated:
            read.append(part)
        elif tongue == "en":
            read.append("" if folded else _lines_in(part, tongue))
        elif texts:
            read += [part if was else _lines_in(part, tongue) for part, was in texts]
            texts = []
    return [part for part in read if part]


def _lines_in(part: str, tongue: str) -> str:
    """The lines of `part` that are in a language; of one in both, the Chinese sentences come last."""
    read = []
    for line in part.split("\n"):
        number, text = LINE.fullmatch(line).groups()  # type: ignore[union-attr]
        sentences = SENTENCE.split(text)
        chinese = next((at for at, each in enumerate(sentences) if HAN.search(each)), None)
        mine = " ".join(sentences[:chinese] if tongue == "en" else sentences[chinese:])
        if mine and (tongue == "en" or chinese is not None):
            read.append(number + mine)
    return "\n".join(read)


def _table(part: str, tongue: str) -> str:
    """A table without what is in the other language; and what is no table, as it is."""
    if not part.startswith("|"):
        return part
    part = CELL.sub(r"\1 " if tongue == "en" else r" \2 ", part)
    rows = [row.split("|") for row in part.split("\n")]
    heads = [head.strip() for head in rows[0]]
    kept = [at for at, head in enumerate(heads) if head != COLUMNS[tongue]]
    return "\n".join("|".join(row[at] for at in kept) for row in rows)
