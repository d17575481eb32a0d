"""It draws the marks of a `Chart` on matplotlib's axes, and their handles in a legend."""

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from simlab.views.chart import Area, Arrows, Boxes, Chart, Dots, Line, Mark, Rule
from simlab.views.language import LANGUAGE, said, text_colour

HATCHES = {"plain": None, "striped": "////", "dotted": "...", "hatched": "\\\\\\\\"}
"""{pattern of a chart: matplotlib's}."""
SYMBOLS = {"circle": "o", "ring": "o", "diamond": "D", "triangle": "^", "cross": "x"}
THEME: dict[str, str] = LANGUAGE["themes"]["light"]
POINT = 0.75
"""A CSS pixel, which charts count in, in points."""
LINE_WIDTH, RULE_WIDTH = 1.8, 1.2
LABEL_SIZE = 7.5
PLATE_PAD = 1.2
"""The points around a text on a plate."""
MOST_HANDLES = 3
BEND = 0.18
"""How far an arrow bends, as a fraction of its length."""
ARROW_GAP = 7
"""The points between an arrow and the places that it goes from and to."""


def colour_of(colour: str) -> str:
    """The "#RRGGBB" of `colour`, which is one already or a word of the theme."""
    return THEME.get(colour, colour)


def filling(mark: Area | Boxes) -> dict[str, Any]:
    """The arguments of a filled shape; matplotlib draws a hatch in the colour of the edge."""
    return {
        "facecolor": colour_of(mark.colour),
        "edgecolor": THEME["hatch" if mark.colour == "waiting" else "background"],
        "hatch": HATCHES[mark.pattern],
        "linewidth": 0,
    }


def _line(mark: Line | Rule) -> dict[str, Any]:
    dash = "solid" if mark.dash is None else (0, tuple(POINT * part for part in mark.dash))
    width = LINE_WIDTH if isinstance(mark, Line) else RULE_WIDTH
    return {"color": colour_of(mark.colour), "linestyle": dash, "linewidth": width}


def _dots(mark: Dots) -> dict[str, Any]:
    colour = colour_of(mark.colour)
    face = THEME["background"] if mark.symbol == "ring" else colour
    return {"marker": SYMBOLS[mark.symbol], "markerfacecolor": face, "markeredgecolor": colour}


def text_on(fill: str) -> dict[str, Any]:
    """The arguments of a text on `fill`, with a rim of it."""
    return {
        "color": text_colour(fill),
        "path_effects": [withStroke(linewidth=3, foreground=fill)],
    }


def plate(fill: str, pattern: str) -> dict[str, Any]:
    """The arguments of a text in a shape of `pattern`, whose lines and dots would cross its letters: a
    plate in the colour of the shape behind it. None is needed where there is no pattern."""
    if pattern == "plain":
        return {}
    return {"bbox": {"facecolor": fill, "edgecolor": "none", "pad": PLATE_PAD}}


def draw_mark(axes: Axes, mark: Mark) -> None:
    """Draw `mark` on `axes`, without its labels."""
    if isinstance(mark, Boxes):
        corners = [
            [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
            for x0, x1, y0, y1 in zip(mark.x0, mark.x1, mark.y0, mark.y1)
        ]
        axes.add_collection(PolyCollection(corners, **filling(mark)))
        if mark.outline is not None:
            edge: dict[str, Any] = {"edgecolor": colour_of(mark.outline), "linewidth": 0.7}
            axes.add_collection(PolyCollection(corners, facecolor="none", **edge))
    elif isinstance(mark, Area):
        step: Any = "post" if mark.stepped else None
        axes.fill_between(mark.x, mark.low, mark.high, step=step, **filling(mark))
    elif isinstance(mark, Line):
        style: Any = "steps-post" if mark.stepped else "default"
        axes.plot(mark.x, mark.y, drawstyle=style, **_line(mark))
    elif isinstance(mark, Dots):
        size = 2 * POINT * mark.radius
        axes.plot(mark.x, mark.y, linestyle="none", markersize=size, clip_on=False, **_dots(mark))
    elif isinstance(mark, Arrows):
        _draw_arrows(axes, mark)
    elif mark.y is not None:
        axes.axhline(mark.y, **_line(mark))
    elif mark.x is not None:
        axes.axvline(mark.x, **_line(mark))


def _draw_arrows(axes: Axes, mark: Arrows) -> None:
    style: dict[str, Any] = {"color": colour_of(mark.colour), "arrowstyle": "-|>"}
    style |= {"mutation_scale": 11, "shrinkA": ARROW_GAP, "shrinkB": ARROW_GAP, "clip_on": False}
    for start, end in zip(zip(mark.x0, mark.y0), zip(mark.x1, mark.y1)):
        arrow = FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={BEND}", **style)
        arrow.set_in_layout(False)
        axes.add_artist(arrow)
        axes.update_datalim([start, end])


def handles(marks: Sequence[Mark]) -> tuple[Artist, ...]:
    """What stands before a name in a legend: a handle for each look of `marks`, at most three."""
    found: dict[tuple[Any, ...], Artist] = {}
    for mark in marks:
        if isinstance(mark, Area | Boxes):
            style = filling(mark)
            outline = mark.outline if isinstance(mark, Boxes) else None
            if outline is not None and style["hatch"] is None:
                style |= {"edgecolor": colour_of(outline), "linewidth": 0.7}
            found.setdefault((mark.colour, mark.pattern, outline), Patch(**style))
        elif isinstance(mark, Line | Rule):
            found.setdefault((mark.colour, mark.dash), Line2D([], [], **_line(mark)))
        elif isinstance(mark, Dots):
            style = _dots(mark) | {"linestyle": "none", "markersize": 7}
            found.setdefault((mark.colour, mark.symbol), Line2D([], [], **style))
        else:
            colour = colour_of(mark.colour)
            style = {"color": colour, "marker": ">", "markevery": [-1], "markersize": 5}
            found.setdefault((mark.colour, "arrow"), Line2D([], [], **style))
    return tuple(found.values())[:MOST_HANDLES]


def write_labels(axes: Axes, chart: Chart, tongue: str = "en") -> None:
    """Write the labels of the marks of `chart` where they fit, once the axes have their place.

    A box's label stands inside the box or not at all: boxes of one size are all labelled or none
    is. Another label is left out where it would lie over a label that is there already.
    """
    taken: list[Bbox] = []
    found = [(text, text.get_window_extent(), room) for text, room in _labels(axes, chart, tongue)]
    crowded = {
        _size(room)
        for _, extent, room in found
        if room and not (extent.width < room.width - 2 and extent.height < room.height)
    }
    for text, extent, room in found:
        inside = room is None or _size(room) not in crowded
        if not inside or any(extent.overlaps(other) for other in taken):
            text.remove()
        else:
            taken.append(extent)


def _size(room: Bbox) -> tuple[float, float]:
    return round(room.width, 1), round(room.height, 1)


def _labels(axes: Axes, chart: Chart, tongue: str) -> Iterator[tuple[Annotation, Bbox | None]]:
    """Each label, with the box of pixels that it must fit into."""
    place = axes.transData.transform
    size: dict[str, Any] = {"fontsize": LABEL_SIZE, "ha": "center", "va": "center"}
    size |= {"in_layout": False, "textcoords": "offset points"}
    ink: dict[str, Any] = {"color": THEME["ink"]}
    for mark in chart.marks:
        if isinstance(mark, Boxes):
            fill = colour_of(mark.colour)
            # without a rim, which would reach out of a low box
            style = size | {"color": text_colour(fill)} | plate(fill, mark.pattern)
            for at, label in enumerate(mark.labels or ()):
                corners = (mark.x0[at], mark.y0[at]), (mark.x1[at], mark.y1[at])
                pixels = Bbox(place(corners))
                room = Bbox.intersection(Bbox([pixels.min, pixels.max]), axes.bbox)
                if label and room is not None:
                    middle = axes.transData.inverted().transform(room.corners().mean(axis=0))
                    yield axes.annotate(said(label, tongue), tuple(middle), (0, 0), **style), room
        elif isinstance(mark, Dots):
            within = mark.radius >= LABEL_SIZE and mark.symbol == "circle"
            away = 0 if within else POINT * mark.radius + 0.7 * LABEL_SIZE
            style = size | (text_on(colour_of(mark.colour)) if within else ink)
            for x, y, label in zip(mark.x, mark.y, mark.labels or ()):
                yield axes.annotate(said(label, tongue), (x, y), (0, away), **style), None
        elif isinstance(mark, Arrows):
            for at, label in enumerate(mark.labels or ()):
                ends = place(((mark.x0[at], mark.y0[at]), (mark.x1[at], mark.y1[at])))
                dx, dy = ends[1] - ends[0]
                x, y = ends.mean(axis=0)
                data = axes.transData.inverted().transform((x + BEND / 2 * dy, y - BEND / 2 * dx))
                yield axes.annotate(said(label, tongue), tuple(data), (0, 0), **size, **ink), None
