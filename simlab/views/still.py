"""Still pictures with matplotlib."""

from io import BytesIO

from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simlab.units import MS
from simlab.views.scene import CAP_COLOUR, COLOURS, FADED, IDLE_COLOUR, MEANING, PATH_COLOUR, RANK_COLOURS, path, path_lines, scenes

LABEL_ROOM = 0.012  # a box gets its label if it is at least this part of the time axis
ROW = 0.8  # of the distance between rows
PATH_STYLE = {"edgecolor": PATH_COLOUR, "linewidth": 2.2}


class Picture(Figure):
    """A Figure that a notebook shows by itself: matplotlib's own needs pyplot, with its global state, for that."""

    def _repr_png_(self):
        png = BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


def figure(traces, *, width_in=12.0, caption=None, critical_path=False, memory=True):
    """A Figure: for each trace its timeline and, below, its memory strip (unless not `memory`); one time axis for all.

    width_in:      width of the picture, inches.
    caption:       a text that stands on top.
    critical_path: whether to outline the ops of the critical path, join them by a line, and fade the others.
    """
    views = scenes(traces)
    strips = [1.1 if any(view.peaks) else 0.3 for view in views]
    rows = [height for view, strip in zip(views, strips) for height in (0.5 + 0.32 * view.ranks, strip)[: 1 + memory]]
    picture = Picture(figsize=(width_in, sum(rows) + 0.55 * len(views) + 0.9), layout="constrained", dpi=110)
    axes = picture.subplots(len(rows), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": rows})[:, 0]
    end_ms = max(view.end_s for view in views) / MS
    for trace, view, timeline_axes in zip(traces, views, axes[:: 1 + memory]):
        _draw_timeline(timeline_axes, view, end_ms, path(trace, view) if critical_path else None)
    if memory:
        highest = max(max(*view.peaks, view.cap or 0) for view in views)
        for view, memory_axes in zip(views, axes[1::2]):
            _draw_memory(memory_axes, view, highest)
    axes[-1].set_xlabel("time, ms")
    axes[-1].set_xlim(0, end_ms * 1.005)
    kinds = [kind for kind in COLOURS if any(kind in view.kinds for view in views)]
    handles = [Patch(facecolor=COLOURS[kind], edgecolor="black", linewidth=0.4, label=f"{kind} {MEANING[kind]}") for kind in kinds]
    handles.append(Patch(facecolor=IDLE_COLOUR, edgecolor="0.6", linewidth=0.4, label="idle"))
    if critical_path:
        handles.append(Patch(facecolor="none", label="critical path", **PATH_STYLE))
    picture.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=9)
    if caption:
        picture.text(0.01, 0.99, caption, ha="left", va="top", fontsize=12, fontweight="bold")
    return picture


def _draw_timeline(axes, view, end_ms, highlighted):
    """Draw `view`; if `highlighted` is a list of its boxes, with a line through them, the others faded."""
    strong = {box.op for box in (view.boxes if highlighted is None else highlighted)}
    axes.set_title(view.title, loc="left", fontsize=10)
    polygons = [_corners(rank, 0.0, view.end_s / MS) for rank in range(view.ranks)]
    axes.add_collection(PolyCollection(polygons, facecolors=IDLE_COLOUR, edgecolors="none"))
    for kind in view.kinds:
        boxes = [box for box in view.boxes if box.kind == kind]
        polygons = [_corners(box.rank, box.start_s / MS, box.end_s / MS) for box in boxes]
        alphas = [1.0 if box.op in strong else FADED for box in boxes]
        axes.add_collection(PolyCollection(polygons, facecolors=COLOURS[kind], edgecolors="black", linewidths=0.4, alpha=alphas))
    for box in view.boxes:
        if (box.end_s - box.start_s) / MS > LABEL_ROOM * end_ms:
            middle = (box.start_s + box.end_s) / 2 / MS
            axes.text(middle, box.rank, box.label, ha="center", va="center", fontsize=8, clip_on=True)
    if highlighted:
        lines = [[(time_s / MS, row) for time_s, row in line] for line in path_lines(highlighted, ROW)]
        axes.add_collection(LineCollection(lines, **PATH_STYLE))
    axes.set_ylim(view.ranks - 0.5, -0.5)
    axes.set_yticks(range(view.ranks), [f"rank {rank}" for rank in range(view.ranks)], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_memory(axes, view, peak):
    if not any(view.peaks):
        axes.text(0.5, 0.5, "memory was not recorded", transform=axes.transAxes, ha="center", va="center", fontsize=8, color="0.4")
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
        return
    for rank, (times, amounts) in enumerate(view.memory):
        colour = RANK_COLOURS[rank % len(RANK_COLOURS)]
        axes.step([time / MS for time in times], amounts, where="post", color=colour, linewidth=1.3, label=f"rank {rank}")
    if view.cap is not None:
        axes.axhline(view.cap, color=CAP_COLOUR, linestyle="--", linewidth=1.2, label="cap")
        over = [(time_s / MS, amount) for time_s, amount in view.breaches]
        axes.plot([time for time, _ in over], [amount for _, amount in over], "x", color=CAP_COLOUR, markersize=7, markeredgewidth=2)
    axes.set_ylim(0, peak * 1.15 or 1)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_ylabel(view.memory_label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if view.ranks <= len(RANK_COLOURS):
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.1), fontsize=7, frameon=False, handlelength=1.2, labelspacing=0.2)


def _corners(rank, left, right):
    top, bottom = rank - ROW / 2, rank + ROW / 2
    return [(left, top), (right, top), (right, bottom), (left, bottom)]
