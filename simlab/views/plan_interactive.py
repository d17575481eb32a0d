"""The interactive picture of a plan with plotly: waterfall, memory, cube and timeline, updated in place."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simlab.units import GIB, MS
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
from simlab.views.scene import CAP_COLOUR

STEP, MEMORY, CAPACITY, STAGE, BORDERS, TIMELINE = "step", "memory", "capacity", "stage", "borders", "timeline"


def figure(prediction, trace, *, window=None, make=go.Figure):
    """A plotly figure of `prediction` and of `trace`, its op or layer trace, within `window` (start, end) in s.

    make: the class to make it of, e.g. `plotly.graph_objects.FigureWidget`.
    """
    panels = make_subplots(
        rows=3, cols=2, specs=[[{}, {"rowspan": 2}], [{}, None], [{"colspan": 2}, None]], row_heights=[0.16, 0.16, 0.68],
        vertical_spacing=0.11, horizontal_spacing=0.06, subplot_titles=("step", "ranks", "memory", "timeline"),
    )  # fmt: skip
    picture = make(panels)
    line = {"color": "black", "width": 0.5}
    for what, colours, row in ((STEP, PART_COLOURS, 1), (MEMORY, MEMORY_COLOURS, 2)):
        for name, colour in colours.items():
            bar = go.Bar(
                name=name, meta=(what, name), orientation="h", marker={"color": colour, "line": line}, showlegend=False,
                hovertemplate=f"{name}: %{{x:.2f}}<extra></extra>",
            )  # fmt: skip
            picture.add_trace(bar, row=row, col=1)
    capacity = go.Scatter(meta=(CAPACITY, ""), mode="lines", line={"color": CAP_COLOUR, "dash": "dash"}, showlegend=False, name=CAPACITY)
    picture.add_trace(capacity, row=2, col=1)
    for number, colour in enumerate(STAGE_COLOURS):
        cells = go.Scatter(
            meta=(STAGE, number), mode="lines", fill="toself", fillcolor=colour, line={"color": "white", "width": 1}, showlegend=False,
            name="", hoverinfo="skip",
        )  # fmt: skip
        picture.add_trace(cells, row=1, col=2)
    borders = go.Scatter(meta=(BORDERS, ""), mode="lines", line={"color": "black", "width": 2}, showlegend=False, hoverinfo="skip")
    picture.add_trace(borders, row=1, col=2)
    centres = go.Scatter(
        meta=(STAGE, "ranks"), mode="text", textfont={"size": 9}, hovertemplate="%{customdata}<extra></extra>", showlegend=False
    )
    picture.add_trace(centres, row=1, col=2)
    for kind, colour in ALL_COLOURS.items():
        bar = go.Bar(
            name=ALL_MEANING[kind], meta=(TIMELINE, kind), orientation="h", marker={"color": colour, "line": {"width": 0}},
            textposition="none", hovertemplate="%{text}: %{base:.3f} ms, for %{x:.3f} ms<extra></extra>",
        )  # fmt: skip
        picture.add_trace(bar, row=3, col=1)
    picture.update_layout(
        height=760, template="plotly_white", barmode="overlay", bargap=0.15, margin={"l": 70, "r": 10, "t": 40, "b": 40},
        legend={"orientation": "h", "y": -0.06, "x": 0},
    )  # fmt: skip
    picture.update_xaxes(visible=False, row=1, col=2)
    picture.update_yaxes(visible=False, row=1, col=2)
    picture.update_yaxes(showticklabels=False, row=1, col=1)
    picture.update_yaxes(showticklabels=False, row=2, col=1)
    update(picture, prediction, trace, window=window)
    return picture


def update(picture, prediction, trace, *, window=None):
    """Show another prediction, trace or window in a picture that `figure` made: new data in the same bars and lines."""
    items = {tuple(item.meta): item for item in picture.data}
    with picture.batch_update():
        for what, parts, scale in ((STEP, step_parts(prediction), 1 / MS), (MEMORY, memory_parts(prediction), 1)):
            base = 0.0
            for name, value in parts:
                items[what, name].update(y=[0], base=[base], x=[value * scale])
                base += value * scale
        capacity = prediction.cluster.gpu.memory_bytes / GIB
        items[CAPACITY, ""].update(x=[capacity] * 2, y=[-0.5, 0.5])
        _update_cube(items, cube_scene(prediction.plan, prediction.cluster.gpus_per_node))
        _update_timeline(picture, items, stream_scene(trace, window=window))
        notes = picture.layout.annotations
        notes[0].text = "step by what it is spent on, ms"
        notes[1].text = cube_scene(prediction.plan, prediction.cluster.gpus_per_node).title
        notes[2].text = "memory of the fullest GPU, GiB"
        notes[3].text = stream_scene(trace, window=window).title
        for note in notes:
            note.font.size = 12


def _update_cube(items, view):
    for number in range(len(STAGE_COLOURS)):
        lines = [[*cell.corners, cell.corners[0]] for cell in view.cells if cell.stage % len(STAGE_COLOURS) == number]
        items[STAGE, number].update(**_pen(lines))
    items[BORDERS, ""].update(**_pen(view.borders))
    middles = [tuple(sum(point[axis] for point in cell.corners) / 4 for axis in (0, 1)) for cell in view.cells]
    items[STAGE, "ranks"].update(
        x=[x for x, _ in middles], y=[y for _, y in middles], customdata=[cell.text for cell in view.cells],
        text=[str(cell.rank) if len(view.cells) <= 128 else "" for cell in view.cells],
    )  # fmt: skip


def _pen(lines):
    """Lines as one: plotly lifts the pen at None."""
    points = [point for line in lines for point in (*line, (None, None))]
    return {"x": [x for x, _ in points], "y": [y for _, y in points]}


def _update_timeline(picture, items, view):
    for kind in ALL_COLOURS:
        boxes = [box for box in view.boxes if box.kind == kind]
        items[TIMELINE, kind].update(
            y=[box.row for box in boxes], base=[box.start_s / MS for box in boxes], x=[(box.end_s - box.start_s) / MS for box in boxes],
            text=[box.text for box in boxes], showlegend=bool(boxes),
        )  # fmt: skip
    axes = items[TIMELINE, "F"]
    x, y = (picture.layout[name[0] + "axis" + name[1:]] for name in (axes.xaxis, axes.yaxis))
    x.update(range=[view.start_s / MS, view.end_s / MS], title_text="time, ms")
    names = [f"rank {rank} {stream}" for rank, stream in view.rows]
    y.update(range=[len(view.rows) - 0.5, -0.5], tickvals=[*range(len(view.rows))], ticktext=names)
