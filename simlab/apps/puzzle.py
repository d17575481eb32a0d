"""The puzzle as a board: a text box for the program, a verdict, a picture."""

import html
from base64 import b64encode
from typing import Any

import ipywidgets as widgets

from simlab.studies.puzzle import Puzzle
from simlab.views import timeline


class PuzzleBoard(widgets.VBox):
    """Write a program, one rank per line, and press the button: `simlab.studies.puzzle.Puzzle`
    judges it."""

    def __init__(self, puzzle: Puzzle, text: str | None = None) -> None:
        self.puzzle = puzzle
        layout = widgets.Layout(width="100%", height=f"{1.6 * puzzle.ranks + 1:.1f}em")
        self.text = widgets.Textarea(puzzle.start if text is None else text, layout=layout)
        self.button = widgets.Button(description="check", button_style="primary")
        self.verdict = widgets.HTML()
        self.picture = widgets.Image(format="png")
        self.button.on_click(self._check)
        self._check()
        super().__init__([self.text, self.button, self.verdict, self.picture])

    def _check(self, _: Any = None) -> None:
        verdict = self.puzzle.check(self.text.value)
        self.verdict.value = f"<b>{html.escape(verdict.text)}</b>"
        self.picture.value = timeline(verdict.trace)._repr_png_() if verdict.trace else b""
        self.picture.layout.display = None if verdict.trace else "none"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget, and the last picture for where no widget can live."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if self.picture.value:
            bundle["image/png"] = b64encode(self.picture.value).decode()
        return bundle
