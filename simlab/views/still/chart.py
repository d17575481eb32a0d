"""It draws charts, the pictures that are data, as one matplotlib figure."""

from collections.abc import Sequence
from functools import partial
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
from simlab.views.chart import Area, Axis, Boxes, Chart, Rule, Words
from simlab.views.language import said
from simlab.views.still.marks import THEME, draw_mark, handles, write_labels
from simlab.views.still.picture import WIDTH_IN, Panels, Picture, drawn, own_style, panels
from simlab.views.still.wording import chinese_font

PX_PER_IN = 96
"""CSS pixels, which a chart's height is given in, per inch."""
DPI = 110
PX_OF_LETTER = 9
"""The room for a letter beside an axis, at least."""
TITLE_SIZE, NAME_SIZE, TICK_SIZE = 10, 8.5, 8
TITLE_IN, ENTRY_IN, GAP_IN = 0.21, 0.19, 0.2
"""The heights of a line of a title and of a legend, and what lies between two charts."""


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
    ax:       the axes to draw on, one for each chart, which are then returned. None makes a new
              Figure.

    Raises `InputError` without a chart, for another language, and for Chinese where no font of this
    machine has Chinese characters.
    """
    pictures = [pictures] if isinstance(pictures, Chart) else list(pictures)
    if not pictures:
        raise InputError("no chart to draw: give at least one")
    require_whole("columns", columns)
    # a text keeps the font and the colour that it is made with
    style: Any = dict.fromkeys(("text.color", "xtick.color", "ytick.color"), THEME["ink"])
    style |= {"font.family": _fonts(tongue), "axes.labelcolor": THEME["muted"]}
    with rc_context(style):
        if ax is None:
            width_in = width_in or WIDTH_IN
            picture = _figure(pictures, columns, tongue, width_in)
            picture.charts = lambda: pictures
            if all(chart.title.en != chart.title.zh for chart in pictures):  # it has both
                picture.in_chinese = partial(
                    charts, pictures, columns=columns, tongue="zh", width_in=width_in
                )
            return picture
        _, axes = panels(ax, len(pictures), width_in=width_in, height_in=0)
        for panel, chart in zip(axes, pictures):
            _draw(panel, chart, tongue)
            panel.set_title(
                said(getattr(chart.title, tongue), tongue), loc="left", fontsize=TITLE_SIZE
            )
            if chart.legend():
                panel.legend(loc="upper left", bbox_to_anchor=(1, 1), **_legend(chart, tongue))
            write_labels(panel, chart, tongue)
        return drawn(None, ax)


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
    picture.draw_without_rendering()
    for panel, chart in zip(picture.axes, pictures):
        for axis in (panel.xaxis, panel.yaxis):
            _thin_out(axis)
        write_labels(panel, chart, tongue)
    return picture


def _fill(part: SubFigure, chart: Chart, tongue: str, width_in: float) -> float:
    """Draw `chart` on its part of a figure, `width_in` inches wide; return the height it takes."""
    _draw(part.subplots(), chart, tongue)
    name = said(getattr(chart.title, tongue), tongue)
    title = part.suptitle(name, x=0.01, ha="left", fontsize=TITLE_SIZE)
    letters = len(title.get_text()) * (width_in - GAP_IN) / _width_in(title)
    title.set_text(fill(title.get_text(), int(letters)))
    lines = 1 + title.get_text().count("\n")
    entries = 0
    if chart.legend():
        legend, across = _legend(chart, tongue), len(chart.legend())
        while True:
            drawn = part.legend(loc="outside lower left", ncols=across, **legend)
            if across == 1 or _width_in(drawn) <= width_in - GAP_IN:
                break
            drawn.remove()
            across -= 1
        entries = ceil(len(chart.legend()) / across)
    return chart.height / PX_PER_IN + lines * TITLE_IN + entries * ENTRY_IN + GAP_IN


def _width_in(artist: Text | Legend) -> float:
    return artist.get_window_extent().width / DPI


def _legend(chart: Chart, tongue: str) -> dict[str, Any]:
    """The arguments of the legend of `chart`: an entry for each name."""
    found = chart.legend()
    drawn = [handles(marks) for _, marks in found]
    return {
        "handles": drawn,
        "labels": [said(getattr(name, tongue), tongue) for name, _ in found],
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
        drawn.set_major_locator(MaxNLocator(6))
    drawn.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def _thin_out(drawn: DrawnAxis) -> None:
    """Leave every n-th text at the ticks, with the least n at which no two of them overlap."""
    low, high = sorted(drawn.get_view_interval())
    ticks = [tick for tick in drawn.get_major_ticks() if low <= tick.get_loc() <= high]
    texts = [tick.label1 for tick in ticks if tick.label1.get_text()]
    boxes = [text.get_window_extent().padded(1) for text in texts]
    for every in range(1, 1 + len(texts)):
        kept = boxes[::every]
        if not any(one.overlaps(after) for one, after in pairwise(kept)):
            break
    for at, text in enumerate(texts):
        text.set_visible(at % every == 0)
