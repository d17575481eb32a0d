"""Interactive pictures with plotly: zoom, hover. `Bar` with a base, never shapes: shapes take
seconds at 1,500 boxes."""

from collections.abc import Collection, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simlab.trace import Trace
from simlab.units import MS
from simlab.views.language import shade
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
    idle,
    path,
    path_lines,
    row_label,
    scenes,
)

ROW_PX, STRIP_PX, GAP_PX = 26, 90, 44
BAR_GAP = 0.15  # of the distance between rows
IDLE, PATH, CAP, OVER = "idle", "critical path", "cap", "over the cap"


def figure(traces: Sequence[Trace], *, critical_path: bool = False) -> go.Figure:
    """A plotly figure of `traces` under each other on one time axis, each with its memory strip.
    Idle time says what it waited for.

    critical_path: whether to outline the ops of the critical path, join them by a line, and fade
    the others.
    """
    ranks = max(trace.ranks for trace in traces)
    heights = [ROW_PX * ranks + 20, STRIP_PX] * len(traces)
    total_px = sum(heights) + GAP_PX * (len(heights) - 1)
    picture = make_subplots(
        rows=len(heights),
        cols=1,
        shared_xaxes=True,
        row_heights=heights,
        vertical_spacing=GAP_PX / total_px,
    )
    picture.update_layout(
        height=total_px + 110,
        margin={"l": 70, "r": 20, "t": 70, "b": 40},
        template="plotly_white",
        barmode="overlay",
        bargap=BAR_GAP,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
    )
    used = {kind for view in scenes(traces) for kind in view.kinds}
    kinds = [kind for kind in COLOURS if kind in used]
    for number in range(len(traces)):
        _add_empty(picture, number, kinds, ranks, critical_path)
    picture.update_xaxes(title_text="time, ms", row=len(heights))
    picture.update_xaxes(showticklabels=True)
    _fill(picture, traces)
    return picture


def _fill(picture: go.Figure, traces: Sequence[Trace]) -> None:
    """Give the bars, lines, marks and titles of `picture` the data of `traces`."""
    views = scenes(traces)
    most_held = max(max(*view.peaks, view.cap or 0) for view in views)
    with picture.batch_update():
        for number, (trace, view) in enumerate(zip(traces, views)):
            items = {item.meta[1]: item for item in picture.data if item.meta[0] == number}
            highlighted = path(trace, view) if PATH in items else None
            for what, item in items.items():
                if what == IDLE:
                    item.update(_idle(trace))
                elif what == PATH:
                    item.update(_path(highlighted or []))
                elif what == CAP:
                    item.update(
                        x=[0, view.end_s / MS], y=[view.cap] * 2, visible=view.cap is not None
                    )
                elif what == OVER:
                    item.update(
                        x=[time_s / MS for time_s, _ in view.breaches],
                        y=[amount for _, amount in view.breaches],
                    )
                else:
                    item.update(
                        _bars(view, what, highlighted) if item.type == "bar" else _line(view, what)
                    )
            picture.layout.annotations[number].text = view.title
            memory_axis = picture.layout[_axis("yaxis", 2 * number + 2)]
            memory_axis.update(
                range=[0, 1.1 * most_held], title_text=view.memory_label.replace("\n", "<br>")
            )
            axis = picture.layout[_axis("yaxis", 2 * number + 1)]
            axis.update(
                range=[view.ranks - 0.5, -0.5],
                tickvals=[*range(view.ranks)],
                ticktext=[row_label(rank, stages) for rank, stages in enumerate(view.stages)],
            )


def _add_empty(
    picture: go.Figure, number: int, kinds: Collection[str], ranks: int, critical_path: bool
) -> None:
    """The bars, lines, marks and title of trace `number`, without data.

    `meta` tells which is which: (number, kind, rank, IDLE, PATH, CAP or OVER).
    """
    row = 2 * number + 1
    above = [_idle_bar(number), *(_op_bar(number, kind) for kind in kinds)]
    if critical_path:
        above.append(
            _named_line(number, PATH, {"color": PATH_COLOUR, "width": 2.5}, hoverinfo="skip")
        )
    below = [_memory_line(number, rank) for rank in range(ranks)]
    below += [
        _named_line(number, CAP, {"color": CAP_COLOUR, "width": 1.6, "dash": "dash"}),
        _over_marks(number),
    ]
    for at, drawn in ((row, above), (row + 1, below)):
        for one in drawn:
            picture.add_trace(one, row=at, col=1)
    title = {
        "x": 0,
        "xanchor": "left",
        "xref": "paper",
        "y": 1,
        "yanchor": "bottom",
        "yref": f"{_axis('y', row)} domain",
    }
    picture.add_annotation(**title, showarrow=False, font={"size": 13})


def _idle_bar(number: int) -> go.Bar:
    """The hatched bars of the times in which ranks are idle."""
    return go.Bar(
        name=IDLE,
        legendgroup=IDLE,
        showlegend=number == 0,
        meta=(number, IDLE),
        orientation="h",
        marker={
            "color": IDLE_COLOUR,
            "line": {"width": 0},
            "pattern": {"shape": "/", "fgcolor": HATCH_COLOUR, "size": 6, "solidity": 0.2},
        },
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
    )


def _op_bar(number: int, kind: str) -> go.Bar:
    """The bars of all ops of a kind."""
    return go.Bar(
        name=f"{kind} {MEANING[kind]}",
        legendgroup=kind,
        showlegend=number == 0,
        meta=(number, kind),
        orientation="h",
        marker={"line": {"color": "black", "width": 0.6}},
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        hovertemplate="%{customdata[0]}: %{base:.2f} to %{customdata[1]:.2f} ms (%{x:.2f} ms)<extra></extra>",
    )


def _named_line(number: int, name: str, style: dict[str, Any], **more: Any) -> go.Scatter:
    """A line that is told from others by its name."""
    return go.Scatter(
        name=name,
        legendgroup=name,
        showlegend=number == 0,
        meta=(number, name),
        mode="lines",
        line=style,
        **more,
    )


def _memory_line(number: int, rank: int) -> go.Scatter:
    """What a rank holds."""
    colour = RANK_COLOURS[rank % len(RANK_COLOURS)]
    line = _named_line(number, f"rank {rank}", {"shape": "hv", "color": colour, "width": 1.6})
    return line.update(meta=(number, rank))


def _over_marks(number: int) -> go.Scatter:
    """Where a rank begins to hold more than its cap."""
    return go.Scatter(
        name=OVER,
        legendgroup=CAP,
        showlegend=False,
        meta=(number, OVER),
        mode="markers",
        marker={"color": CAP_COLOUR, "symbol": "x", "size": 9},
    )


def _axis(name: str, row: int) -> str:
    """plotly's name of the axis of subplot row `row`: the first one has no number."""
    return name if row == 1 else f"{name}{row}"


def _bars(view: Scene, kind: str, highlighted: Sequence[Box] | None) -> dict[str, Any]:
    """The boxes of one kind; if `highlighted` is a list of boxes, the others faded."""
    strong = {box.op for box in (view.boxes if highlighted is None else highlighted)}
    boxes = [box for box in view.boxes if box.kind == kind]
    shades = [shade(COLOURS[kind], box.chunk, len(view.stages[box.rank])) for box in boxes]
    return {
        "y": [box.rank for box in boxes],
        "base": [box.start_s / MS for box in boxes],
        "x": [(box.end_s - box.start_s) / MS for box in boxes],
        "text": [box.label for box in boxes],
        "customdata": [(box.op, box.end_s / MS) for box in boxes],
        "marker": {
            "color": shades if view.chunks > 1 else COLOURS[kind],
            "opacity": [1.0 if box.op in strong else FADED for box in boxes],
        },
    }


def _idle(trace: Trace) -> dict[str, Any]:
    found = idle(trace)
    return {
        "y": [gap.rank for gap in found],
        "base": [gap.start_s / MS for gap in found],
        "x": [(gap.end_s - gap.start_s) / MS for gap in found],
        "text": [str(gap) for gap in found],
    }


def _path(highlighted: Sequence[Box]) -> dict[str, Any]:
    """One line: plotly lifts the pen at None."""
    points = [
        point for line in path_lines(highlighted, 1 - BAR_GAP) for point in (*line, (None, None))
    ]
    return {
        "x": [time_s if time_s is None else time_s / MS for time_s, _ in points],
        "y": [row for _, row in points],
    }


def _line(view: Scene, rank: int) -> dict[str, Any]:
    times, amounts = view.memory[rank] if rank < view.ranks else ([], [])
    return {"x": [time / MS for time in times], "y": amounts, "visible": rank < view.ranks}
