"""It draws memory with matplotlib: categories stacked over a step, and ZeRO's curves over the
ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simlab.analysis import Stack
from simlab.units import GIB, MS
from simlab.views.chart import Words
from simlab.views.charts.amounts import CAPACITY, bars_chart, stack_charts, zero_chart
from simlab.views.scene import (
    CAP_COLOUR,
    CATEGORY_COLOURS,
    STAGE_COLOURS,
    STAGE_NAMES,
    steps,
)
from simlab.views.still.picture import Panels, Picture, add_legend, drawn, own_style, panels

DASHES = {0: "-", 1: "--", 2: "-.", 3: ":"}
"""{ZeRO stage: matplotlib's line}"""
TICKS = 14
"""The most ops that are named below a step without times."""
Held = Mapping[str, Mapping[str, float]]
"""{label: {category: bytes}}."""


@own_style
def figure(
    stacks: Sequence[Stack],
    *,
    ax: Panels | None = None,
    width_in: float | None = None,
    height_in: float = 3.2,
) -> Picture | Panels:
    """Draw each `Stack` in a panel of its own, all with one height scale; return the Figure.

    Stacks that have times share one time axis, which holds the longest. The peak is marked with the
    op that makes it, and what passes the GPU's capacity is hatched.

    ax:        the axes to draw on, one for each stack, which are then returned. None makes a new
               Figure.
    width_in:  the width of a new Figure, in inches; 12 unless given.
    height_in: the height of each panel of a new Figure, in inches.
    """
    timed = all(stack.timed for stack in stacks)
    height_each_in, height_in = height_in, height_in * len(stacks) + 0.4
    layout: dict[str, Any] = {"nrows": len(stacks), "sharex": timed}
    picture, axes = panels(ax, len(stacks), width_in=width_in, height_in=height_in, **layout)
    highest = max(max(*stack.totals, stack.capacity_bytes or 0) for stack in stacks) / GIB
    for panel, stack in zip(axes, stacks):
        draw_stack(panel, stack)
        panel.set_ylim(0, 1.22 * highest)
    if timed:
        first_s = min(stack.edges[0] for stack in stacks)
        last_s = max(stack.edges[-1] for stack in stacks)
        for panel in axes:
            panel.set_xlim(first_s / MS, last_s / MS)
    there = {category for stack in stacks for category in stack.held}
    handles: list[Artist] = [
        Patch(color=colour, label=category)
        for category, colour in reversed(CATEGORY_COLOURS.items())
        if category in there
    ]
    if any(stack.capacity_bytes for stack in stacks):
        limit = Line2D([], [], color=CAP_COLOUR, linestyle="--", label=CAPACITY.en)
        handles.insert(0, limit)
    add_legend(picture, axes[0], handles, loc="outside right upper", fontsize=9)
    for panel in axes[:-1] if picture is not None else ():
        panel.set_xlabel("")
    return drawn(picture, ax, lambda: stack_charts(stacks, height_each_in))


def draw_stack(axes: Axes, stack: Stack) -> None:
    """Draw `stack` on `axes`: a stepped area for each category, the peak with its op, and the
    capacity of the GPU."""
    scale = MS if stack.timed else 1
    edges = [edge / scale for edge in stack.edges]
    below = [0.0] * len(stack.ops)
    for category, amounts in stack.held.items():
        top = [low + amount / GIB for low, amount in zip(below, amounts)]
        xs, ys = steps(edges, top)
        axes.fill_between(
            xs, steps(edges, below)[1], ys, color=CATEGORY_COLOURS[category], linewidth=0
        )
        axes.plot(xs, ys, color="white", linewidth=0.5)
        below = top
    _mark(axes, stack, edges)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_title(stack.name, loc="left", fontsize=10)
    axes.set_ylabel("GiB on a rank", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    if stack.timed:
        axes.set_xlabel("time, ms", fontsize=9)
    else:
        _name_ops(axes, stack.ops)


def _name_ops(axes: Axes, ops: Sequence[str]) -> None:
    """Write at most `TICKS` of `ops` below their intervals, the last one among them."""
    last = len(ops) - 1
    shown = [*range(0, last, -(-len(ops) // TICKS)), last]
    if last - shown[-2] < len(ops) / TICKS / 2:
        del shown[-2]  # it would touch the last one
    places = [interval + 0.5 for interval in shown]
    axes.set_xticks(places, [ops[at] for at in shown], rotation=35, ha="right", fontsize=8)


def _mark(axes: Axes, stack: Stack, edges: Sequence[float]) -> None:
    """Mark the peak and the capacity of `stack`, and hatch what passes the capacity."""
    peak, total = stack.peak, stack.totals[stack.peak] / GIB
    middle = (edges[peak] + edges[peak + 1]) / 2
    colour = "black" if stack.breach is None else CAP_COLOUR
    side = "right" if middle > (edges[0] + edges[-1]) / 2 else "left"
    text = f"peak {total:.1f} GiB: {stack.ops[peak]}"
    axes.annotate(
        text,
        (middle, total),
        xytext=(-14 if side == "right" else 14, 12),
        textcoords="offset points",
        ha=side,
        fontsize=9,
        color=colour,
        fontweight="bold",
        arrowprops={"arrowstyle": "-|>", "color": colour},
    )
    if stack.capacity_bytes:
        capacity = stack.capacity_bytes / GIB
        axes.axhline(capacity, color=CAP_COLOUR, linestyle="--", linewidth=1.4)
        for i, amount in enumerate(stack.totals):
            if amount > stack.capacity_bytes:
                axes.fill_between(
                    edges[i : i + 2],
                    capacity,
                    amount / GIB,
                    facecolor="none",
                    edgecolor=CAP_COLOUR,
                    hatch="////",
                    linewidth=0,
                )


@own_style
def bars_figure(
    bars: Held,
    *,
    ax: Axes | None = None,
    capacity_bytes: float | None = None,
    longest_bytes: float | None = None,
    width_in: float | None = None,
) -> Picture | Panels:
    """Draw a horizontal bar for each entry of `bars`, with its sum beside it; return the Figure.

    bars:           {label: {category: bytes}}, drawn from the top.
    ax:             the axes to draw on, which are then returned. None makes a new Figure.
    capacity_bytes: the memory of a GPU, which a dashed line shows.
    longest_bytes:  the length at which longer bars are cut off, with an arrow behind their sum.
    width_in:       the width of a new Figure, in inches; 12 unless given.
    """
    height_in = 0.45 * len(bars) + 1.2
    picture, (axes,) = panels(ax, 1, width_in=width_in, height_in=height_in, dpi=90)
    longest = longest_bytes or max(sum(held.values()) for held in bars.values())
    for row, held in enumerate(bars.values()):
        over = bool(capacity_bytes) and sum(held.values()) > (capacity_bytes or 0)
        _draw_bar(axes, row, held, longest, CAP_COLOUR if over else "black")
    there = {name for held in bars.values() for name, size in held.items() if size}
    handles: list[Artist] = [
        Patch(color=colour, label=name)
        for name, colour in CATEGORY_COLOURS.items()
        if name in there
    ]
    if capacity_bytes:
        line: dict[str, Any] = {"color": CAP_COLOUR, "linestyle": "--", "linewidth": 1.4}
        handles.append(axes.axvline(capacity_bytes / GIB, label=CAPACITY.en, **line))
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set(
        xlabel="GiB on a rank",
        ylim=(len(bars) - 0.4, -0.6),
        xlim=(0, max(1.13 * longest, 1.05 * (capacity_bytes or 0)) / GIB),
    )
    axes.spines[["top", "right"]].set_visible(False)
    style: dict[str, Any] = {"loc": "outside upper center", "ncols": len(handles), "fontsize": 9}
    add_legend(picture, axes, handles, **style)
    limits = {"capacity_bytes": capacity_bytes, "longest_bytes": longest_bytes}
    return drawn(picture, ax, lambda: [bars_chart(bars, **limits)])


def _draw_bar(axes: Axes, row: int, held: Mapping[str, float], longest: float, colour: str) -> None:
    """Draw the categories of `held` end to end up to `longest` bytes, and their sum in `colour`."""
    start = 0.0
    for category in [name for name in CATEGORY_COLOURS if held.get(name)]:
        axes.barh(
            row,
            max(0.0, min(held[category], longest - start)) / GIB,
            left=start / GIB,
            color=CATEGORY_COLOURS[category],
            edgecolor="white",
            linewidth=0.6,
        )
        start += held[category]
    text = f" {start / GIB:,.1f} GiB{' →' if start > longest else ''}"
    axes.text(min(start, longest) / GIB, row, text, va="center", color=colour, fontsize=9)


@own_style
def zero_figure(
    ranks: Sequence[int],
    curves: Mapping[int, Sequence[float]],
    *,
    ax: Axes | None = None,
    capacity_bytes: float | None = None,
    name: str = "",
    width_in: float | None = None,
) -> Picture | Panels:
    """Draw the model states on a rank under each ZeRO stage, on two logarithmic axes; return the
    Figure.

    ranks:          the numbers of data-parallel ranks.
    curves:         {ZeRO stage: [bytes for each number of `ranks`]}.
    ax:             the axes to draw on, which are then returned. None makes a new Figure.
    capacity_bytes: the memory of a GPU, which a dashed line shows.
    name:           the title.
    width_in:       the width of a new Figure, in inches; 8 unless given.
    """
    picture, (axes,) = panels(ax, 1, width_in=width_in, usual_width_in=8.0, height_in=4)
    for stage, amounts in curves.items():
        colour, dashes = STAGE_COLOURS[stage], DASHES[stage]
        gib = [amount / GIB for amount in amounts]
        axes.plot(ranks, gib, color=colour, linestyle=dashes, linewidth=2.2)
        axes.annotate(
            STAGE_NAMES[stage],
            (ranks[-1], gib[-1]),
            xytext=(6, -3),
            textcoords="offset points",
            color=colour,
            fontsize=10,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    if capacity_bytes:
        gib_of_gpu = capacity_bytes / GIB
        text = f"one GPU: {gib_of_gpu:.1f} GiB"
        axes.axhline(gib_of_gpu, color=CAP_COLOUR, linestyle="--", linewidth=1.4)
        look: dict[str, Any] = {"color": CAP_COLOUR, "fontsize": 9}
        axes.annotate(text, (ranks[0], gib_of_gpu), (6, 4), textcoords="offset points", **look)
    axes.set_xticks(ranks, [str(n) for n in ranks])
    names = {"xlabel": "data-parallel ranks", "ylabel": "model states on a rank, GiB"}
    axes.set(title=name, xlim=(ranks[0], ranks[-1] * 2.2), **names)
    axes.spines[["top", "right"]].set_visible(False)
    shown: dict[str, Any] = {"title": Words(name, name), "capacity_bytes": capacity_bytes}
    return drawn(picture, ax, lambda: [zero_chart(ranks, curves, **shown)])
