"""It draws the marks of a `Chart` on matplotlib's axes, and their handles in a legend."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from simlab.views.chart import Area, Arrows, Boxes, Chart, Dots, Line, Mark, Rule
from simlab.views.language import LANGUAGE, said, text_colour
from simlab.views.stream_rows import short_label

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
Place = tuple[float, float, float, float]
"""(left, low, right, high), in pixels."""


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
    return {"color": text_colour(fill), "path_effects": [_rim(fill)]}


def _rim(colour: str) -> withStroke:
    return withStroke(linewidth=3, foreground=colour)


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
        filled = filling(mark)
        if mark.outline is None and mark.pattern == "plain":  # so that a thin box is seen
            filled |= {"edgecolor": filled["facecolor"], "linewidth": 0.4}
        axes.add_collection(PolyCollection(corners, **filled))
        if mark.outline is not None:
            opacity = mark.colour[7:] if mark.colour.startswith("#") else ""
            edge: dict[str, Any] = {"edgecolor": colour_of(mark.outline) + opacity}
            edge["linewidth"] = 0.7
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

    A box's label stands inside the box, whole or in its short form, or not at all: boxes of one
    size are all labelled or none is. Another label is left out where it would lie over one that is
    there already.
    """
    taken: list[Place] = []
    boxes = [mark for mark in chart.marks if isinstance(mark, Boxes) and mark.labels]
    for text, place in (*_inside(axes, boxes, tongue), *_beside(axes, chart, tongue)):
        if any(_overlap(place, other) for other in taken):
            text.remove()
        else:
            taken.append(place)


def _overlap(one: Place, other: Place) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _inside(axes: Axes, marks: Sequence[Boxes], tongue: str) -> Iterator[tuple[Text, Place]]:
    """The labels in boxes, each with the pixels that it takes."""
    probe = axes.text(0, 0, "", fontsize=LABEL_SIZE, in_layout=False)

    @cache
    def size(text: str) -> tuple[float, float]:
        probe.set_text(text)
        extent = probe.get_window_extent()
        return extent.width, extent.height

    found: list[tuple[Boxes, Place, str]] = []
    for mark in marks:
        for label, (left, low, right, high) in zip(mark.labels or (), _rooms(axes, mark)):
            forms = [said(form, tongue) for form in (label, short_label(label)) if form]
            wide, tall = right - left - 2, high - low
            fitting = [form for form in forms if size(form)[0] < wide and size(form)[1] < tall]
            if forms and right > left:
                found.append((mark, (left, low, right, high), (fitting or [""])[0]))
    crowded = {_size(room) for _, room, text in found if not text}
    back = axes.transData.inverted()
    style: dict[str, Any] = {"fontsize": LABEL_SIZE, "ha": "center", "va": "center"}
    for mark, room, text in found:
        if _size(room) not in crowded:
            fill = colour_of(mark.colour)
            x, y = (room[0] + room[2]) / 2, (room[1] + room[3]) / 2
            wide, tall = size(text)
            # without a rim, which would reach out of a low box
            look = style | {"color": text_colour(fill)} | plate(fill, mark.pattern)
            right, up = back.transform((x, y))
            yield (
                axes.text(right, up, text, in_layout=False, clip_on=True, **look),
                (x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2),
            )
    probe.remove()


def _rooms(axes: Axes, mark: Boxes) -> Iterator[Place]:
    """The pixels of the part of each box that is seen."""
    if not mark.x0:
        return
    ends = (
        axes.transData.transform([*zip(x, y)]) for x, y in ((mark.x0, mark.y0), (mark.x1, mark.y1))
    )
    frame = axes.bbox
    for (a, b), (c, d) in zip(*(each.tolist() for each in ends)):
        yield (
            max(min(a, c), frame.x0),
            max(min(b, d), frame.y0),
            min(max(a, c), frame.x1),
            min(max(b, d), frame.y1),
        )


def _size(room: Place) -> tuple[float, float]:
    return round(room[2] - room[0], 1), round(room[3] - room[1], 1)


def _beside(axes: Axes, chart: Chart, tongue: str) -> Iterator[tuple[Text, Place]]:
    """The labels of points and arrows, each with the pixels that it takes."""
    size: dict[str, Any] = {"fontsize": LABEL_SIZE, "ha": "center", "va": "center"}
    size |= {"in_layout": False, "textcoords": "offset points"}
    ink: dict[str, Any] = {"color": THEME["ink"], "path_effects": [_rim(THEME["background"])]}
    for mark in chart.marks:
        if isinstance(mark, Dots):
            within = mark.radius >= LABEL_SIZE and mark.symbol == "circle"
            away = 0 if within else POINT * mark.radius + 0.7 * LABEL_SIZE
            style = size | (text_on(colour_of(mark.colour)) if within else ink)
            places = [(x, y, 0.0, away) for x, y in zip(mark.x, mark.y)]
        elif isinstance(mark, Arrows):
            style, places = size | ink, [*_middles(axes, mark)]
        else:
            continue
        for (x, y, right, up), label in zip(places, mark.labels or ()):
            text = axes.annotate(said(label, tongue), (x, y), (right, up), **style)
            yield text, text.get_window_extent().extents


def _middles(axes: Axes, mark: Arrows) -> Iterator[tuple[float, float, float, float]]:
    """The middle of each bent arrow: (x, y) of the data, and no offset."""
    back = axes.transData.inverted()
    for start, end in zip(zip(mark.x0, mark.y0), zip(mark.x1, mark.y1)):
        (a, b), (c, d) = axes.transData.transform((start, end))
        bend = BEND / 2
        x, y = back.transform(((a + c) / 2 + bend * (d - b), (b + d) / 2 - bend * (c - a)))
        yield x, y, 0.0, 0.0
