"""It draws timelines with matplotlib."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simlab.trace import Trace
from simlab.units import MS
from simlab.views.charts.timelines import ROW, UNRECORDED, chunk_words, timeline_charts
from simlab.views.language import names, shade
from simlab.views.scene import (
    CAP_COLOUR,
    COLOURS,
    FADED,
    HATCH_COLOUR,
    IDLE_COLOUR,
    MEANING,
    PATH_COLOUR,
    RANK_COLOURS,
    Box,
    Scene,
    path,
    path_lines,
    row_label,
    scenes,
)
from simlab.views.still.picture import Panels, Picture, add_legend, drawn, own_style, panels

LABEL_ROOM = 0.012
"""A box gets its label if it is at least this fraction of the time axis."""
PATH_STYLE: dict[str, Any] = {"edgecolor": PATH_COLOUR, "linewidth": 2.2}
IDLE_STYLE: dict[str, Any] = {
    "facecolor": IDLE_COLOUR,
    "edgecolor": HATCH_COLOUR,
    "hatch": "////",
    "linewidth": 0,
}


@own_style
def figure(
    traces: Sequence[Trace],
    *,
    ax: Panels | None = None,
    width_in: float | None = None,
    caption: str | None = None,
    critical_path: bool = False,
    memory: bool = True,
) -> Picture | Panels:
    """Draw the timeline of each trace and, below it, its memory strip; return the Figure.

    All panels have one time axis, in milliseconds.

    ax:            the axes to draw on, which are then returned: for each trace one for its timeline
                   and one for its memory strip, in this order. None makes a new Figure.
    width_in:      the width of a new Figure, in inches; 12 unless given.
    caption:       a text that stands on top.
    critical_path: whether to outline the ops of the critical path, join them by a line, and fade
                   the others.
    memory:        whether to draw the memory strips.
    """
    views = scenes(traces)
    heights = _heights(views, memory)
    picture, axes = panels(
        ax,
        len(heights),
        width_in=width_in,
        height_in=sum(heights) + 0.55 * len(views) + 0.9,
        nrows=len(heights),
        sharex=True,
        height_ratios=heights,
    )
    end_ms = max(view.end_s for view in views) / MS
    for trace, view, timeline_axes in zip(traces, views, axes[:: 1 + memory]):
        _draw_timeline(timeline_axes, view, end_ms, path(trace, view) if critical_path else None)
    if memory:
        highest = max(max(*view.peaks, view.cap or 0) for view in views)
        for view, memory_axes in zip(views, axes[1::2]):
            _draw_memory(memory_axes, view, highest)
    axes[-1].set_xlabel("time, ms")
    for panel in axes:
        panel.set_xlim(0, end_ms * 1.005)
    legend = _legend(views, critical_path)
    style: dict[str, Any] = {"loc": "outside upper right", "fontsize": 9}
    style |= legend | {"ncols": len(legend["handles"])}
    add_legend(picture, axes[0], **style)
    if caption and picture is not None:
        picture.text(0.01, 0.99, caption, ha="left", va="top", fontsize=12, fontweight="bold")
    elif caption:
        axes[0].set_title(f"{caption}\n{views[0].title}", loc="left", fontsize=10)
    shown: dict[str, Any] = {"critical_path": critical_path, "memory": memory, "caption": caption}
    return drawn(picture, ax, partial(timeline_charts, traces, **shown))


def _heights(views: Sequence[Scene], memory: bool) -> list[float]:
    """The relative height of each panel: a row for each rank, and a strip that is low if empty."""
    strips = [1.1 if any(view.peaks) else 0.3 for view in views]
    return [
        height
        for view, strip in zip(views, strips)
        for height in (0.5 + 0.32 * view.ranks, strip)[: 1 + memory]
    ]


def _legend(views: Sequence[Scene], critical_path: bool) -> dict[str, Any]:
    """The arguments of the legend: the kinds of ops that occur, each in its shades, what the shades
    are, idle time, and the critical path."""
    entries: list[tuple[Any, str]] = [
        (_swatches(kind, views), f"{kind} {MEANING[kind]}")
        for kind in COLOURS
        if any(kind in view.kinds for view in views)
    ]
    chunks = max(view.chunks for view in views)
    if entries and chunks > 1:
        entries.append((Patch(facecolor="none", edgecolor="none"), chunk_words(chunks).en))
    entries.append((Patch(**IDLE_STYLE), names("work")["waiting"]))
    if critical_path:
        entries.append((Patch(facecolor="none", **PATH_STYLE), "critical path"))
    handles, labels = map(list, zip(*entries))
    together = {each: HandlerTuple(None, pad=0) for each in handles if isinstance(each, tuple)}
    return {"handles": handles, "labels": labels, "handler_map": together}


def _swatches(kind: str, views: Sequence[Scene]) -> tuple[Patch, ...]:
    """A swatch of `kind` in each shade that is drawn: those of the scene with the most chunks."""
    chunks = max(view.chunks for view in views if kind in view.kinds)
    fills = [shade(COLOURS[kind], chunk, chunks) for chunk in range(chunks)]
    return tuple(Patch(facecolor=fill, edgecolor="black", linewidth=0.4) for fill in fills)


def _draw_timeline(
    axes: Axes, view: Scene, end_ms: float, highlighted: Sequence[Box] | None
) -> None:
    """Draw the boxes of `view` on `axes`.

    end_ms:      the end of the time axis; a box that is a small part of it gets no label.
    highlighted: the boxes of the critical path. They are joined by a line, and the others are
                 faded. None draws no path.
    """
    strong = {box.op for box in (view.boxes if highlighted is None else highlighted)}
    axes.set_title(view.title, loc="left", fontsize=10)
    polygons = [_corners(0.0, view.end_s / MS, rank - ROW / 2, ROW) for rank in range(view.ranks)]
    axes.add_collection(PolyCollection(polygons, **IDLE_STYLE))
    draw_ops(
        axes, view, end_ms, lambda box: 1.0 if box.op in strong else FADED, -ROW / 2, ROW, size=8
    )
    if highlighted:
        lines = [
            [(time_s / MS, row) for time_s, row in line] for line in path_lines(highlighted, ROW)
        ]
        axes.add_collection(LineCollection(lines, **PATH_STYLE))
    name_rows(axes, view)


def draw_ops(
    axes: Axes,
    view: Scene,
    end_ms: float,
    opacity: Callable[[Box], float],
    shift: float,
    high: float,
    *,
    size: int,
) -> None:
    """Draw the ops of `view`, with labels of `size` points where there is room for them.

    shift, high: how far below the middle of its row a box begins, and its height, in rows.
    """
    for kind in view.kinds:
        boxes = [box for box in view.boxes if box.kind == kind]
        fills = [shade(COLOURS[kind], box.chunk, len(view.stages[box.rank])) for box in boxes]
        polygons = [
            _corners(box.start_s / MS, box.end_s / MS, box.rank + shift, high) for box in boxes
        ]
        style: dict[str, Any] = {"edgecolors": "black", "linewidths": 0.4}
        style["alpha"] = [opacity(box) for box in boxes]
        axes.add_collection(PolyCollection(polygons, facecolors=fills, **style))
    style = {"ha": "center", "va": "center", "fontsize": size, "clip_on": True}
    for box in view.boxes:
        if (box.end_s - box.start_s) / MS > LABEL_ROOM * end_ms:
            middle = (box.start_s + box.end_s) / 2 / MS
            axes.text(middle, box.rank + shift + high / 2, box.label, **style)


def name_rows(axes: Axes, view: Scene) -> None:
    """Name the ranks of `view`, from the top, beside `axes`."""
    axes.set_ylim(view.ranks - 0.5, -0.5)
    labels = [row_label(rank, stages) for rank, stages in enumerate(view.stages)]
    axes.set_yticks(range(view.ranks), labels, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_memory(axes: Axes, view: Scene, peak: float) -> None:
    """Draw what each rank of `view` holds over time, on an axis that goes beyond `peak`."""
    if not any(view.peaks):
        _say_that_there_is_no_memory(axes)
        return
    for rank, (times, amounts) in enumerate(view.memory):
        axes.step(
            [time / MS for time in times],
            amounts,
            where="post",
            color=RANK_COLOURS[rank % len(RANK_COLOURS)],
            linewidth=1.3,
            label=f"rank {rank}",
        )
    if view.cap is not None:
        axes.axhline(view.cap, color=CAP_COLOUR, linestyle="--", linewidth=1.2, label="cap")
        times_ms = [time_s / MS for time_s, _ in view.breaches]
        amounts = [amount for _, amount in view.breaches]
        axes.plot(times_ms, amounts, "x", color=CAP_COLOUR, markersize=7, markeredgewidth=2)
    axes.set_ylim(0, peak * 1.15 or 1)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_ylabel(view.memory_label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if view.ranks <= len(RANK_COLOURS):
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(1.0, 1.1),
            fontsize=7,
            frameon=False,
            handlelength=1.2,
            labelspacing=0.2,
        )


def _say_that_there_is_no_memory(axes: Axes) -> None:
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "color": "0.4"}
    axes.text(0.5, 0.5, UNRECORDED, transform=axes.transAxes, **style)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)


def _corners(left: float, right: float, top: float, high: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, top + high), (left, top + high)]
