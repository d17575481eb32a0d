"""It draws plans and what they predict with matplotlib: streams, the cube of ranks, shares."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Patch

from simlab.errors import InputError
from simlab.spec.plan import Plan
from simlab.trace import Trace
from simlab.training import Prediction
from simlab.units import GIB, MS, seconds_text
from simlab.views.charts.amounts import shares_charts
from simlab.views.charts.plan import ranks_chart
from simlab.views.charts.timelines import stream_chart, stream_heights, stream_names
from simlab.views.language import LANGUAGE, RANK_COLOURS
from simlab.views.plan_scene import (
    PART_COLOURS,
    CubeScene,
    StreamBox,
    StreamScene,
    cube_scene,
    memory_parts,
    step_parts,
    stream_scene,
)
from simlab.views.scene import CAP_COLOUR, CATEGORY_COLOURS
from simlab.views.still.marks import HATCHES, THEME, colour_of, plate, text_on
from simlab.views.still.picture import Panels, Picture, add_legend, drawn, own_style, panels
from simlab.views.stream_rows import short_label, work_name, works

LABEL_ROOM = 0.006
"""The fraction of the time axis that a letter takes."""
MOST_IN_A_LINE = 7
"""The most entries of a legend that stand beside each other."""
EDGE: dict[str, Any] = {"edgecolor": "black", "linewidth": 0.4}


@own_style
def streams_figure(
    traces: Sequence[Trace],
    *,
    ax: Panels | None = None,
    captions: str | Sequence[str] | None = None,
    width_in: float | None = None,
    **shown: Any,
) -> Picture | Panels:
    """Draw the streams of each trace in a panel of its own, a row per rank and stream; return the
    Figure.

    Several traces have one time axis, on which each of them begins at 0.

    ax:       the axes to draw on, one for each trace, which are then returned. None makes a new
              Figure.
    captions: a text for each trace (or the text of the only one), in place of its name.
    width_in: the width of a new Figure, in inches; 12 unless given.
    shown:    the arguments window, ranks, streams and only of `stream_scene`.
    """
    several = len(traces) > 1
    views = [stream_scene(trace, **shown) for trace in traces]
    captions = [captions] if isinstance(captions, str) else captions
    heights = [0.9 + 0.2 * len(view.rows) for view in views]
    layout: dict[str, Any] = {"nrows": len(views), "sharex": several, "height_ratios": heights}
    height_in = 0.5 + sum(heights)
    picture, axes = panels(ax, len(views), width_in=width_in, height_in=height_in, **layout)
    longest_s = max(view.end_s - view.start_s for view in views)
    titles = []
    for number, view in enumerate(views):
        lasts = f": {seconds_text(view.end_s - view.start_s)}" if several else ""
        titles.append(f"{captions[number]}{lasts}" if captions else view.title)
    views = [_from_zero(view, longest_s) for view in views] if several else views
    for view, panel, title in zip(views, axes, titles):
        draw_streams(panel, view)
        panel.set_title(title, loc="left", fontsize=10)
        panel.set_xlabel("time, ms" if panel is axes[-1] else "")
    used = {box.kind for view in views for box in (*view.boxes, *view.waiting)}
    handles = [
        Patch(**_look(work), label=work_name(work).en, linewidth=0.4) for work in works(used)
    ]
    style: dict[str, Any] = {
        "loc": "outside upper right",
        "ncols": min(len(handles), MOST_IN_A_LINE),
        "fontsize": 8,
    }
    add_legend(picture, axes[0], handles, **style)
    return drawn(picture, ax, lambda: [*map(stream_chart, views, titles)])


def _from_zero(view: StreamScene, end_s: float) -> StreamScene:
    """`view` moved so that it begins at 0, on a time axis that ends at `end_s`."""
    boxes, waiting = (
        [
            box._replace(start_s=box.start_s - view.start_s, end_s=box.end_s - view.start_s)
            for box in these
        ]
        for these in (view.boxes, view.waiting)
    )
    return view._replace(boxes=boxes, waiting=waiting, start_s=0.0, end_s=end_s)


def _look(work: str) -> dict[str, Any]:
    """The arguments of a filled shape that shows `work`; a hatch has the colour of the edge."""
    look = LANGUAGE["work"][work]
    edge = {"hatched": THEME["hatch"], "plain": "black"}.get(look["pattern"], THEME["background"])
    return {"facecolor": look["colour"], "edgecolor": edge, "hatch": HATCHES[look["pattern"]]}


def draw_streams(axes: Axes, view: StreamScene) -> None:
    """Draw `view` on `axes`: a row for each stream, with more room between two ranks."""
    heights = stream_heights(view)
    # The outlines of many boxes would hide them; a thin box is only seen if its edge has a colour.
    few = len(view.boxes) < 400
    shown = [*view.waiting, *view.boxes]
    for work in works({box.kind for box in shown}):
        polygons = [_rectangle(box, heights[box.row]) for box in shown if box.kind == work]
        look = _look(work)
        if not few and look["hatch"] is None:
            look["edgecolor"] = look["facecolor"]
        axes.add_collection(
            PolyCollection(polygons, linewidths=0.4, zorder=0.5 if work == "waiting" else 1, **look)
        )
    for box in view.boxes:
        room = (box.end_s - box.start_s) / (LABEL_ROOM * (view.end_s - view.start_s))  # in letters
        text = box.label if len(box.label) < room else short_label(box.label)
        if text and len(text) < room:
            middle = (max(box.start_s, view.start_s) + min(box.end_s, view.end_s)) / 2 / MS
            look = LANGUAGE["work"][box.kind]
            style = text_on(look["colour"]) | plate(look["colour"], look["pattern"])
            place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "clip_on": True}
            axes.text(middle, heights[box.row], text, **place, **style)
    axes.set_xlim(view.start_s / MS, view.end_s / MS)
    axes.set_ylim((heights[-1] if heights else 0) + 0.6, -0.6)
    axes.set_yticks(heights, stream_names(view), fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("time, ms")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _rectangle(box: StreamBox, height: float) -> list[tuple[float, float]]:
    left, right = box.start_s / MS, box.end_s / MS
    return [
        (left, height - 0.4),
        (right, height - 0.4),
        (right, height + 0.4),
        (left, height + 0.4),
    ]


@own_style
def cubes_figure(
    plans: Plan | Sequence[Plan],
    gpus_per_node: int,
    *,
    ax: Panels | None = None,
    width_in: float | None = None,
    captions: Sequence[str] | None = None,
) -> Picture | Panels:
    """Draw the ranks of one plan, or of several beside each other, as cubes; return the Figure.

    gpus_per_node: the number of GPUs of a node, whose borders are drawn as thick lines.
    ax:            the axes to draw on, one for each plan, which are then returned. None makes a new
                   Figure.
    width_in:      the width of a new Figure, in inches; 12 unless given.
    captions:      a text above the title of each plan.
    """
    plans = [plans] if isinstance(plans, Plan) else list(plans)
    if not plans:
        raise InputError("no plan to draw: give at least one")
    picture, axes = panels(ax, len(plans), width_in=width_in, height_in=4.2, ncols=len(plans))
    for number, (panel, plan) in enumerate(zip(axes, plans)):
        view = cube_scene(plan, gpus_per_node)
        draw_cube(panel, view)
        above = captions[number] + "\n" if captions else ""
        panel.set_title(above + view.title, loc="left", fontsize=9)
    return drawn(picture, ax, lambda: [ranks_chart(plan, gpus_per_node) for plan in plans])


def draw_cube(axes: Axes, view: CubeScene) -> None:
    """Draw `view` on `axes`: the colour of a rank is its stage's; thick lines are the borders of
    nodes."""
    colours = [colour_of(RANK_COLOURS[cell.stage % len(RANK_COLOURS)]) for cell in view.cells]
    corners = [cell.corners for cell in view.cells]
    axes.add_collection(
        PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=0.5)
    )
    for colour, wide in (("white", 3.6), ("black", 2)):  # seen on black ranks, too
        axes.add_collection(LineCollection(view.borders, colors=colour, linewidths=wide))
    if len(view.cells) <= 128:
        for cell, colour in zip(view.cells, colours):
            x, y = (sum(point[axis] for point in cell.corners) / 4 for axis in (0, 1))
            style = text_on(colour) | {"ha": "center", "va": "center", "fontsize": 7}
            axes.text(x, y, str(cell.rank), **style)
    for x, y, text in view.labels:
        axes.text(x, y, text, ha="center", va="top", fontsize=8)
    axes.autoscale_view()
    axes.set_axis_off()


@own_style
def shares_figure(
    predictions: Iterable[Prediction],
    names: Sequence[str],
    *,
    ax: Panels | None = None,
    width_in: float | None = None,
    memory: bool = True,
) -> Picture | Panels:
    """Draw what the step of each prediction is spent on, and beside it the memory of its fullest
    GPU with the capacity; return the Figure.

    names:    a label for each prediction, drawn from the top.
    ax:       the axes to draw on, which are then returned: one for the steps and, with `memory`,
              one for the memory. None makes a new Figure.
    width_in: the width of a new Figure, in inches; 12 unless given.
    memory:   whether to draw the memory.
    """
    predictions = list(predictions)
    layout: dict[str, Any] = {"ncols": 1 + memory, "sharey": True}
    height_in = 1.5 + 0.36 * len(predictions)
    picture, axes = panels(ax, 1 + memory, width_in=width_in, height_in=height_in, **layout)
    milliseconds = [{name: s / MS for name, s in step_parts(p)} for p in predictions]
    _draw_shares(axes[0], milliseconds, PART_COLOURS, "step, ms")
    if memory:
        gib = [dict(memory_parts(p)) for p in predictions]
        _draw_shares(axes[1], gib, CATEGORY_COLOURS, "memory of the fullest GPU, GiB")
        for capacity in {p.cluster.gpu.memory_bytes / GIB for p in predictions}:
            axes[1].axvline(capacity, color=CAP_COLOUR, linestyle="--", linewidth=1.4)
    axes[0].set_yticks(range(len(predictions)), names, fontsize=8)
    for panel in axes:
        panel.yaxis.set_inverted(True)
    return drawn(picture, ax, lambda: shares_charts(predictions, names, memory=memory))


def _draw_shares(
    axes: Axes,
    rows: Sequence[Mapping[str, float]],
    colours: Mapping[str, str],
    label: str,
) -> None:
    """Draw {part: amount} of each row as a stacked bar, with the parts' colours in a legend."""
    for name, colour in colours.items():
        if not any(row.get(name) for row in rows):
            continue
        lefts = [sum(list(row.values())[: list(row).index(name)]) for row in rows]
        widths = [row[name] for row in rows]
        bars: dict[str, Any] = {"color": colour, "label": name, "height": 0.7}
        axes.barh(range(len(rows)), widths, left=lefts, **bars, **EDGE)
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=6,
        frameon=False,
        fontsize=7.5,
        handlelength=1.2,
        columnspacing=1,
    )
