"""It draws replayed collectives with matplotlib."""

from collections.abc import Sequence
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from simlab.collectives.replay import RoundState
from simlab.views.charts.rounds import cells_chart
from simlab.views.rounds import (
    ADDED_COLOUR,
    DARK,
    LIGHT,
    MOST_NAMED,
    REPLACED_COLOUR,
    Grid,
    arrow_x,
    cell_words,
    grid,
)
from simlab.views.still.picture import Panels, Picture, add_legend, drawn, own_style, panels

SHADES = LinearSegmentedColormap.from_list("summed", [LIGHT, DARK])


@own_style
def rounds_figure(
    steps: Sequence[RoundState],
    *,
    ax: Panels | None = None,
    columns: int = 4,
    width_in: float | None = None,
) -> Picture | Panels:
    """Draw a panel for each of `steps`: ranks down, parts of the buffer across, and an arrow from
    every sender to its receiver; return the Figure.

    ax:       the axes to draw on, one for each step, which are then returned. None makes a new
              Figure.
    columns:  the most panels of a new Figure that stand beside each other.
    width_in: the width of a new Figure, in inches; 12 unless given.
    """
    views = [grid(step) for step in steps]
    columns = min(columns, len(views))
    rows = ceil(len(views) / columns)
    height_in = rows * (0.55 + 0.3 * len(views[0].rows)) + 0.5
    layout = {"nrows": rows, "ncols": columns}
    picture, axes = panels(ax, len(views), width_in=width_in, height_in=height_in, **layout)
    for panel, view in zip(axes, views):
        draw_grid(panel, view)
    for panel in axes[len(views) :]:
        panel.set_visible(False)
    _add_legend(picture, axes[0], len(views[0].rows))
    return drawn(picture, ax, lambda: [*map(cells_chart, steps, views)])


def draw_grid(axes: Axes, view: Grid) -> None:
    """Draw `view` on `axes`: shaded cells with their contributions, outlines of what arrived in the
    round, arrows, and the names of rows and columns."""
    rows, columns = len(view.rows), len(view.columns)
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    axes.imshow(view.shares, cmap=SHADES, vmin=0, vmax=1.15, aspect="auto", extent=extent)
    outline: dict[str, Any] = {"width": 0.92, "height": 0.88, "fill": False, "linewidth": 2}
    for cells, colour in ((view.added, ADDED_COLOUR), (view.replaced, REPLACED_COLOUR)):
        for row, column in cells:
            corner = (column - 0.46, row - 0.44)
            axes.add_patch(Rectangle(corner, edgecolor=colour, **outline))
    if columns <= 16:
        for row, texts in enumerate(view.texts):
            for column, text in enumerate(texts):
                share = view.shares[row][column]
                shade = "white" if share > 0.6 else "black"
                if rows > MOST_NAMED and share < 1:
                    text = str(round(share * rows))  # the panels are too small for more
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=shade)
    _draw_arrows(axes, view)
    axes.set_xlim(-0.5 - 0.29 * columns, columns - 0.5)
    axes.set_title(view.title, fontsize=10)
    axes.set_yticks(range(rows), view.rows, fontsize=8)
    axes.set_xticks(range(columns), view.columns if columns <= 16 else [""] * columns, fontsize=7)
    axes.set_xlabel("part of the buffer", fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_arrows(axes: Axes, view: Grid) -> None:
    """Draw a bent arrow left of the grid from each sender to its receiver."""
    for source, destination in view.arrows:
        x = arrow_x(view, source, destination)
        style = {"arrowstyle": "-|>", "color": "0.25", "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
        bend = -0.2 if destination > source else 0.2
        axes.annotate(
            "",
            (x, destination),
            (x, source),
            arrowprops=style | {"connectionstyle": f"arc3,rad={bend}"},
        )


def _add_legend(picture: Picture | None, axes: Axes, ranks: int) -> None:
    """Explain the shades, the texts and the outlines of `draw_grid` with so many ranks."""
    cell: dict[str, Any] = {"xy": (0, 0), "width": 1, "height": 1}
    outline: dict[str, Any] = cell | {"fill": False, "linewidth": 2}
    handles = [
        Rectangle(**cell, facecolor=SHADES(0.2), label=cell_words(ranks, short=True)[1].en),
        Rectangle(**cell, facecolor=SHADES(1 / 1.15), label="Σ: all of them"),
        Rectangle(**outline, edgecolor=ADDED_COLOUR, label="just arrived, added"),
        Rectangle(**outline, edgecolor=REPLACED_COLOUR, label="just arrived, put in place"),
    ]
    add_legend(picture, axes, handles, loc="outside upper right", ncols=4, fontsize=9)
