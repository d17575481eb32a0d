"""It draws the curves of a lesson: quantities over one variable, in pictures beside each other."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from simlab.views.chart import Axis, Chart, Dots, Line, Mark, Rule, Symbol, Words
from simlab.views.language import LANGUAGE
from simlab.views.still.chart import charts
from simlab.views.still.picture import Panels, Picture

Scale = Literal["linear", "log2", "log10"]
INKS: list[str] = LANGUAGE["lines"]
DASHES: tuple[tuple[int, ...] | None, ...] = (None, (7, 4), (2, 3), (9, 3, 2, 3), (4, 2))
SYMBOLS: tuple[Symbol, ...] = ("circle", "diamond", "triangle", "ring", "cross")
"""Lines differ in these too, for readers who do not see their colours."""


class Curves(NamedTuple):
    """One picture of several lines over the same points.

    x, y:  what the axes count, with the units.
    lines: {name: value at each point}.
    names: the text at each point of the axis; None: the numbers.
    cap:   (name, value) of a line across, such as the memory of a GPU.
    """

    title: str
    x: str
    points: Sequence[float]
    y: str
    lines: Mapping[str, Sequence[float]]
    names: Sequence[str] | None = None
    cap: tuple[str, float] | None = None
    x_scale: Scale = "log2"
    y_scale: Scale = "linear"

    def chart(self) -> Chart:
        """It as a `Chart`, each line with a colour, a dash and a symbol of its own."""
        marks: list[Mark] = []
        for at, (name, values) in enumerate(self.lines.items()):
            kind = at % len(INKS)
            ink, dash, symbol = INKS[kind], DASHES[kind], SYMBOLS[kind]
            marks.append(Line(self.points, values, ink, _both(name), dash))
            marks.append(Dots(self.points, values, ink, _both(name), symbol, radius=3))
        if self.cap:
            marks.append(Rule("cap", _both(self.cap[0]), y=self.cap[1]))
        names = self.names or [f"{point:g}" for point in self.points]
        x = Axis(_both(self.x), self.x_scale, ticks=self.points, names=names)
        return Chart(self.title, _both(self.title), x, Axis(_both(self.y), self.y_scale), marks)


def curves(*pictures: Curves, ax: Panels | None = None) -> Picture | Panels:
    """Draw `pictures` side by side and return the Figure, or `ax`, which one draws on where it is
    given: one axes, or one for each picture."""
    return charts([picture.chart() for picture in pictures], columns=len(pictures), ax=ax)


def _both(text: str) -> Words:
    return Words(text, text)
