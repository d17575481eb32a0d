"""It draws a plan with plotly: waterfall, memory, cube and timeline, updated in place."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.basedatatypes import BaseFigure
from plotly.subplots import make_subplots

from simlab.trace import Trace
from simlab.training import Prediction
from simlab.units import GIB, MS
from simlab.views.plan_scene import (
    ALL_COLOURS,
    ALL_MEANING,
    MEMORY_COLOURS,
    PART_COLOURS,
    STAGE_COLOURS,
    CubeScene,
    StreamScene,
    cube_scene,
    memory_parts,
    step_parts,
    stream_scene,
)
from simlab.views.scene import CAP_COLOUR

STEP, MEMORY, CAPACITY, STAGE, BORDERS, TIMELINE = (
    "step",
    "memory",
    "capacity",
    "stage",
    "borders",
    "timeline",
)


def figure(
    prediction: Prediction,
    trace: Trace,
    *,
    window: tuple[float, float] | None = None,
    make: Callable[..., BaseFigure] = go.Figure,
) -> BaseFigure:
    """A plotly figure of a prediction: its step, its memory, its ranks, and a timeline.

    trace:  the trace that the timeline shows, op by op or layer by layer.
    window: the start and the end of what the timeline shows, in seconds; None shows all of it.
    make:   the class of the figure, such as `plotly.graph_objects.FigureWidget`.
    """
    panels = make_subplots(
        rows=3,
        cols=2,
        specs=[[{}, {"rowspan": 2}], [{}, None], [{"colspan": 2}, None]],
        row_heights=[0.16, 0.16, 0.68],
        vertical_spacing=0.11,
        horizontal_spacing=0.06,
        subplot_titles=("step", "ranks", "memory", "timeline"),
    )
    picture = make(panels)
    for row, items in ((1, _share_bars(STEP, PART_COLOURS)), (2, _memory_items())):
        for item in items:
            picture.add_trace(item, row=row, col=1)
    for item in _cube_items():
        picture.add_trace(item, row=1, col=2)
    for item in _timeline_bars():
        picture.add_trace(item, row=3, col=1)
    picture.update_layout(
        height=760,
        template="plotly_white",
        barmode="overlay",
        bargap=0.15,
        margin={"l": 70, "r": 10, "t": 40, "b": 40},
        legend={"orientation": "h", "y": -0.06, "x": 0},
    )
    picture.update_xaxes(visible=False, row=1, col=2)
    picture.update_yaxes(visible=False, row=1, col=2)
    picture.update_yaxes(showticklabels=False, row=1, col=1)
    picture.update_yaxes(showticklabels=False, row=2, col=1)
    update(picture, prediction, trace, window=window)
    return picture


def _share_bars(what: str, colours: Mapping[str, str]) -> Iterator[go.Bar]:
    """The bars of a stacked bar of `what`, without data."""
    for name, colour in colours.items():
        yield go.Bar(
            name=name,
            meta=(what, name),
            orientation="h",
            marker={"color": colour, "line": {"color": "black", "width": 0.5}},
            showlegend=False,
            hovertemplate=f"{name}: %{{x:.2f}}<extra></extra>",
        )


def _memory_items() -> Iterator[go.Bar | go.Scatter]:
    """The bars of the memory and the line of the GPU's capacity, without data."""
    yield from _share_bars(MEMORY, MEMORY_COLOURS)
    yield go.Scatter(
        meta=(CAPACITY, ""),
        mode="lines",
        line={"color": CAP_COLOUR, "dash": "dash"},
        showlegend=False,
        name=CAPACITY,
    )


def _cube_items() -> Iterator[go.Scatter]:
    """The cells of the ranks by stage, the borders of nodes and the ranks' names, without data."""
    for number, colour in enumerate(STAGE_COLOURS):
        yield go.Scatter(
            meta=(STAGE, number),
            mode="lines",
            fill="toself",
            fillcolor=colour,
            line={"color": "white", "width": 1},
            showlegend=False,
            name="",
            hoverinfo="skip",
        )
    yield go.Scatter(
        meta=(BORDERS, ""),
        mode="lines",
        line={"color": "black", "width": 2},
        showlegend=False,
        hoverinfo="skip",
    )
    yield go.Scatter(
        meta=(STAGE, "ranks"),
        mode="text",
        textfont={"size": 9},
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )


def _timeline_bars() -> Iterator[go.Bar]:
    """The bars of each kind of work in the timeline, without data."""
    for kind, colour in ALL_COLOURS.items():
        yield go.Bar(
            name=ALL_MEANING[kind],
            meta=(TIMELINE, kind),
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            textposition="none",
            hovertemplate="%{text}: %{base:.3f} ms, for %{x:.3f} ms<extra></extra>",
        )


def update(
    picture: BaseFigure,
    prediction: Prediction,
    trace: Trace,
    *,
    window: tuple[float, float] | None = None,
) -> None:
    """Show another prediction, trace or window, as `figure` takes them, in a picture that it made.

    The bars and lines stay and get new data.
    """
    items = {tuple(item.meta): item for item in picture.data}
    with picture.batch_update():
        for what, parts, scale in (
            (STEP, step_parts(prediction), 1 / MS),
            (MEMORY, memory_parts(prediction), 1),
        ):
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


def _update_cube(items: Any, view: CubeScene) -> None:
    for number in range(len(STAGE_COLOURS)):
        lines = [
            [*cell.corners, cell.corners[0]]
            for cell in view.cells
            if cell.stage % len(STAGE_COLOURS) == number
        ]
        items[STAGE, number].update(**_pen(lines))
    items[BORDERS, ""].update(**_pen(view.borders))
    middles = [
        tuple(sum(point[axis] for point in cell.corners) / 4 for axis in (0, 1))
        for cell in view.cells
    ]
    items[STAGE, "ranks"].update(
        x=[x for x, _ in middles],
        y=[y for _, y in middles],
        customdata=[cell.text for cell in view.cells],
        text=[str(cell.rank) if len(view.cells) <= 128 else "" for cell in view.cells],
    )


def _pen(lines: Any) -> dict[str, Any]:
    """The points of all `lines` as one line; plotly makes a gap at None."""
    points = [point for line in lines for point in (*line, (None, None))]
    return {"x": [x for x, _ in points], "y": [y for _, y in points]}


def _update_timeline(picture: BaseFigure, items: Any, view: StreamScene) -> None:
    for kind in ALL_COLOURS:
        boxes = [box for box in view.boxes if box.kind == kind]
        items[TIMELINE, kind].update(
            y=[box.row for box in boxes],
            base=[box.start_s / MS for box in boxes],
            x=[(box.end_s - box.start_s) / MS for box in boxes],
            text=[box.text for box in boxes],
            showlegend=bool(boxes),
        )
    axes = items[TIMELINE, "F"]
    x, y = (picture.layout[name[0] + "axis" + name[1:]] for name in (axes.xaxis, axes.yaxis))
    x.update(range=[view.start_s / MS, view.end_s / MS], title_text="time, ms")
    names = [f"rank {rank} {stream}" for rank, stream in view.rows]
    y.update(range=[len(view.rows) - 0.5, -0.5], tickvals=[*range(len(view.rows))], ticktext=names)
