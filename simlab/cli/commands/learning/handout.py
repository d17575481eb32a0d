"""A handout to print: of each question what is asked, room for a prediction, the lesson's picture, and the
answer with its points. Without answers the points are pages of their own, for they say the answers."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from simlab.apps.lesson_cells import Guess, Task, as_html
from simlab.errors import InputError
from simlab.lessons import NOTEBOOKS, book, course
from simlab.lessons.phrases import phrase
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.lessons.words import entry, has, word
from simlab.views.language import CHINESE_PNG

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PRINT_S = 300
LISTING = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
"""Code, or a picture of letters, in Markdown."""
STYLE = """
@page { size: A4; margin: 16mm }
body { font: 11pt/1.45 system-ui, "Noto Sans CJK SC", sans-serif; max-width: 178mm; margin: 0 auto }
h1 { font-size: 17pt; break-before: page } h1:first-of-type { break-before: auto }
h2 { font-size: 13pt; margin: 18pt 0 4pt; break-after: avoid } h3 { font-size: 11pt; margin: 8pt 0 2pt; break-after: avoid }
p, ul { margin: 4pt 0 } ul.box { list-style: "\\2610  " } img { max-width: 100%; max-height: 90mm; break-inside: avoid }
pre { font-size: 9pt; white-space: pre-wrap } table { border-collapse: collapse; font-size: 9pt } td, th { padding: 0 6pt }
.room { display: inline-block; width: 40mm; border-bottom: 0.6pt solid #444 }
"""


class Shown(NamedTuple):
    """What a notebook shows of a question above its prediction, and below it, as HTML: listings, pictures and
    tables."""

    before: list[str]
    after: list[str]


def handout(
    lessons: Iterable[course.Lesson],
    own: Iterable[tuple[str, Mapping[str, Guess | Task]]],
    tongue: str,
    *,
    answers: bool,
) -> str:
    """An HTML page about the questions of `lessons` in `tongue`, "en" or "zh", which prints on A4.

    own:     (title, {name: a prediction or an exercise of one's own}), which have one language.
    answers: with what refutes the common answer, the lesson's pictures and tables, the answer in 60 seconds, the
    points to tick and the answers to follow-ups. These are there where the notebook holds its results, as in a
    checkout. What stands above a prediction, such as the code that it is about, is always there.
    """
    parts = []
    for lesson in lessons:
        shown = _shown(NOTEBOOKS / lesson.file, tongue)
        named = f"{lesson.number}. {escape(getattr(lesson, tongue))}"
        parts.append(f"<h1>{named}</h1>")
        if answers and shown and not any(its.after for its in shown.values()):
            parts.append(as_html(word("form.not_on_paper", tongue=tongue)))
        for question in _own_questions(lesson):
            asked = _question(question.id, tongue, answers, shown[question.id])
            parts += [_title(question, tongue), *asked]
    for title, questions in own:
        parts.append(f"<h1>{escape(title)}</h1>")
        for its in questions.values():
            parts += _own(its, tongue, answers)
    return _page(parts, tongue)


def points(lessons: Iterable[course.Lesson], tongue: str) -> str:
    """An HTML page with the points to tick of each question of `lessons`, to be given out after the handout."""
    parts = []
    for lesson in lessons:
        named = f"{lesson.number}. {escape(getattr(lesson, tongue))}"
        parts.append(f"<h1>{named}</h1>{_head('points', tongue)}")
        for question in _own_questions(lesson):
            parts += [_title(question, tongue), _points(question.id, tongue)]
    return _page(parts, tongue)


def _own_questions(lesson: course.Lesson) -> list[course.Question]:
    """The questions that a lesson answers; others it only executes."""
    return [its for its in lesson.questions if book.home(its.id) == lesson.number]


def _title(question: course.Question, tongue: str) -> str:
    return f"<h2>{escape(f'{question.id} · {getattr(question, tongue)}')}</h2>"


def _page(parts: Iterable[str], tongue: str) -> str:
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="{tongue}"><head><meta charset="utf-8">'
        f"<style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def _head(key: str, tongue: str) -> str:
    return f"<h3>{escape(word(f'form.{key}', tongue=tongue))}</h3>"


def _predict(asked: Prediction, tongue: str) -> list[str]:
    """What is asked, with room for the answers."""
    units = entry("form.units", tongue=tongue)

    def room(its: Number | Choice) -> str:
        if isinstance(its, Choice):
            keys = {one: f"{asked.key}.options.{one}" for one in its.options}
            texts = (word(key, tongue=tongue) if has(key) else one for one, key in keys.items())
            return " &emsp;".join(f"\u2610&nbsp;{escape(text)}" for text in texts)
        return f'<span class="room"></span> {escape(units.get(its.unit, its.unit))}'

    def label(field: str) -> str:
        return field if asked.own else word(f"{asked.key}.fields.{field}", tongue=tongue)

    fields = (f"<li>{escape(label(name))}: {room(its)}</li>" for name, its in asked.fields.items())
    return [_head("predict", tongue), as_html(asked.asks(tongue)), f"<ul>{''.join(fields)}</ul>"]


def _own(its: Guess | Task, tongue: str, answers: bool) -> list[str]:
    """A question of one's own: a prediction, or an exercise with its solution where answers are given."""
    title = f"<h2>{escape(its.asked.id)}</h2>"
    if isinstance(its, Guess):
        return [title, *_predict(its.asked, tongue)]
    parts = [title, _head("exercise", tongue), as_html(its.asked.text(tongue))]
    solution = its.asked.solution_text() if answers else ""
    shown = [_head("solution", tongue), f"<pre>{escape(solution)}</pre>"] if solution else []
    return parts + shown


def _question(name: str, tongue: str, answers: bool, shown: Shown) -> list[str]:
    def said(key: str) -> str:
        return as_html(word(f"{name}.{key}", tongue=tongue))

    def head(key: str) -> str:
        return _head(key, tongue)

    follow_ups = "".join(
        f"<li>{as_html(each['question'])}{as_html(each['answer']) if answers else ''}</li>"
        for each in entry(f"{name}.follow_ups", tongue=tongue)
    )
    asked = _predict(book.prediction(name), tongue)
    parts = [*shown.before, *asked, head("wrong_answer"), said("wrong")]
    if answers:
        parts += [head("refuted"), said("refuted"), *shown.after, head("spoken"), said("spoken")]
        parts += [head("points"), _points(name, tongue)]
    return [*parts, head("follow_ups"), f"<ul>{follow_ups}</ul>"]


def _points(name: str, tongue: str) -> str:
    points = (f"<li>{as_html(point)}</li>" for point in entry(f"{name}.points", tongue=tongue))
    return f'<ul class="box">{"".join(points)}</ul>'


def _shown(path: Path, tongue: str) -> dict[str, Shown]:
    """{question's id: what its notebook shows of it}."""
    found: dict[str, Shown] = {}
    name, predicted = "", False
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        kinds = {tag.partition(":")[0] for tag in cell["metadata"].get("tags", ())}
        if heading := course.HEADING.match(source):
            name, predicted = heading[1], False
            found[name] = Shown([], [])
        predicted |= "p" in kinds
        if kinds & {"e", "f", "x"}:
            name = ""  # the exercise and the end have pictures of their own
        if name and not predicted:
            found[name].before.extend(map(as_html, LISTING.findall(source)))
        stills = (_still(output.get("data", {}), tongue) for output in cell.get("outputs", ()))
        if name:
            (found[name].after if predicted else found[name].before).extend(filter(None, stills))
    return found


def _still(data: Mapping[str, Any], tongue: str) -> str:
    """A picture, or a table, that a cell shows; "" for something else."""
    if "image/png" in data:
        chosen = data.get(CHINESE_PNG) if tongue == "zh" else None
        picture = "".join(chosen or data["image/png"])
        return f'<img alt="" src="data:image/png;base64,{picture}">'
    text = "".join(data.get("text/markdown", ""))
    if not text.startswith("|"):
        return ""
    parts = re.split(r"( *(?:(?<!\\)\||\n) *)", text)  # cells, and what is between them
    return as_html("".join(phrase(part, tongue=tongue) for part in parts))


def as_pdf(page: str) -> bytes:
    """`page`, HTML, as PDF, printed by a Chromium that is installed here. `InputError` where none is."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise InputError(
            "a PDF is printed by Chromium, and there is none: give a file that ends in .html, and print it from a browser"
        )
    with tempfile.TemporaryDirectory(prefix="simlab-handout-") as name:
        source, target = Path(name) / "handout.html", Path(name) / "handout.pdf"
        source.write_text(page, encoding="utf-8")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
        command += [f"--user-data-dir={name}/profile", f"--print-to-pdf={target}", source.as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PRINT_S)
        except subprocess.TimeoutExpired as error:
            raise InputError(f"{browser} printed no PDF within {PRINT_S} s") from error
        if not target.exists():
            raise InputError(f"{browser} printed no PDF: {done.stderr.strip().splitlines()[-1:]}")
        return target.read_bytes()
