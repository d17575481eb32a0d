"""Interactive pictures with plotly: zoom, hover. `Bar` with a base, never shapes: shapes take seconds at 1,500 boxes."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simlab.units import MS
from simlab.views.scene import COLOURS, MEANING, RANK_COLOURS, scene

ROW_PX, STRIP_PX, GAP_PX = 26, 90, 70


def figure(traces, *, make=go.Figure):
    """A plotly Figure of `traces` under each other on one time axis, each with its memory strip.

    make: the class to wrap it in, e.g. `plotly.graph_objects.FigureWidget`.
    """
    scenes = [scene(trace) for trace in traces]
    heights = [height for view in scenes for height in (ROW_PX * view.ranks + 30, STRIP_PX)]
    layout = make_subplots(
        rows=len(heights), cols=1, shared_xaxes=True, row_heights=heights, vertical_spacing=GAP_PX / len(heights) / sum(heights)
    )
    picture = make(layout)
    picture.update_layout(height=sum(heights) + GAP_PX * len(scenes) + 60, margin={"l": 70, "r": 20, "t": 60, "b": 40})
    picture.update_layout(barmode="overlay", bargap=0.15, template="plotly_white", legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 1, "xanchor": "right"})  # fmt: skip
    for number, view in enumerate(scenes):
        add_scene(picture, view, row=2 * number + 1, first=number == 0)
    picture.update_xaxes(title_text="time, ms", row=len(heights))
    return picture


def add_scene(picture, view, row, first):
    """Add the bars of `view` to subplot row `row` and its memory lines to the next one."""
    for kind in COLOURS:
        boxes = [box for box in view.boxes if box.kind == kind]
        if boxes or kind in "FB":
            picture.add_trace(go.Bar(**bars(boxes, kind), name=f"{kind} {MEANING[kind]}", legendgroup=kind, showlegend=first), row=row, col=1)
    for rank, line in enumerate(lines(view)):
        colour = RANK_COLOURS[rank % len(RANK_COLOURS)]
        style = {"mode": "lines", "line": {"shape": "hv", "color": colour, "width": 1.6}}
        picture.add_trace(go.Scatter(**line, **style, name=f"rank {rank}", showlegend=False), row=row + 1, col=1)
    picture.update_yaxes(range=[view.ranks - 0.5, -0.5], tickvals=list(range(view.ranks)), ticktext=[f"rank {rank}" for rank in range(view.ranks)], row=row, col=1)  # fmt: skip
    picture.update_yaxes(title_text="held", rangemode="tozero", row=row + 1, col=1)
    picture.add_annotation(text=view.title, x=0, xanchor="left", xref="paper", y=1.0, yanchor="bottom", yref=f"y{row if row > 1 else ''} domain", showarrow=False, font={"size": 13})  # fmt: skip


def bars(boxes, kind):
    """The data of one `go.Bar`: all boxes of one op kind."""
    return {
        "orientation": "h",
        "y": [box.rank for box in boxes],
        "base": [box.start_s / MS for box in boxes],
        "x": [(box.end_s - box.start_s) / MS for box in boxes],
        "text": [box.label for box in boxes],
        "customdata": [(box.op, box.end_s / MS) for box in boxes],
        "hovertemplate": "%{customdata[0]}: %{base:.2f} to %{customdata[1]:.2f} ms (%{x:.2f} ms)<extra></extra>",
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "marker": {"color": COLOURS[kind], "line": {"color": "black", "width": 0.6}},
    }


def lines(view):
    """The data of one `go.Scatter` per rank: microbatches held over time."""
    return [{"x": [time / MS for time in times], "y": amounts} for times, amounts in view.memory]
