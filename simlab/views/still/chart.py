"""It draws charts, the pictures that are data, as one matplotlib figure."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, floor, log2
from textwrap import fill
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.figure import SubFigure
from matplotlib.gridspec import GridSpec
from matplotlib.legend import Legend
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from simlab.errors import InputError, require_whole
from simlab.views.chart import Area, Axis, Boxes, Chart, Mark, Rule, Words
from simlab.views.language import said
from simlab.views.still.marks import THEME, draw_mark, handles, write_labels
from simlab.views.still.picture import WIDTH_IN, Panels, Picture, own_style, panels
from simlab.views.still.wording import chinese_font

PX_PER_IN = 96
"""CSS pixels, which a chart's height is given in, per inch."""
DPI = 110
PX_OF_LETTER = 9
"""The room for a letter beside an axis, at least."""
STEPS = (1, 2, 2.5, 5, 10)
"""The distances between ticks, times a power of ten."""
TITLE_SIZE, NAME_SIZE, TICK_SIZE = 10, 8.5, 8
TITLE_IN, ENTRY_IN, GAP_IN = 0.21, 0.19, 0.2
"""The heights of a line of a title and of a legend, and what lies between two charts."""
AXES_PX = 50
"""About what of the height of a chart are its axes."""


@own_style
def charts(
    pictures: Chart | Sequence[Chart],
    *,
    columns: int = 1,
    tongue: str = "en",
    width_in: float | None = None,
    ax: Panels | None = None,
) -> Picture | Panels:
    """Draw charts, each with its title and its legend, and return the Figure.

    pictures: one `Chart`, or several, which stand in reading order.
    columns:  how many stand side by side; a wide one takes the room of all columns.
    tongue:   the language of the texts, 'en' or 'zh'.
    width_in: the width of a new Figure, in inches; 12 unless given.
    ax:       the axes to draw on, one for each chart, which are then returned, see `joint`. None
              makes a new Figure.

    Raises `InputError` without a chart, for another language, and for Chinese where no font of this
    machine has Chinese characters.
    """
    pictures = [pictures] if isinstance(pictures, Chart) else list(pictures)
    if not pictures:
        raise InputError("no chart to draw: give at least one")
    require_whole("columns", columns)
    if ax is not None:
        return joint(pictures, columns=columns, tongue=tongue, width_in=width_in, ax=ax)
    with rc_context(_style(tongue)):
        return _figure(pictures, columns, tongue, width_in or WIDTH_IN)


@own_style
def joint(
    pictures: Sequence[Chart],
    *,
    columns: int = 1,
    tongue: str = "en",
    width_in: float | None = None,
    ax: Panels | None = None,
) -> Picture | Panels:
    """Draw charts as the panels of one picture: those over time have one time axis, and those that
    share a name one legend. Return the Figure, or what was given as `ax`.

    The arguments are those of `charts`; `ax` may also be one axes, in which all panels are drawn.
    """
    require_whole("columns", columns)
    layout, height_in = _layout(pictures, columns)
    with rc_context(_style(tongue)):
        picture, axes = panels(
            ax, len(pictures), width_in=width_in, height_in=height_in, dpi=DPI, **layout
        )
        for panel, chart in zip(axes, pictures):
            _draw(panel, chart, tongue)
            title = said(getattr(chart.title, tongue), tongue)
            panel.set_title(title, loc="left", fontsize=TITLE_SIZE)
            if layout["sharex"] and chart is not pictures[-1]:
                panel.set_xlabel("")
        for panel in axes[len(pictures) :]:
            panel.set_visible(False)
        for number, names in _legends(pictures):
            if picture is not None and not number:
                entries = _add_legend(picture, names, tongue, "outside upper right")
                picture.set_size_inches(picture.get_figwidth(), height_in + entries * ENTRY_IN)
            else:
                place: Any = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
                axes[number].legend(**place, **_legend(names, tongue))
        if picture is not None:
            picture.charts = pictures
            _settle(picture)
        for panel, chart in zip(axes, pictures):
            write_labels(panel, chart, tongue)
    if picture is not None:
        return picture
    assert ax is not None  # `panels` makes a picture where the caller gave no axes
    return ax


def _layout(pictures: Sequence[Chart], columns: int) -> tuple[dict[str, Any], float]:
    """(arguments of `Figure.subplots` for the panels of a picture, its height in inches without a
    legend)."""
    rows = [pictures[at : at + columns] for at in range(0, len(pictures), columns)]
    plots = [max(chart.height for chart in row) - AXES_PX for row in rows]
    timed = all(chart.timed for chart in pictures)
    lines = [max(len(chart.title.en.splitlines()) for chart in row) for row in rows]
    axes_px = AXES_PX if timed else AXES_PX * len(rows)
    height_in = GAP_IN * len(rows) + TITLE_IN * sum(lines) + (sum(plots) + axes_px) / PX_PER_IN
    layout = {"nrows": len(rows), "ncols": min(columns, len(pictures))}
    return layout | {"sharex": timed, "height_ratios": plots}, height_in


Names = Mapping[Words, Sequence[Mark]]
"""{name in a legend: the marks that have it}"""


def _legends(pictures: Sequence[Chart]) -> list[tuple[int, Names]]:
    """[(number of a chart, the legend of it and of those that share a name with it)]; what only
    explains, and is nowhere drawn, comes last."""
    found: list[tuple[int, dict[Words, list[Mark]]]] = []
    for number, chart in enumerate(pictures):
        own = dict(chart.legend())
        shared = [names for _, names in found if names.keys() & own.keys()]
        its = shared[0] if shared else {}
        if not shared:
            found.append((number, its))
        for name, marks in own.items():
            its[name] = its.get(name, []) + marks
    return [
        (number, dict(sorted(names.items(), key=lambda its: all(map(_nowhere, its[1])))))
        for number, names in found
        if names
    ]


def _nowhere(mark: Mark) -> bool:
    return isinstance(mark, Boxes) and not mark.x0


def _style(tongue: str) -> Any:
    """The settings of matplotlib that a text keeps from when it is made: its font and its colour."""
    style: Any = dict.fromkeys(("text.color", "xtick.color", "ytick.color"), THEME["ink"])
    return style | {"font.family": _fonts(tongue), "axes.labelcolor": THEME["muted"]}


def _figure(pictures: Sequence[Chart], columns: int, tongue: str, width_in: float) -> Picture:
    """A new Figure with a part for each chart: title, axes, legend."""
    columns = min(columns, sum(not chart.wide for chart in pictures) or 1)
    places: list[tuple[int, int]] = []  # row and column of each
    row = column = 0
    for chart in pictures:
        if column == columns or (chart.wide and column):
            row, column = row + 1, 0
        places.append((row, column))
        column += columns if chart.wide else 1
    picture = Picture(figsize=(width_in, 1), layout="constrained", dpi=DPI)
    grid = GridSpec(row + 1, columns, figure=picture)
    heights = [0.0] * (row + 1)
    for (row, column), chart in zip(places, pictures):
        part = picture.add_subfigure(grid[row, :] if chart.wide else grid[row, column])
        height_in = _fill(part, chart, tongue, width_in if chart.wide else width_in / columns)
        heights[row] = max(heights[row], height_in)
    picture.set_size_inches(width_in, sum(heights))
    grid.set_height_ratios(heights)
    picture.charts = pictures
    _settle(picture)
    for panel, chart in zip(picture.axes, pictures):
        write_labels(panel, chart, tongue)
    return picture


def _settle(picture: Picture) -> None:
    """Give the axes of `picture` their places, and leave out texts at ticks that have no room."""
    picture.draw_without_rendering()
    for panel in picture.axes:
        for axis in (panel.xaxis, panel.yaxis):
            _thin_out(axis)


def _fill(part: SubFigure, chart: Chart, tongue: str, width_in: float) -> float:
    """Draw `chart` on its part of a figure, `width_in` inches wide; return the height it takes."""
    _draw(part.subplots(), chart, tongue)
    lines = 0
    if name := said(getattr(chart.title, tongue), tongue):
        title = part.suptitle(name, x=0.01, ha="left", fontsize=TITLE_SIZE)
        letters = len(name) * (width_in - GAP_IN) / _width_in(title)
        title.set_text("\n".join(fill(line, int(letters)) for line in name.splitlines()))
        lines = 1 + title.get_text().count("\n")
    names = dict(chart.legend())
    entries = _add_legend(part, names, tongue, "outside lower left", width_in) if names else 0
    return chart.height / PX_PER_IN + lines * TITLE_IN + entries * ENTRY_IN + GAP_IN


def _add_legend(
    part: Picture | SubFigure, names: Names, tongue: str, loc: Any, width_in: float | None = None
) -> int:
    """Add the legend of `names`, as many beside each other as have room; return the lines of it."""
    room_in = (width_in or part.figure.get_figwidth()) - GAP_IN
    across = len(names)
    while True:
        drawn = part.legend(loc=loc, ncols=across, **_legend(names, tongue))
        if across == 1 or _width_in(drawn) <= room_in:
            return ceil(len(names) / across)
        drawn.remove()
        across -= 1


def _width_in(artist: Text | Legend) -> float:
    return artist.get_window_extent().width / DPI


def _legend(names: Names, tongue: str) -> dict[str, Any]:
    """The arguments of a legend: an entry for each of `names`."""
    drawn = [handles(marks) for marks in names.values()]
    return {
        "handles": drawn,
        "labels": [said(getattr(name, tongue), tongue) for name in names],
        # different fillings side by side; a line and its points over each other
        "handler_map": {
            its: HandlerTuple(None if isinstance(its[0], Patch) else 1) for its in drawn
        },
        "fontsize": NAME_SIZE,
        "frameon": False,
        "columnspacing": 1.4,
        "borderaxespad": 0.1,
    }


def _fonts(tongue: str) -> list[str]:
    """The families to look for a character in, the first of them first."""
    if tongue not in Words._fields:
        raise InputError(f"tongue = {tongue!r}: give one of {', '.join(Words._fields)}")
    if tongue == "en":
        return ["DejaVu Sans"]
    name = chinese_font()
    if name is not None:
        return ["DejaVu Sans", name]
    raise InputError(
        "tongue = 'zh' needs a font with Chinese characters, and this machine has none: install "
        "one, such as Noto Sans CJK (fonts-noto-cjk in Debian), or give tongue = 'en'"
    )


# axes
# --------------------------------------------------------------------------------------------------


def _draw(axes: Axes, chart: Chart, tongue: str) -> None:
    """Draw the marks and the axes of `chart`."""
    for mark in chart.marks:
        draw_mark(axes, mark)
    filled = all(isinstance(mark, Area | Boxes | Rule) for mark in chart.marks)
    axes.margins(0 if filled else 0.15 if chart.bare else 0.04)
    for letter, axis in (("x", chart.x), ("y", chart.y)):
        _scale(axes, letter, axis, tongue)
    axes.set_ylabel(fill(axes.get_ylabel(), chart.height // PX_OF_LETTER))
    axes.autoscale_view()
    axes.set_xlim(chart.x.least, chart.x.most)
    axes.set_ylim(chart.y.least, chart.y.most)
    _mark_ticks(axes.xaxis, chart.x, tongue)
    _mark_ticks(axes.yaxis, chart.y, tongue)
    axes.xaxis.set_inverted(chart.x.down)
    axes.yaxis.set_inverted(chart.y.down)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(THEME["axis"])
    if chart.square:
        axes.set_aspect("equal")
    if chart.bare:
        axes.set_axis_off()


def _scale(axes: Axes, letter: str, axis: Axis, tongue: str) -> None:
    """Name an axis and set its scale; the limits of its marks follow from it."""
    axes.set(**{f"{letter}label": said(getattr(axis.label, tongue), tongue)})
    if axis.scale != "linear":
        scale = axes.set_xscale if letter == "x" else axes.set_yscale
        scale("log", base=2 if axis.scale == "log2" else 10)


def _mark_ticks(drawn: DrawnAxis, axis: Axis, tongue: str) -> None:
    """Set the ticks and their texts: on a log2 axis powers of two, unless `axis` says others."""
    drawn.set_minor_locator(NullLocator())
    drawn.set_tick_params(labelsize=TICK_SIZE, color=THEME["axis"])
    drawn.label.set_fontsize(NAME_SIZE)
    ticks = axis.ticks
    if ticks is None and axis.scale == "log2":
        low, high = sorted(drawn.get_view_interval())
        ticks = [2.0**power for power in range(ceil(log2(low)), floor(log2(high)) + 1)]
    if ticks is not None:
        texts = axis.names if axis.names is not None else [_number(tick) for tick in ticks]
        drawn.set_ticks(ticks, [said(text, tongue) for text in texts])
        return
    if axis.scale == "linear":
        drawn.set_major_locator(MaxNLocator(8, steps=STEPS))
    drawn.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def _thin_out(drawn: DrawnAxis) -> None:
    """Leave every n-th text at the ticks, with the least n at which no two of them overlap."""
    low, high = sorted(drawn.get_view_interval())
    ticks = [tick for tick in drawn.get_major_ticks() if low <= tick.get_loc() <= high]
    shown = [tick.label1 for tick in ticks if tick.label1.get_visible()]
    texts = [text for text in shown if text.get_text()]
    boxes = [text.get_window_extent().padded(1) for text in texts]
    for every in range(1, 1 + len(texts)):
        kept = boxes[::every]
        if not any(one.overlaps(after) for one, after in pairwise(kept)):
            break
    for at, text in enumerate(texts):
        text.set_visible(at % every == 0)
