"""It draws a round of a collective, and the curves of an all-reduce, with plotly, updated in
place."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.basedatatypes import BaseFigure
from plotly.subplots import make_subplots

from simlab.collectives.curves import CurvePoint
from simlab.collectives.replay import RoundState
from simlab.views.rounds import (
    ADDED_COLOUR,
    ALGORITHM_COLOURS,
    DARK,
    LIGHT,
    REPLACED_COLOUR,
    SIZE_LABELS,
    SIZE_TICKS,
    Curve,
    Grid,
    arrow_place,
    curves,
    grid,
)

ALGORITHMS = ("ring", "tree", "nvls", "hierarchical")
CHOSEN = "NCCL takes this"
OUTLINES = {"just arrived, added": ADDED_COLOUR, "just arrived, put in place": REPLACED_COLOUR}


def figure(*, make: Callable[..., BaseFigure] = go.Figure, height_px: int = 470) -> BaseFigure:
    """An empty plotly figure with the items that `update` fills.

    make:      the class of the figure, such as `plotly.graph_objects.FigureWidget`.
    height_px: the height of the figure, in pixels.

    The `meta` of each item says which one it is.
    """
    picture = make(
        make_subplots(
            rows=2,
            cols=2,
            specs=[[{"rowspan": 2}, {}], [None, {}]],
            column_widths=(0.52, 0.48),
            horizontal_spacing=0.09,
            vertical_spacing=0.12,
        )
    )
    picture.update_layout(
        height=height_px, margin={"l": 60, "r": 20, "t": 80, "b": 50}, template="plotly_white"
    )
    picture.update_layout(
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.06, "yanchor": "bottom"}
    )
    for item in _grid_items():
        picture.add_trace(item, row=1, col=1)
    for row, unit in ((1, "ms"), (2, "GB/s")):
        for item in _curve_items(row, unit):
            picture.add_trace(item, row=row, col=2)
    picture.update_xaxes(type="log", tickvals=SIZE_TICKS, ticktext=SIZE_LABELS, col=2)
    picture.update_xaxes(showgrid=False, zeroline=False, col=1)
    picture.update_yaxes(showgrid=False, zeroline=False, col=1)
    picture.update_yaxes(type="log", title_text="time, ms", row=1, col=2)
    picture.update_yaxes(title_text="busbw, GB/s", row=2, col=2)
    return picture


def _grid_items() -> Iterator[go.Heatmap | go.Scatter]:
    """The cells, the outlines of what arrived, and the arrows, without data."""
    yield go.Heatmap(
        meta="cells",
        zmin=0,
        zmax=1.15,
        colorscale=[[0, LIGHT], [1, DARK]],
        showscale=False,
        texttemplate="%{text}",
        xgap=2,
        ygap=2,
    )
    for name, colour in OUTLINES.items():
        line = {"color": colour, "width": 3}
        marker = {"symbol": "square-open", "size": 26, "line": line, "color": colour}
        yield go.Scatter(meta=name, name=name, mode="markers", marker=marker, hoverinfo="skip")
    yield go.Scatter(
        meta="arrows",
        mode="lines+markers",
        line={"color": "#404040", "width": 1.5, "shape": "spline"},
        showlegend=False,
        hoverinfo="skip",
    )


def _curve_items(row: int, unit: str) -> Iterator[go.Scatter]:
    """The line of each algorithm and the marks of what NCCL takes, without data."""
    for name in ALGORITHMS:
        yield go.Scatter(
            meta=(row, name),
            name=name,
            legendgroup=name,
            showlegend=row == 1,
            line={"color": ALGORITHM_COLOURS[name], "width": 2.5},
            hovertemplate=f"{name}, %{{x}} MiB: %{{y:.3g}} {unit}<extra></extra>",
        )
    yield go.Scatter(
        meta=(row, CHOSEN),
        name=CHOSEN,
        legendgroup=CHOSEN,
        showlegend=row == 1,
        mode="markers",
        marker={"symbol": "circle-open", "size": 9, "color": "black"},
    )


def update(picture: BaseFigure, step: RoundState, points: Sequence[CurvePoint], title: str) -> None:
    """Show `step` on the left, the curves of `points` on the right, and `title` above both."""
    view, lines = grid(step), {line.algorithm: line for line in curves(points)}
    items = {
        tuple(item.meta) if isinstance(item.meta, (list, tuple)) else item.meta: item
        for item in picture.data
    }
    with picture.batch_update():
        items["cells"].update(z=view.shares, text=view.texts)
        for name, cells in zip(OUTLINES, (view.added, view.replaced)):
            items[name].update(x=[column for _, column in cells], y=[row for row, _ in cells])
            items[name].marker.size = max(8, min(40, 300 // max(len(view.rows), len(view.columns))))
        items["arrows"].update(_arrows(view))
        for row in (1, 2):
            for name in ALGORITHMS:
                items[row, name].update(_curve(lines.get(name), row))
            items[row, CHOSEN].update(_chosen(lines.values(), row))
        rows, columns = len(view.rows), len(view.columns)
        picture.layout.xaxis.update(
            tickvals=[*range(columns)], ticktext=view.columns, title_text="part of the buffer"
        )
        picture.layout.xaxis.range = (-0.5 - 0.29 * columns, columns - 0.5)
        picture.layout.yaxis.update(
            tickvals=[*range(rows)], ticktext=view.rows, range=(rows - 0.5, -0.5)
        )
        picture.layout.title.text = f"{view.title} · {title}"


def _arrows(view: Grid) -> dict[str, Any]:
    """Bent lines from sender to receiver with a head at the end; plotly makes a gap at None."""
    x, y, symbols = [], [], []
    for source, destination in view.arrows:
        at, bend = arrow_place(view, source, destination)
        x += [at, at - bend * (1 if destination < source else -1), at, None]
        y += [source, (source + destination) / 2, destination, None]
        symbols += [0, 0, 10, 0]
    return {
        "x": x,
        "y": y,
        "marker": {"symbol": "arrow", "angleref": "previous", "size": symbols, "color": "#404040"},
    }


def _curve(line: Curve | None, row: int) -> dict[str, Any]:
    if line is None:
        return {"x": [], "y": [], "visible": False}
    return {"x": line.sizes_mib, "y": line.times_ms if row == 1 else line.busbw_gb, "visible": True}


def _chosen(lines: Collection[Curve], row: int) -> dict[str, Any]:
    points = [
        (line.sizes_mib[at], (line.times_ms if row == 1 else line.busbw_gb)[at])
        for line in lines
        if line.chosen
        for at in line.chosen
    ]
    return {"x": [x for x, _ in sorted(points)], "y": [y for _, y in sorted(points)]}
