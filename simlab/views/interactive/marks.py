"""It turns the marks of a `Chart` into plotly's traces and shapes."""

from collections.abc import Iterator, Sequence
from html import escape
from math import hypot, isnan
from typing import Any, NamedTuple

from simlab.views.chart import Area, Arrows, Boxes, Dots, Line, Mark, Rule, Words
from simlab.views.language import LANGUAGE, said, text_colour

PATTERNS = {"plain": "", "striped": "/", "dotted": ".", "hatched": "\\"}
"""{pattern of a chart: plotly's}."""
SYMBOLS = {
    "circle": "circle",
    "ring": "circle-open",
    "diamond": "diamond",
    "triangle": "triangle-up",
    "cross": "x-thin-open",
}
LINE_WIDTH, RULE_WIDTH, EDGE_WIDTH = 2, 1.5, 0.7
LABEL_SIZE = 11
BEND = 0.18
"""How far an arrow bends, as a fraction of its length."""
Trace = dict[str, Any]
"""A trace of plotly: its type and its attributes."""


class Look(NamedTuple):
    """The language and the theme of a figure."""

    tongue: str
    theme: str

    def colour(self, colour: str) -> str:
        """`colour` as CSS has it; black could not be seen on a dark background."""
        colours = LANGUAGE["themes"][self.theme]
        if self.theme == "dark" and colour == LANGUAGE["themes"]["light"]["black"]:
            return str(colours["black"])
        its = str(colours.get(colour, colour))
        if len(its) == len("#RRGGBBAA"):
            *parts, opacity = (int(its[at : at + 2], 16) for at in (1, 3, 5, 7))
            return f"rgba({','.join(map(str, parts))},{opacity / 255:.3g})"
        return its

    def text(self, words: Words | str) -> str:
        """A text in the language, as plotly writes it: tags and ampersands are letters."""
        its = words if isinstance(words, str) else getattr(words, self.tongue)
        return escape(said(its, self.tongue), quote=False).replace("\n", "<br>")


def traces(mark: Mark, look: Look) -> Iterator[Trace]:
    """The traces of plotly that draw `mark`; a `Rule` has none, see `shape`. A mark without places
    has one that is nowhere, since the legend leaves out a trace without any."""
    if isinstance(mark, Boxes):
        yield _boxes(mark, look)
    elif isinstance(mark, Area):
        yield from _area(mark, look)
    elif isinstance(mark, Line):
        yield _line(mark, look)
    elif isinstance(mark, Dots):
        yield _dots(mark, look)
    elif isinstance(mark, Arrows):
        yield from _arrows(mark, look)


def shape(mark: Rule, look: Look) -> dict[str, Any]:
    """The line across a picture, without its axes."""
    line = {"color": look.colour(mark.colour), "width": RULE_WIDTH, "dash": _dash(mark.dash)}
    return {"type": "line", "line": line, "layer": "above"}


def _boxes(mark: Boxes, look: Look) -> Trace:
    fill = look.colour(mark.colour)
    labels = mark.labels or ()
    return {
        "type": "bar",
        "orientation": "h",
        "base": list(mark.x0) or [None],
        "x": [b - a for a, b in zip(mark.x0, mark.x1)] or [None],
        "y": [(a + b) / 2 for a, b in zip(mark.y0, mark.y1)] or [None],
        "width": [abs(b - a) for a, b in zip(mark.y0, mark.y1)],
        "marker": {
            "color": fill,
            "pattern": _pattern(mark, look),
            "line": {
                "width": 0 if mark.outline is None else EDGE_WIDTH,
                "color": fill if mark.outline is None else look.colour(mark.outline),
            },
        },
        "text": [look.text(label) for label in labels] or None,
        "textposition": "inside" if labels else "none",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"size": LABEL_SIZE, "color": text_colour(_opaque(mark, look))},
        **_told(mark.tips, look, len(mark.x0)),
    }


def _opaque(mark: Boxes, look: Look) -> str:
    """The "#RRGGBB" of a box: its colour, without what of it shines through."""
    colours = LANGUAGE["themes"][look.theme]
    return str(colours.get(mark.colour, mark.colour))[:7]


def _pattern(mark: Boxes | Area, look: Look) -> dict[str, Any]:
    """What is drawn on a filled shape: in the colour of the background, as in stills."""
    front = "hatch" if mark.colour == "waiting" else "background"
    return {
        "shape": PATTERNS[mark.pattern],
        "fillmode": "overlay",
        "fgcolor": look.colour(front),
        "bgcolor": look.colour(mark.colour),
        "size": 6,
        "solidity": 0.25,
    }


def _area(mark: Area, look: Look) -> Iterator[Trace]:
    """Its lower edge, which is not seen, and its upper one with the filling between them."""
    edge = {"mode": "lines", "line": {"width": 0, "shape": "hv" if mark.stepped else "linear"}}
    silent = {"hoverinfo": "skip", "showlegend": False}
    yield {"type": "scatter", "x": list(mark.x), "y": list(mark.low), **edge, **silent}
    yield {
        "type": "scatter",
        "x": list(mark.x),
        "y": list(mark.high),
        **edge,
        "fill": "tonexty",
        "fillcolor": look.colour(mark.colour),
        "fillpattern": _pattern(mark, look) if mark.pattern != "plain" else None,
        **_told(mark.tips, look, len(mark.x)),
    }


def _line(mark: Line, look: Look) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _broken(mark.x),
        "y": _broken(mark.y),
        "line": {
            "color": look.colour(mark.colour),
            "width": LINE_WIDTH,
            "dash": _dash(mark.dash),
            "shape": "hv" if mark.stepped else "linear",
        },
        **(_told(mark.tips, look, len(mark.x)) if mark.tips else _number(mark.name, look)),
    }


def _broken(values: Sequence[float]) -> list[float | None]:
    return [None if isnan(value) else value for value in values]


def _dash(dash: tuple[int, ...] | None) -> str:
    return "solid" if dash is None else ",".join(f"{part}px" for part in dash)


def _dots(mark: Dots, look: Look) -> Trace:
    colour = look.colour(mark.colour)
    labels, within = mark.labels or (), mark.radius >= LABEL_SIZE and mark.symbol == "circle"
    ink = text_colour(colour) if within and colour[0] == "#" else look.colour("ink")
    return {
        "type": "scatter",
        "mode": "markers+text" if labels else "markers",
        "x": list(mark.x),
        "y": list(mark.y),
        "marker": {
            "symbol": SYMBOLS[mark.symbol],
            "size": 2 * mark.radius,
            "color": colour,
            "line": {"width": 2 * (mark.symbol in ("ring", "cross")), "color": colour},
        },
        "text": [look.text(label) for label in labels] or None,
        "textposition": "middle center" if within else "top center",
        "textfont": {"size": LABEL_SIZE, "color": ink},
        "cliponaxis": False,
        **(_told(mark.tips, look, len(mark.x)) if mark.tips else _number(mark.name, look)),
    }


def _arrows(mark: Arrows, look: Look) -> Iterator[Trace]:
    """One line through all of them, with a point at the end of each, and the labels and tips at
    their middles."""
    x: list[float | None] = []
    y: list[float | None] = []
    sizes: list[float] = []
    middles: list[tuple[float, float]] = []
    for arrow in zip(mark.x0, mark.y0, mark.x1, mark.y1):
        points = _bent(*arrow)
        x += [*(point[0] for point in points), None]
        y += [*(point[1] for point in points), None]
        sizes += [*(0.0 for _ in points[1:]), 11.0, 0.0]
        middles.append(points[len(points) // 2])
    colour = look.colour(mark.colour)
    point = {"symbol": "arrow", "size": sizes, "angleref": "previous", "color": colour}
    yield {
        "type": "scatter",
        "mode": "lines+markers",
        "x": x,
        "y": y,
        "line": {"color": colour, "width": EDGE_WIDTH * 2},
        "marker": point | {"opacity": 1},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
    labels = mark.labels or ()
    if labels or mark.tips:
        yield {
            "type": "scatter",
            "mode": "markers+text" if labels else "markers",
            "x": [x for x, _ in middles],
            "y": [y for _, y in middles],
            "marker": {"size": LABEL_SIZE, "opacity": 0},
            "text": [look.text(label) for label in labels] or None,
            "textfont": {"size": LABEL_SIZE, "color": look.colour("ink")},
            "showlegend": False,
            **_told(mark.tips, look, len(middles)),
        }


def _bent(x0: float, y0: float, x1: float, y1: float, parts: int = 12) -> list[tuple[float, float]]:
    """The points of an arrow that bends to its right, so that there and back lie apart."""
    if not hypot(x1 - x0, y1 - y0):
        return [(x0, y0), (x1, y1)]
    x, y = (x0 + x1) / 2 - BEND * (y1 - y0), (y0 + y1) / 2 + BEND * (x1 - x0)
    shares = [at / parts for at in range(parts + 1)]
    return [
        (
            (1 - t) ** 2 * x0 + 2 * t * (1 - t) * x + t**2 * x1,
            (1 - t) ** 2 * y0 + 2 * t * (1 - t) * y + t**2 * y1,
        )
        for t in shares
    ]


def _told(tips: Sequence[Words] | None, look: Look, count: int) -> Trace:
    """What one reads above each of `count` places."""
    if not tips or not count:
        return {"hoverinfo": "skip"}
    return {"hovertext": [look.text(tip) for tip in tips], "hoverinfo": "text"}


def _number(name: Words | None, look: Look) -> Trace:
    head = f"{look.text(name)}<br>" if name is not None else ""
    return {"hovertemplate": f"{head}%{{x}}: %{{y:,.4~g}}<extra></extra>"}


def positions(mark: Mark, letter: str) -> list[float]:
    """Where `mark` is on the axis "x" or "y"."""
    found: list[float] = []
    for field in (letter, f"{letter}0", f"{letter}1", *(("low", "high") * (letter == "y"))):
        its = getattr(mark, field, None)
        values = its if isinstance(its, Sequence) else [] if its is None else [its]
        found += [value for value in values if not isnan(value)]
    return found
