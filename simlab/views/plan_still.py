"""Still pictures of plans with matplotlib."""

import re

from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Patch

from simlab.errors import InputError
from simlab.units import GIB, MS, seconds_text
from simlab.views.plan_scene import (
    ALL_COLOURS,
    ALL_MEANING,
    MEMORY_COLOURS,
    PART_COLOURS,
    STAGE_COLOURS,
    cube_scene,
    memory_parts,
    step_parts,
    stream_scene,
)
from simlab.views.still import Picture

LABEL_ROOM = 0.006  # of the time axis that a letter takes
EDGE = {"edgecolor": "black", "linewidth": 0.4}


def streams_figure(traces, *, captions=None, width_in=12.0, **shown):
    """A Figure of the streams of each of `traces`, a row each, on one time axis; several begin at 0 there.

    captions: a text for each trace (or the text of the only one), in place of its name.
    shown:    window, ranks, streams, only: see `stream_scene`.
    """
    several = len(traces) > 1
    views = [stream_scene(trace, **shown) for trace in traces]
    captions = [captions] if isinstance(captions, str) else captions
    heights = [0.9 + 0.2 * len(view.rows) for view in views]
    picture = Picture(figsize=(width_in, 0.5 + sum(heights)), layout="constrained", dpi=110)
    longest_s = max(view.end_s - view.start_s for view in views)
    panels = picture.subplots(len(views), 1, squeeze=False, sharex=several, height_ratios=heights)[:, 0]
    for number, (view, axes) in enumerate(zip(views, panels)):
        draw_streams(axes, _from_zero(view, longest_s) if several else view)
        lasts = f": {seconds_text(view.end_s - view.start_s)}" if several else ""
        axes.set_title(f"{captions[number]}{lasts}" if captions else view.title, loc="left", fontsize=10)
        axes.set_xlabel("time, ms" if axes is panels[-1] else "")
    kinds = [kind for kind in ALL_COLOURS if any(box.kind == kind for view in views for box in view.boxes)]
    handles = [Patch(facecolor=ALL_COLOURS[kind], label=ALL_MEANING[kind], **EDGE) for kind in kinds]
    picture.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=8)
    return picture


def _from_zero(view, end_s):
    boxes = [box._replace(start_s=box.start_s - view.start_s, end_s=box.end_s - view.start_s) for box in view.boxes]
    return view._replace(boxes=boxes, start_s=0.0, end_s=end_s)


def draw_streams(axes, view):
    """Draw a `StreamScene`: ranks apart, their streams below each other."""
    of_rank = {rank: [row for row, (its, _) in enumerate(view.rows) if its == rank] for rank, _ in view.rows}
    heights = [row + 0.6 * (list(of_rank).index(rank)) for row, (rank, _) in enumerate(view.rows)]
    few = len(view.boxes) < 400  # else outlines would cover what they outline; without any, thin boxes would not be seen
    for kind, colour in ALL_COLOURS.items():
        polygons = [_rectangle(box, heights[box.row]) for box in view.boxes if box.kind == kind]
        axes.add_collection(PolyCollection(polygons, facecolors=colour, edgecolors="black" if few else colour, linewidths=0.4))
    for box in view.boxes:
        room = (box.end_s - box.start_s) / (LABEL_ROOM * (view.end_s - view.start_s))  # in letters
        label = box.text.partition(" ")[2] or box.text
        if len(label) > room and (layer := re.match(r"layer (\d+)", label)):
            label = layer[1]
        if len(label) < room and "…" not in label:
            middle = (max(box.start_s, view.start_s) + min(box.end_s, view.end_s)) / 2 / MS
            axes.text(middle, heights[box.row], label, ha="center", va="center", fontsize=7, clip_on=True)
    axes.set_xlim(view.start_s / MS, view.end_s / MS)
    axes.set_ylim((heights[-1] if heights else 0) + 0.6, -0.6)
    names = [f"rank {rank}  {stream}" if row == of_rank[rank][0] else stream for row, (rank, stream) in enumerate(view.rows)]
    axes.set_yticks(heights, names, fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("time, ms")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _rectangle(box, height):
    left, right = box.start_s / MS, box.end_s / MS
    return [(left, height - 0.4), (right, height - 0.4), (right, height + 0.4), (left, height + 0.4)]


def cubes_figure(plans, gpus_per_node, *, width_in=12.0, captions=None):
    """A Figure of the ranks of one plan, or of several beside each other."""
    plans = plans if isinstance(plans, (list, tuple)) else [plans]
    if not plans:
        raise InputError("no plan to draw: give at least one")
    picture = Picture(figsize=(width_in, 4.2), layout="constrained", dpi=110)
    for number, (axes, plan) in enumerate(zip(picture.subplots(1, len(plans), squeeze=False)[0], plans)):
        view = cube_scene(plan, gpus_per_node)
        draw_cube(axes, view)
        axes.set_title((captions[number] + "\n" if captions else "") + view.title, loc="left", fontsize=9)
    return picture


def draw_cube(axes, view):
    """Draw a `CubeScene`: a rank's colour is its stage, paler on every second node; thick lines are nodes' borders."""
    colours = [STAGE_COLOURS[cell.stage % len(STAGE_COLOURS)] for cell in view.cells]
    alphas = [0.5 if cell.node % 2 else 1.0 for cell in view.cells]
    corners = [cell.corners for cell in view.cells]
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="black", linewidths=0.3, alpha=alphas))
    axes.add_collection(LineCollection(view.borders, colors="black", linewidths=2))
    if len(view.cells) <= 128:
        for cell in view.cells:
            x, y = (sum(point[axis] for point in cell.corners) / 4 for axis in (0, 1))
            axes.text(x, y, cell.rank, ha="center", va="center", fontsize=7)
    for x, y, text in view.labels:
        axes.text(x, y, text, ha="center", va="top", fontsize=8)
    axes.autoscale_view()
    axes.set_axis_off()


def shares_figure(predictions, names, *, width_in=12.0, memory=True):
    """A Figure of predictions' steps by what they are spent on, a bar each, and (unless not `memory`) their memory against the capacity."""
    predictions, parts = list(predictions), []
    picture = Picture(figsize=(width_in, 1.5 + 0.36 * len(predictions)), layout="constrained", dpi=110)
    panels = picture.subplots(1, 1 + memory, squeeze=False, sharey=True)[0]
    parts.append(([step_parts(p) for p in predictions], PART_COLOURS, 1 / MS, "step, ms"))
    if memory:
        parts.append(([memory_parts(p) for p in predictions], MEMORY_COLOURS, 1, "memory of the fullest GPU, GiB"))
    for axes, (rows, colours, scale, label) in zip(panels, parts):
        for name, colour in colours.items():
            if any(dict(row)[name] for row in rows):
                lefts = [sum(value for _, value in row[: list(dict(row)).index(name)]) * scale for row in rows]
                widths = [dict(row)[name] * scale for row in rows]
                axes.barh(range(len(rows)), widths, left=lefts, color=colour, label=name, height=0.7, **EDGE)
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6, frameon=False, fontsize=7.5, handlelength=1.2, columnspacing=1)
    if memory:
        for capacity in {p.cluster.gpu.memory_bytes / GIB for p in predictions}:
            panels[1].axvline(capacity, color="#CC0000", linestyle="--", linewidth=1.4)
    panels[0].set_yticks(range(len(predictions)), names, fontsize=8)
    panels[0].invert_yaxis()
    return picture
