"""It holds back what a cell shows until the learner has committed a prediction.

`after("b09")` on the first line of a cell lets the cell run at once, for later cells need its
names, and keeps what it prints and draws. What was kept appears in the cell's place as soon as the
prediction is committed, or the learner asks to see it without one.
"""

import io
import json
import sys
from base64 import b64decode, b64encode
from contextlib import suppress
from functools import partial
from typing import Any

import ipywidgets as widgets
from IPython import get_ipython
from IPython.core.displayhook import CapturingDisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.display import display

from simlab.apps.screen import HTML, leaving, session, still_html
from simlab.lessons import book
from simlab.lessons.phrases import phrase
from simlab.lessons.prediction import Prediction
from simlab.lessons.words import language, rendered, word
from simlab.views.chart import Dots, Line, MissingLibrary, Rule
from simlab.views.language import CHINESE_PNG

FIGURE, PICTURE = ("matplotlib.figure", "Figure"), ("simlab.views.still.picture", "Picture")
PLOTLY = "application/vnd.plotly.v1+json"
CURVES = Line | Dots | Rule
SAID = ("text", "name", "legendgroup", "ticktext")
"""The parts of a figure of plotly that a reader reads."""


def after(identifier: str | Prediction) -> None:
    """Hold back what the rest of this cell shows until the prediction `identifier`, a lesson's or one
    of one's own, is committed.

    Outside of a notebook, and in a copy that is made for reading, nothing is held back.
    `InputError` where no lesson asks for that prediction.
    """
    asked = book.prediction(identifier) if isinstance(identifier, str) else identifier
    shell = get_ipython()
    if shell is None or rendered() or asked.id in session().told or asked.committed():
        return
    if session().holding:  # this cell is held back already
        return
    _Tape(asked.id, shell).begin()


def draw_in_language() -> None:
    """From now on have the notebook show matplotlib's figures with their texts in the learner's
    language, and curves as figures of plotly, too; in a copy for reading, with a second picture for
    Chinese readers."""
    shell = get_ipython()
    if shell is None:
        return
    formatter = shell.display_formatter.ipython_display_formatter
    for place in (FIGURE, PICTURE):
        formatter.pop(".".join(place), None)
    if rendered():
        formatter.for_type_by_name(*FIGURE, _draw_in_both)
        return
    formatter.for_type_by_name(*PICTURE, _draw_to_zoom)
    if language() == "zh":
        formatter.for_type_by_name(*FIGURE, _draw_in_chinese)


def _draw_to_zoom(figure: Any) -> None:
    """Curves as a figure of plotly, where that is installed, and as HTML with the still for where nothing
    shows such figures: beside "image/png" plotly's own extension of JupyterLab shows that. Other pictures
    as they are drawn."""
    png = _png(_chinese(figure) if language() == "zh" else figure)
    data: dict[str, Any] = {"image/png": png, "text/plain": repr(figure)}
    charts = figure.charts
    if charts and all(isinstance(mark, CURVES) for chart in charts for mark in chart.marks):
        with suppress(MissingLibrary):
            drawn = json.loads(figure.plotly(tongue=language()).to_json())
            still = still_html(b64encode(png).decode())
            data = {PLOTLY: _in_language(drawn), HTML: still, "text/plain": repr(figure)}
    display(data, raw=True)


def _in_language(item: Any, key: str = "") -> Any:
    """A figure of plotly with the lessons' words for its texts."""
    if isinstance(item, dict):
        return {name: _in_language(value, name) for name, value in item.items()}
    if isinstance(item, list):
        return [_in_language(value, key) for value in item]
    return phrase(item, tongue=language()) if isinstance(item, str) and key in SAID else item


# here and below: what needs matplotlib is imported where there is a figure
def _draw_in_chinese(figure: Any) -> None:
    display({"image/png": _png(_chinese(figure)), "text/plain": repr(figure)}, raw=True)


def _chinese(figure: Any) -> Any:
    """`figure` with Chinese texts: its own ones, and those that the lessons' words have for the
    others."""
    from simlab.views.still.wording import say_in_chinese

    say_in_chinese(figure, partial(phrase, tongue="zh"))
    return figure


def _draw_in_both(figure: Any) -> None:
    from simlab.views.still.picture import with_palette

    english = with_palette(_png(figure))
    chinese = b64encode(with_palette(_png(_chinese(figure)))).decode()
    data = {"image/png": english, CHINESE_PNG: chinese, "text/plain": repr(figure)}
    display(data, raw=True)


def _png(figure: Any) -> bytes:
    png = get_ipython().display_formatter.formatters["image/png"](figure)
    return b64decode(png) if isinstance(png, str) else png  # pyplot's backend has text already


class _Words(io.TextIOBase):
    """A standard output that writes into a list of outputs, in order with what is displayed."""

    def __init__(self, outputs: list[dict[str, Any]]) -> None:
        self.outputs = outputs

    def write(self, text: str) -> int:
        last = self.outputs[-1] if self.outputs else {}
        if last.get("output_type") == "stream":
            last["text"] += text
        else:
            self.outputs.append({"output_type": "stream", "name": "stdout", "text": text})
        return len(text)


class _Tape:
    """What one cell shows, kept from `begin` to the end of the cell."""

    def __init__(self, identifier: str, shell: Any) -> None:
        self.identifier, self.shell = identifier, shell
        self.outputs: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Take the place of the notebook's display until the cell has run."""
        self.publisher, self.hook, self.stdout = self.shell.display_pub, sys.displayhook, sys.stdout
        self.shell.display_pub = CapturingDisplayPublisher()
        self.shell.display_pub.outputs = self.outputs
        sys.displayhook = CapturingDisplayHook(shell=self.shell, outputs=self.outputs)
        sys.stdout = _Words(self.outputs)
        self.shell.events.register("post_run_cell", self._end)
        session().holding = True

    def _end(self, result: Any) -> None:
        self.shell.events.unregister("post_run_cell", self._end)
        session().holding = False
        self.shell.display_pub, sys.displayhook, sys.stdout = self.publisher, self.hook, self.stdout
        note, place = widgets.HTML(), widgets.Output()

        def tell() -> None:
            note.value = f"<i>{word('form.held', id=self.identifier)}</i>"
            if note.layout.display == "none":
                shown = (kept for kept in _latest(self.outputs) if kept.get("data") != {})
                place.outputs = tuple(map(_as_output, shown))

        def show() -> None:
            note.layout.display = "none"
            tell()

        tell()
        session().retold.append(tell)
        session().waiting.setdefault(self.identifier, []).append(show)
        leaving(
            lambda: f"<p>{word('form.held', id=self.identifier)}</p>", widgets.VBox([note, place])
        )


def _latest(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs with each display once, as it was updated last."""
    found: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    for kept in outputs:
        name = (kept.get("transient") or {}).get("display_id")
        if kept.get("update") and name in places:
            found[places[name]] = kept
            continue
        if name:
            places[name] = len(found)
        found.append(kept)
    return found


def _as_output(kept: dict[str, Any]) -> dict[str, Any]:
    """A kept output as a notebook has it, with the words of the language."""
    if kept.get("output_type") == "stream":
        return kept
    said = session().texts.get((kept.get("transient") or {}).get("display_id", ""))
    if said is not None:
        kept = kept | {"data": said()}
    # a kernel sends pictures as base64, and what is kept here was not sent yet
    data = {
        kind: b64encode(value).decode() if isinstance(value, bytes) else value
        for kind, value in kept["data"].items()
    }
    shown = {"data": data, "metadata": kept.get("metadata") or {}}
    return {"output_type": "display_data", **shown}
