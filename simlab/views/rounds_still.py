"""Replayed collectives and all-reduce curves as still pictures with matplotlib."""

from math import ceil

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from simlab.views.rounds import (
    ADDED_COLOUR,
    ALGORITHM_COLOURS,
    DARK,
    LIGHT,
    REPLACED_COLOUR,
    SIZE_LABELS,
    SIZE_TICKS,
    arrow_place,
    curves,
    grid,
)
from simlab.views.still import Picture

SHADES = LinearSegmentedColormap.from_list("summed", [LIGHT, DARK])


def rounds_figure(steps, *, columns=4, width_in=12.0):
    """A Figure with a panel for each of `steps`: ranks down, parts of the buffer across; an arrow from every sender to its receiver."""
    views = [grid(step) for step in steps]
    columns = min(columns, len(views))
    rows = ceil(len(views) / columns)
    height = 0.55 + 0.3 * len(views[0].rows)
    picture = Picture(figsize=(width_in, rows * height + 0.5), layout="constrained", dpi=110)
    axes = list(picture.subplots(rows, columns, squeeze=False).flat)
    for panel, view in zip(axes, views):
        draw_grid(panel, view)
    for panel in axes[len(views) :]:
        panel.set_visible(False)
    _legend(picture)
    return picture


def explorer_figure(step, points, title, *, width_in=12.0):
    """A Figure of one step, and next to it all-reduce time and bus bandwidth against size."""
    picture = Picture(figsize=(width_in, 5.4), layout="constrained", dpi=80)
    left, right = picture.subplots(1, 2, width_ratios=(1.1, 1))
    draw_grid(left, grid(step))
    below = right.inset_axes((0, -0.02, 1, 0.46))
    above = right.inset_axes((0, 0.56, 1, 0.44))
    right.axis("off")
    draw_curves(above, below, curves(points))
    above.set_title(title, loc="left", fontsize=10)
    _legend(picture)
    return picture


def draw_grid(axes, view):
    """Draw `view`, a `Grid`, on `axes`."""
    rows, columns = len(view.rows), len(view.columns)
    axes.imshow(view.shares, cmap=SHADES, vmin=0, vmax=1.15, aspect="auto", extent=(-0.5, columns - 0.5, rows - 0.5, -0.5))
    for cells, colour in ((view.added, ADDED_COLOUR), (view.replaced, REPLACED_COLOUR)):
        for row, column in cells:
            axes.add_patch(Rectangle((column - 0.46, row - 0.44), 0.92, 0.88, fill=False, edgecolor=colour, linewidth=2))
    if columns <= 16:
        for row, texts in enumerate(view.texts):
            for column, text in enumerate(texts):
                shade = "white" if view.shares[row][column] > 0.6 else "black"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=shade)
    for source, destination in view.arrows:
        x, _ = arrow_place(view, source, destination)
        style = {"arrowstyle": "-|>", "color": "0.25", "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
        bend = -0.2 if destination > source else 0.2
        axes.annotate("", (x, destination), (x, source), arrowprops=style | {"connectionstyle": f"arc3,rad={bend}"})
    axes.set_xlim(-0.5 - 0.29 * columns, columns - 0.5)
    axes.set_title(view.title, fontsize=10)
    axes.set_yticks(range(rows), view.rows, fontsize=8)
    axes.set_xticks(range(columns), view.columns if columns <= 16 else [""] * columns, fontsize=7)
    axes.set_xlabel("part of the buffer", fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_curves(above, below, lines):
    """Time (log-log) on `above`, bus bandwidth on `below`; a ring round each point that NCCL takes."""
    for line in lines:
        colour = ALGORITHM_COLOURS[line.algorithm]
        for axes, values in ((above, line.times_ms), (below, line.busbw_gb)):
            axes.plot(line.sizes_mib, values, color=colour, linewidth=1.8, label=line.algorithm)
            marks = [line.sizes_mib[at] for at in line.chosen], [values[at] for at in line.chosen]
            axes.plot(*marks, "o", markerfacecolor="none", markeredgecolor="black", markersize=6)
    above.plot([], [], "o", markerfacecolor="none", markeredgecolor="black", label="NCCL takes this")
    for axes in (above, below):
        axes.set_xscale("log", base=2)
        axes.set_xticks(SIZE_TICKS, SIZE_LABELS)
        axes.minorticks_off()
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    above.set_yscale("log")
    above.set_ylabel("time, ms")
    below.set_ylabel("busbw, GB/s")
    below.set_xlabel("buffer")
    above.legend(fontsize=8, frameon=False)


def _legend(picture):
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=SHADES(0.2), label="some contributions summed"),
        Rectangle((0, 0), 1, 1, facecolor=SHADES(1 / 1.15), label="Σ: all of them"),
        Rectangle((0, 0), 1, 1, fill=False, edgecolor=ADDED_COLOUR, linewidth=2, label="just arrived, added"),
        Rectangle((0, 0), 1, 1, fill=False, edgecolor=REPLACED_COLOUR, linewidth=2, label="just arrived, put in place"),
    ]
    picture.legend(handles=handles, loc="outside upper right", ncols=4, frameon=False, fontsize=9)
