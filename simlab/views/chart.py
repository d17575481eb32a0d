"""Pictures as data: axes and marks, which every renderer draws alike.

The front end draws a `Chart` in JupyterLab and on the page, matplotlib draws it as a still. A chart
says everything that is drawn, in both languages, so that a test can hold a browser's picture against
it, and so that its legend is exactly what it shows: one entry for each name among its marks.

A colour is "#RRGGBB", "#RRGGBBAA" where something shines through, or a word of a theme in
`language.json` ("ink", "muted", "cap", "grid", "background", "waiting"); a pattern is one of PATTERNS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from simlab.errors import InputError

Symbol = Literal["circle", "ring", "diamond", "triangle", "cross"]
PATTERNS = ("plain", "striped", "dotted", "hatched")


class MissingLibrary(InputError):
    """A plotting library is not installed."""


class Words(NamedTuple):
    """A text for people, in English and in Chinese."""

    en: str
    zh: str


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    label: what it counts, with the unit.
    scale: 'linear', 'log2' or 'log10'; positions are numbers on each of them.
    least, most: the interval that is shown; None: as far as the marks reach.
    ticks: the positions that are labelled; None: the renderer's choice.
    names: the text at each of `ticks`; None: the number itself.
    down:  whether it grows downward, as rows of a table do.
    """

    label: Words
    scale: Literal["linear", "log2", "log10"] = "linear"
    least: float | None = None
    most: float | None = None
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None
    down: bool = False


@dataclass(frozen=True)
class Line:
    """A line through points. `tips` say what each point is; `dash` is (drawn, left out, ...) in px.

    stepped: whether the value of a point stays until the next one, as memory does.
    """

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    name: Words | None = None
    dash: tuple[int, ...] | None = None
    stepped: bool = False
    tips: Sequence[Words] | None = None


@dataclass(frozen=True)
class Area:
    """What lies between two lines, stepped or straight, such as one category of a stack."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: str
    name: Words | None = None
    pattern: str = "plain"
    stepped: bool = True
    tips: Sequence[Words] | None = None


@dataclass(frozen=True)
class Boxes:
    """Rectangles of one kind: bars, parts of bars, cells of a matrix.

    x0, x1, y0, y1: the edges of each. `labels` are written inside a box where they fit, `tips` say
    what it is. `outline` is the colour of its border, None for none. `opens` is what a click on each
    gives the control of the chart, '' for nothing.
    """

    x0: Sequence[float]
    x1: Sequence[float]
    y0: Sequence[float]
    y1: Sequence[float]
    colour: str
    name: Words | None = None
    pattern: str = "plain"
    outline: str | None = None
    labels: Sequence[str] | None = None
    tips: Sequence[Words] | None = None
    opens: Sequence[str] | None = None

    @classmethod
    def at(
        cls,
        places: Sequence[tuple[float, float, float, float]],
        colour: str,
        name: Words | None = None,
        **options: Any,
    ) -> "Boxes":
        """The boxes at `places`, (x0, x1, y0, y1) of each; `options` are the other fields."""
        x0, x1, y0, y1 = zip(*places) if places else ((), (), (), ())
        return cls(x0, x1, y0, y1, colour, name, **options)


@dataclass(frozen=True)
class Dots:
    """Points of one kind."""

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    name: Words | None = None
    symbol: Symbol = "circle"
    radius: float = 5
    labels: Sequence[str] | None = None
    tips: Sequence[Words] | None = None


@dataclass(frozen=True)
class Arrows:
    """Arrows from points to points, slightly bent so that there and back lie apart."""

    x0: Sequence[float]
    y0: Sequence[float]
    x1: Sequence[float]
    y1: Sequence[float]
    colour: str
    name: Words | None = None
    labels: Sequence[str] | None = None
    tips: Sequence[Words] | None = None


@dataclass(frozen=True)
class Rule:
    """A line across the whole picture, such as a GPU's memory: at a height `y` or a position `x`."""

    colour: str
    name: Words | None = None
    x: float | None = None
    y: float | None = None
    dash: tuple[int, ...] | None = (6, 4)


Mark = Line | Area | Boxes | Dots | Arrows | Rule


@dataclass(frozen=True)
class Chart:
    """One picture: a title, two axes, and marks, the first of which lies lowest.

    key:    a name for tests and for renderers that keep a picture while its data change.
    height: CSS pixels of the plot with its axes, without title and legend.
    square: whether a unit is as long on both axes, as a matrix wants.
    bare:   whether axes are left out, as for a ring of ranks.
    wide:   whether it is as wide as all columns where pictures stand in several.
    timed:  whether x is time in milliseconds, so that the front end can play it.
    control: the control of the explorer that boxes with `opens` set, '' for none.
    """

    key: str
    title: Words
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    height: int = 240
    square: bool = False
    bare: bool = False
    wide: bool = False
    timed: bool = False
    control: str = ""

    def legend(self) -> list[tuple[Words, list[Mark]]]:
        """[(name, marks of that name)], in the order in which the names first occur."""
        found: dict[Words, list[Mark]] = {}
        for mark in self.marks:
            if mark.name is not None:
                found.setdefault(mark.name, []).append(mark)
        return list(found.items())

    def plotly(self, *, tongue: str = "en", theme: str = "light") -> Any:
        """The chart as a Figure of plotly, in a language ("en" or "zh") and a theme ("light" or
        "dark"). Raises `MissingLibrary` where plotly is not installed."""
        return plotly_figure([self], tongue=tongue, theme=theme)

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists, as JSON has them; each mark says its kind in "mark"."""
        marks = [{"mark": type(mark).__name__.lower()} | _plain(mark) for mark in self.marks]
        return {"picture": "chart"} | _plain(self) | {"marks": marks}


def plotly_figure(pictures: Sequence[Chart], *, tongue: str = "en", theme: str = "light") -> Any:
    """`pictures` below each other as one Figure of plotly, see `Chart.plotly`."""
    try:
        from simlab.views.interactive.figure import figure
    except ImportError as error:
        raise MissingLibrary("a plotly figure needs plotly: pip install plotly") from error
    return figure(pictures, tongue=tongue, theme=theme)


def write_page(path: Path, figure: Any) -> None:
    """Write a Figure of plotly as a page with plotly.js in it, which needs no network."""
    config = {"responsive": True, "displaylogo": False}
    figure.write_html(path, include_plotlyjs=True, config=config)


def _plain(item: Any) -> dict[str, Any]:
    return {name: _value(value) for name, value in asdict(item).items()}


def _value(value: Any) -> Any:
    if isinstance(value, Words):
        return value._asdict()
    if isinstance(value, Mapping):
        return {name: _value(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_value(part) for part in value]
    return value
