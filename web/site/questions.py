"""The questions' pages: one for each, which asks for a prediction first and then says what refutes the
common answer, with its picture, and what one says aloud; and one that lists, searches and filters them.

The texts are the lessons' own (`simlab.lessons.words`), and what was found is read from the outputs that a
lesson's notebook keeps. `pages/questions/live.json` names for a question the explorer, with its state, in
which its picture moves; `pages/questions/libraries.toml` says what libraries have of it.
"""

import json
import re
import shutil
import tomllib
from collections.abc import Sequence
from html import unescape
from itertools import groupby
from typing import Any, NamedTuple

import yaml
from bs4 import BeautifulSoup
from lessons import HEADING, LIVE, TAG, Lesson, chinese_name
from markdown_it import MarkdownIt
from python_files import ROOT
from shell import HERE, Shell

from simlab.explorers.challenge import CHALLENGES
from simlab.lessons import book
from simlab.lessons.prediction import Choice, Prediction
from simlab.lessons.words import LANGUAGES, entry, has, word

FOLDER = "questions"
INDEX = f"{FOLDER}/index.html"
COMPARED = re.compile(r"<div class=['\"]simlab-compared['\"]>.*?</div>", re.DOTALL)
PICTURE = re.compile(r'<img [^>]*src="([^"]+\.png)"')
NUMBER = re.compile(r"[-−]?[\d,]+(\.\d+)?(e[+-]\d+)?")
SAID = (
    "empty", "no_number", "no_percent", "part_of_one", "too_high", "too_low", "too_high_by", "too_low_by",
)  # fmt: skip
"""What a page says of a number that is entered, or that is off."""
VERDICTS = {
    "ok": ("right, with a slip that is common", "基本正确，但有常见误解"),
    "nuance": ("it lacks something", "不完整"),
    "wrong": ("it is wrong", "有错"),
    "open": ("there is no common answer", "没有定论"),
}
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


class Section(NamedTuple):
    """What a lesson's page has of a question: its place, the picture behind the comparison, as a path
    below `lessons/` and "" where there is none, and the rows that compare."""

    place: str
    picture: str
    rows: list[list[str]]


def write(shell: Shell, lessons: Sequence[Lesson]) -> int:
    """Write the page of each question, and the one that lists them; returns how many there are."""
    asked = yaml.safe_load((ROOT / "notebooks" / "questions.yml").read_text(encoding="utf-8"))
    live = json.loads(LIVE.read_text(encoding="utf-8"))
    named = tomllib.loads((HERE / "pages" / FOLDER / "libraries.toml").read_text(encoding="utf-8"))
    by_notebook = {lesson.notebook.name: lesson for lesson in lessons}
    found = {lesson.notebook.name: sections(lesson.body) for lesson in lessons}
    order = sorted(asked, key=lambda each: book.home(each["id"]))
    folder = shell.folder / FOLDER
    shutil.copy(HERE / "pages" / FOLDER / "style.css", folder)
    index = shell.page(INDEX)
    listed = [
        each | {"lesson": by_notebook[each["notebook"]], "level": book.level(each["id"])}
        for each in order
    ]
    texts = {"verdicts": VERDICTS, "text": text, "both": both, "plain": plain}
    counted = {"questions": listed, "challenges": len(CHALLENGES)}
    shell.write(index, shell.render(f"pages/{FOLDER}/index.html", **counted, **texts))
    for at, each in enumerate(listed):
        name = each["id"]
        section = found[each["notebook"]][name]
        content = shell.render(
            f"pages/{FOLDER}/question.html",
            question=each, section=section, form=form(book.prediction(name), section.rows),
            live=live.get(name), chinese=chinese_name, read=named["read"],
            libraries=[(of, [*its]) for of, its in groupby(named["questions"].get(name, ()), library)],
            before=listed[at - 1] if at else None, after=listed[at + 1] if at + 1 < len(listed) else None, **texts,
        )  # fmt: skip
        page = index | {
            "path": f"{FOLDER}/{name}.html",
            "within": INDEX,
            "script": f"{FOLDER}/page",
        }
        titles = {tongue: each[f"title_{tongue}"] for tongue in LANGUAGES}
        about = " ".join(names(f"{name}.headline").values())
        shell.write(page | titles | {"about": about}, content)
    drill = index | {"path": f"{FOLDER}/drill.html", "within": INDEX, "script": f"{FOLDER}/drill"}
    titles = {"en": "Drill and interview", "zh": "练习与面试演练"}
    shell.write(drill | titles, shell.render(f"pages/{FOLDER}/drill.html"))
    return len(listed)


def library(entry: Sequence[Any]) -> str:
    """Of which library an entry of `libraries.toml` is: the first part of its place."""
    return str(re.split("[/.]", entry[0])[0])


def sections(body: str) -> dict[str, Section]:
    """{question's id: what `body`, a lesson's, has of it}."""
    heads = [found for found in HEADING.finditer(body) if found[2] == "2"]
    ends = [found.start() for found in heads[1:]] + [len(body)]
    return {
        unescape(TAG.sub("", head[4])).partition(" · ")[0]: section(head[3], body[head.end() : end])
        for head, end in zip(heads, ends)
    }


def section(place: str, body: str) -> Section:
    """The section at `place` with the HTML `body`."""
    compared = COMPARED.search(body)
    after = body[compared.end() :] if compared else body
    picture = PICTURE.search(after) or PICTURE.search(body)
    table = BeautifulSoup(compared[0] if compared else "", "html.parser")
    rows = [[english(cell) for cell in row.find_all(("th", "td"))] for row in table.find_all("tr")]
    return Section(place, picture[1] if picture else "", rows[1:])


def english(cell: Any) -> str:
    """The text of a cell of a table in English."""
    return str(cell.get("data-en") or cell.get_text().partition(" · ")[0])


def form(asked: Prediction, rows: list[list[str]]) -> dict[str, Any]:
    """What the page asks, and what it compares with: each field's names, unit, options and the value that
    a lesson found last."""
    fields = []
    for (name, field), row in zip(asked.fields.items(), rows, strict=True):
        value = [cell for cell in row[2:-1] if cell != "–"][-1]
        its: dict[str, Any] = {"label": names(f"{asked.key}.fields.{name}")}
        if isinstance(field, Choice):
            its["options"] = {
                option: names(f"{asked.key}.options.{option}") for option in field.options
            }
            its["found"] = next(o for o, said in its["options"].items() if said["en"] == value)
        else:
            units = [entry("form.units", tongue=tongue) for tongue in LANGUAGES]
            its["unit"] = dict(zip(LANGUAGES, (its.get(field.unit, field.unit) for its in units)))
            its["percent"] = {"%": 1, "x": 0.01}.get(field.unit, 0)
            number = NUMBER.match(value)
            assert number, f"{asked.id}: {value!r} is no number"
            its["found"] = float(number[0].replace(",", "").replace("−", "-"))
            its["shown"] = value.removesuffix(field.unit).strip()
        fields.append({"name": name, **its})
    said = {
        tongue: {key: word(f"form.{key}", tongue=tongue) for key in SAID} for tongue in LANGUAGES
    }
    return {"id": asked.id, "fields": fields, "said": said}


def both(key: str) -> dict[str, str]:
    """{language: the text of `key`}; where there is none, its last part."""
    return {
        tongue: word(key, tongue=tongue) if has(key) else key.rpartition(".")[2]
        for tongue in LANGUAGES
    }


def names(key: str) -> dict[str, str]:
    """`both` without Markdown's marks."""
    return {tongue: plain(its) for tongue, its in both(key).items()}


def plain(text: str) -> str:
    """Markdown without its marks."""
    return str(BeautifulSoup(MARKDOWN.renderInline(text), "html.parser").get_text())


def text(key: str, *, tag: str = "div") -> str:
    """The text of `key` as HTML in both languages, of which the page shows one."""
    render = MARKDOWN.render if tag == "div" else MARKDOWN.renderInline
    return "".join(
        f'<{tag} class="only-{tongue}" lang="{tongue}">{render(its)}</{tag}>'
        for tongue, its in both(key).items()
    )
