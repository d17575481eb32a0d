"""What is given back to a learner: a page with what was right, what is said of the rest, and a hint."""

import re
from collections.abc import Iterable, Mapping
from html import escape

from simlab.lessons.exercise import Exercise, hints_of
from simlab.lessons.teaching.grade import Mark
from simlab.lessons.words import has, word

HINTED = ("wrong", "mistake", "ranks_wrong", "not_written")
"""Verdicts on which a hint helps."""
SIGNS = {True: "✓", False: "✗", None: "–"}


def feedback(
    who: str,
    marks: Iterable[Mark],
    left_out: Iterable[str],
    own: Mapping[str, Exercise],
    tongue: str,
) -> str:
    """The page of a learner as HTML, in "en" or "zh". left_out: lines on what of theirs could not be used;
    own: {id: exercise} of questions of one's own."""
    marks = [mark for mark in marks if mark["who"] == who]
    parts = [f"<h1>{escape(who)}: {sum(mark['solved'] is True for mark in marks)} ✓</h1>"]
    for mark in marks:
        name = mark["question"]
        title = f"{name} · {word(f'{name}.title', tongue=tongue)}" if has(f"{name}.title") else name
        parts.append(
            f"<h2>{SIGNS[mark['solved']]} {escape(title)}</h2><p>{_text(mark['text'])}</p>"
        )
        hints = own[name].hints(tongue) if name in own else hints_of(name, tongue) if name else []
        if hints and mark["verdict"] in HINTED:
            head = word("form.hint", tongue=tongue, number=1)
            parts.append(f"<p><b>{escape(head)}:</b> {_text(hints[0])}</p>")
    said = tuple(mark["text"] for mark in marks)
    head = word("form.left_out", tongue=tongue)
    parts += [f"<p>{head}{_text(line)}</p>" for line in left_out if not line.endswith(said)]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>{escape(who)}</title>'
    return f'<!doctype html><html lang="{tongue}"><head>{head}</head><body>{body}</body></html>\n'


def _text(text: str) -> str:
    """Text as HTML, with what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
