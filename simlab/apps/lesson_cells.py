"""What the cells of a lesson show, all in one place to import from: the form of a prediction, an exercise and its verdict, the end
of a question, and the choice of the language."""

import html
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from IPython.display import HTML, display
from markdown_it import MarkdownIt

from simlab.apps.cells import say
from simlab.apps.held import after, draw_in_language
from simlab.apps.screen import leaving, say_what_is_missing, session, show
from simlab.errors import InputError
from simlab.lessons import book, course, progress
from simlab.lessons.exercise import Asked, Verdict
from simlab.lessons.prediction import Choice, Prediction, Value, options
from simlab.lessons.words import (
    LANGUAGES,
    entry,
    has,
    language,
    rendered,
    set_language,
    shows_solutions,
    word,
)

__all__ = [
    "Guess",
    "Task",
    "after",
    "closing",
    "exercise",
    "figures",
    "for_class",
    "predict",
    "tongue",
]
_APART = ".simlab-compared th, .simlab-compared td { padding: 0 0.8em }"  # a widget has no style for tables
NAMES = {"en": "English", "zh": "中文"}


def tongue(first: str | None = None) -> None:
    """Show the choice of the language. It changes everything that the lesson's cells show, but a
    picture that is drawn already stays as it is.

    first: the language to begin with, "en" or "zh"; None: the learner's.
    """
    if first:
        set_language(first)
    draw_in_language()
    say_what_is_missing()
    if rendered():
        return
    choice = widgets.ToggleButtons(
        options=[(NAMES[name], name) for name in LANGUAGES],
        value=language(),
        style={"button_width": "6em"},
    )

    def choose(change: Any) -> None:
        set_language(change.new)
        draw_in_language()
        session().retell()

    choice.observe(choose, names="value")
    leaving(str, choice, "page")


def for_class(tongue: str, *, solutions: bool = True) -> None:
    """How a class works with the notebooks of this folder: in the language "en" or "zh", with solutions to
    look at or without, and with what is answered kept beside the notebooks, to be handed in with them."""
    set_language(tongue)
    os.environ["SIMLAB_SOLUTIONS"] = "shown" if solutions else "hidden"
    os.environ["SIMLAB_PROGRESS"] = str(Path.cwd() / "progress.json")


def predict(identifier: str) -> "Guess":
    """Show what a question asks before it is answered, and return the learner's `Guess`."""
    guess = Guess(book.prediction(identifier))
    guess.show()
    return guess


class Guess:
    """What a learner predicts: a form that is empty until it is filled in."""

    def __init__(self, asked: Prediction) -> None:
        self.asked = asked
        self.inputs: dict[str, widgets.ValueWidget] = {}

    def show(self) -> None:
        """Show the form; in a copy that is made for reading, the text alone."""
        if rendered():
            fields = "".join(
                f"<li>{_inline(self.asked.label(name))}</li>" for name in self.asked.fields
            )
            head = f"<b>{word('form.predict')}</b>"
            display(HTML(head + _in_both(self.asked.asks) + f"<ul>{fields}</ul>"))
            return
        self.said = widgets.HTML()
        self.box = widgets.VBox(layout=widgets.Layout(border="1px solid #888", padding="8px"))
        self.box.add_class("simlab-prediction")
        self._fill()
        _follow(lambda: self._fill())
        leaving(self._left, self.box)

    def _left(self) -> str:
        """What was asked, and what was committed."""
        kept = self.asked.committed() or {}
        fields = "".join(
            f"<li>{_inline(self.asked.label(name))}: {self.asked.text(name, kept.get(name))}</li>"
            for name in self.asked.fields
        )
        head = f"<b>{word('form.predict')}</b>"
        return f"{head}{as_html(self.asked.asks())}<ul>{fields}</ul>"

    def _fill(self) -> None:
        """Make the form anew, in the learner's language, with what stands in it."""
        kept = self.asked.committed()
        entered = kept if kept else {name: field.value for name, field in self.inputs.items()}
        self.inputs = {
            name: self._field(name, entered.get(name), kept) for name in self.asked.fields
        }
        rows = []
        for name, field in self.inputs.items():
            label = widgets.HTML(
                _inline(self.asked.label(name)), layout=widgets.Layout(width="22em")
            )
            unit = widgets.Label(self.asked.unit(name))
            rows.append(widgets.HBox([label, field, unit]))
        title = f"<b>{word('form.predict')}</b>{as_html(self.asked.asks())}"
        kept_as = "form.kept_own" if self.asked.own else "form.kept"
        self.said.value = word(kept_as) if kept else ""
        self.box.children = (
            widgets.HTML(title),
            *rows,
            widgets.HBox(self._buttons(kept)),
            self.said,
        )

    def _field(self, name: str, value: Any, kept: Any) -> widgets.ValueWidget:
        if isinstance(self.asked.fields[name], Choice):
            pairs = [(f"– {word('form.choose')} –", ""), *options(self.asked, name)]
            field = widgets.Dropdown(options=pairs, value=value or "", disabled=bool(kept))
            # as wide as the longest option
            field.layout = widgets.Layout(width="max-content", min_width="12em")
        else:
            text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
            field = widgets.Text(text, disabled=bool(kept))
            field.layout.width = "12em"
        return field

    def _buttons(self, kept: Any) -> list[widgets.Button]:
        if kept:
            again = widgets.Button(description=word("form.again"), layout=_wide())
            again.on_click(lambda _: self._again())
            return [again]
        commit = widgets.Button(
            description=word("form.commit"), button_style="primary", layout=_wide()
        )
        commit.on_click(lambda _: self._commit())
        skip = widgets.Button(description=word("form.skip"), layout=_wide())
        skip.on_click(lambda _: self._skip())
        return [commit, skip]

    def _commit(self) -> None:
        try:
            self.commit(**{name: str(field.value) for name, field in self.inputs.items()})
        except InputError as error:
            self.said.value = f"<b>{html.escape(str(error))}</b>"
            return

    def commit(self, **texts: str) -> None:
        """Commit a prediction, {field: text}, as the form's button does. `InputError` for an empty
        or unreadable field."""
        self.asked.commit(texts)
        session().release(self.asked.id)
        session().retell()

    def _skip(self) -> None:
        self.asked.skip()
        session().release(self.asked.id)

    def _again(self) -> None:
        self.asked.forget()
        session().hold_again(self.asked.id)
        self.inputs = {}
        session().retell()

    def hold_back(self) -> None:
        """Hold back what the rest of this cell shows until the prediction is committed."""
        after(self.asked)

    def compare(self, **found: Mapping[str, Value]) -> None:
        """Show the prediction beside what was found, and their ratio.

        found: by source (counted, closed_form, simulated, predicted, measured), {field: value} in
        the unit that the field has.
        """

        def rows() -> str:
            compared = self.asked.compared(found)
            self.asked.show_found(found)
            return table(compared)

        show(rows)


def exercise(identifier: str | Asked) -> "Task":
    """Show a question's exercise, its hints and its solution, folded, and return the `Task`. It is held
    back until the question's prediction is committed.

    identifier: a question's id, or an exercise that another package, or its teacher, defines.
    """
    asked = book.exercise(identifier) if isinstance(identifier, str) else identifier
    _hold(asked.id)
    show(lambda: _exercise_html(asked))
    return Task(asked)


class Task:
    """An exercise that waits for the learner's function."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def check(self, attempt: Callable[..., Any]) -> None:
        """Judge a function, show the verdict, and keep whether it solves the exercise. A stub that
        returns nothing is no try, nor is one that is as the lesson's cell came."""
        verdict = self.asked.judge(attempt)
        if verdict.counts and not _untouched(self.asked.id, attempt):
            progress.keep_try(self.asked.id, verdict.solved, book.version(self.asked.id))
        display(HTML(_verdict_html(verdict)))


def _untouched(identifier: str, attempt: Callable[..., Any]) -> bool:
    try:
        return course.untouched(identifier, inspect.getsource(attempt))
    except (OSError, TypeError):  # it has no source
        return False


def closing(identifier: str) -> None:
    """Show what is left of a question: the takeaway, the answer in 15 and in 60 seconds, the
    common wrong answer and what refutes it, five points to tick, and follow-up questions. All of it
    is held back until the question's prediction is committed."""
    _hold(identifier)
    show(lambda: _closing_html(identifier))
    if rendered():
        return
    kept = progress.load()["points"].get(identifier)
    ticked = kept if isinstance(kept, list) else []
    boxes = [
        widgets.Checkbox(at in ticked, description=text, indent=False, layout=_whole())
        for at, text in enumerate(entry(f"{identifier}.points"))
    ]
    title = widgets.HTML()

    def keep(_: Any) -> None:
        said = [at for at, box in enumerate(boxes) if box.value]
        progress.keep("points", identifier, said)
        again()

    def name() -> None:
        title.value = f"<b>{word('form.points')}</b>"
        for box, text in zip(boxes, entry(f"{identifier}.points")):
            box.description = text

    def left() -> str:
        marks = ("☑" if box.value else "☐" for box in boxes)
        texts = entry(f"{identifier}.points")
        listed = "".join(f"<li>{mark} {_inline(text)}</li>" for mark, text in zip(marks, texts))
        return f"<b>{word('form.points')}</b><ul style='list-style: none'>{listed}</ul>"

    name()
    _follow(name)
    again = leaving(left, widgets.VBox([title, *boxes]))
    for box in boxes:
        box.observe(keep, names="value")
    show(lambda: _follow_ups_html(identifier))


def figures(identifier: str, **found: float) -> None:
    """Hold what a cell found against the figures of its question.

    `AssertionError` for one that is off by more than its tolerance, unless a clock measured it; `InputError`
    for a name that the question has no figure of.
    """
    expected, disturbed = book.figures().get(identifier, {}), False
    for name, value in found.items():
        if name not in expected:
            raise InputError(f"{identifier} has no figure {name!r}, only {', '.join(expected)}")
        right = expected[name]
        if not right.holds(value):
            assert right.measured, f"{identifier}: {name} is {value:g}, not {right.value:g}"
            disturbed = True
    if disturbed:
        say("The order did not hold here, for something else ran, too.")


# what is shown
# -----------------------------------------------------------------------------------------------


def _hold(identifier: str) -> None:
    """Hold back what the cell shows, where the question asks for a prediction."""
    if identifier in book.predictions():
        after(identifier)


def _follow(change: Callable[[], None]) -> None:
    session().retold.append(change)


def table(rows: list[list[str]]) -> str:
    """A table as HTML, from a head and rows of plain text: numbers from the second column on."""
    lines = (rows[0], ["---", *["--:"] * (len(rows[0]) - 1)], *rows[1:])
    body = as_html("\n".join("| " + " | ".join(line) + " |" for line in lines))
    return f"<style>{_APART}</style><div class='simlab-compared'>{body}</div>"


def _both(key: str) -> str:
    """A text as HTML, in the learner's language; in a copy for reading, in both."""
    return _in_both(lambda tongue: word(key, tongue=tongue))


def _in_both(text: Callable[[str], str]) -> str:
    """`_both` of a text that a function has in each language."""
    return _once(map(text, _tongues()))


def _tongues() -> tuple[str, ...]:
    """The learner's language; in a copy for reading, both."""
    return LANGUAGES if rendered() else (language(),)


def _once(texts: Iterable[str]) -> str:
    """Texts as HTML; one that is the same in both languages, once."""
    return "".join(dict.fromkeys(map(as_html, texts)))


def as_html(text: str) -> str:
    """Markdown as HTML; HTML in it is shown as it stands."""
    return MarkdownIt("commonmark", {"html": False}).enable("table").render(text)


def _inline(text: str) -> str:
    return MarkdownIt("commonmark", {"html": False}).renderInline(text)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>{body}</details>"


def _code(text: str) -> str:
    return f"<pre><code>{html.escape(text)}</code></pre>"


def _exercise_html(asked: Asked) -> str:
    level = word("form.level", level=asked.level), word(f"form.levels.{asked.level}")
    head = f"<b>{word('form.exercise')} {asked.id}</b> ({level[0]}, {level[1]})"
    each = zip(*map(asked.hints, _tongues()))
    hints = (_folded(word("form.hint", number=at), _once(its)) for at, its in enumerate(each, 1))
    text = asked.solution_text() if shows_solutions() else ""
    solution = _folded(word("form.solution"), _code(text)) if text else ""
    return head + _in_both(asked.text) + "".join(hints) + solution


def _verdict_html(verdict: Verdict) -> str:
    mark = "✓" if verdict.solved else "✗"
    return f"<div class='simlab-verdict'><b>{mark}</b> {_inline(verdict.text)}</div>"


def _closing_html(identifier: str) -> str:
    parts = [
        f"<b>{word('form.takeaway')} ({identifier})</b>" + _both(f"{identifier}.takeaway"),
        f"<b>{word('form.headline')}</b>" + _both(f"{identifier}.headline"),
        _folded(f"{word('form.spoken')} ({identifier})", _both(f"{identifier}.spoken")),
        f"<b>{word('form.wrong_answer')}</b>" + _both(f"{identifier}.wrong"),
        f"<b>{word('form.refuted')}</b>" + _both(f"{identifier}.refuted"),
    ]
    if rendered():
        points = (_both(f"{identifier}.points.{at}") for at in range(1, 6))
        listed = "".join(f"<li>{point}</li>" for point in points)
        parts += [f"<b>{word('form.points')}</b><ul>{listed}</ul>", _follow_ups_html(identifier)]
    return "".join(parts)


def _follow_ups_html(identifier: str) -> str:
    parts = [f"<b>{word('form.follow_ups')}</b>"]
    for at in range(1, len(entry(f"{identifier}.follow_ups")) + 1):
        key = f"{identifier}.follow_ups.{at}"
        code = book.tries().get(key)
        shown = f"<p>{word('form.try_it')}:</p>" + _code(code) if code else ""
        how = _both(f"{key}.try") if has(f"{key}.try") else ""
        answer = _both(f"{key}.answer") + how + shown
        parts.append(_both(f"{key}.question") + _folded(word("form.answer"), answer))
    return "".join(parts)


def _wide() -> widgets.Layout:
    return widgets.Layout(width="auto")


def _whole() -> widgets.Layout:
    return widgets.Layout(width="calc(100% - 4px)")  # a widget has margins of 2 px
