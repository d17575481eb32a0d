"""It draws memory with plotly: ZeRO's curves above the categories of a step, updated in place."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.basedatatypes import BaseFigure
from plotly.subplots import make_subplots

from simlab.analysis import Stack
from simlab.units import GIB, MS
from simlab.views.scene import (
    CAP_COLOUR,
    CATEGORY_COLOURS,
    STAGE_COLOURS,
    STAGE_DASHES,
    STAGE_NAMES,
    steps,
)

CURVE, HERE, LIMIT, AREA, CAPACITY, PEAK, BREACH = (
    "curve",
    "here",
    "limit",
    "area",
    "capacity",
    "peak",
    "breach",
)


def figure(
    ranks: Sequence[int],
    curves: Any,
    here: Any,
    stack: Stack,
    *,
    make: Callable[..., BaseFigure] = go.Figure,
) -> BaseFigure:
    """A plotly figure of the model states under ZeRO, and of what a rank holds over a step.

    ranks:  the numbers of data-parallel ranks.
    curves: {ZeRO stage: [bytes for each of `ranks`]}.
    here:   (ranks, bytes) of the chosen point.
    stack:  the `Stack` of the step, which is drawn below the curves.
    make:   the class of the figure, such as `plotly.graph_objects.FigureWidget`.
    """
    picture = make(
        make_subplots(
            rows=2,
            cols=1,
            row_heights=[0.42, 0.58],
            vertical_spacing=0.16,
            subplot_titles=(" ", " "),
        )
    )
    picture.update_layout(
        height=720,
        template="plotly_white",
        margin={"l": 70, "r": 20, "t": 50, "b": 90},
        legend={"tracegroupgap": 20},
    )
    for item in _curve_items():
        picture.add_trace(item, row=1, col=1)
    for item in _stack_items():
        picture.add_trace(item, row=2, col=1)
    picture.update_xaxes(type="log", title_text="data-parallel ranks", row=1, col=1)
    picture.update_yaxes(type="log", title_text="model states, GiB", row=1, col=1)
    picture.update_yaxes(title_text="GiB on a rank", rangemode="tozero", row=2, col=1)
    update(picture, ranks, curves, here, stack)
    return picture


RED = {"color": CAP_COLOUR, "dash": "dash", "width": 2}


def _curve_items() -> Iterator[go.Scatter]:
    """The lines of ZeRO's stages, the chosen point and the GPU's memory, without data."""
    for stage, name in STAGE_NAMES.items():
        yield go.Scatter(
            name=name,
            meta=(CURVE, stage),
            mode="lines",
            line={"color": STAGE_COLOURS[stage], "dash": STAGE_DASHES[stage], "width": 2.5},
            legendgroup="zero",
            hovertemplate=f"{name}, %{{x}} ranks: %{{y:.2f}} GiB<extra></extra>",
        )
    edge = {"color": "white", "width": 1}
    dot = {"color": "black", "size": 12, "symbol": "diamond", "line": edge}
    yield go.Scatter(name="chosen", meta=(HERE, 0), mode="markers", marker=dot, legendgroup="zero")
    yield go.Scatter(
        name="the GPU's memory", meta=(LIMIT, 0), mode="lines", line=RED, legendgroup="zero"
    )


def _stack_items() -> Iterator[go.Scatter]:
    """The areas of the categories, the GPU's memory, the peak and the breach, without data."""
    for number, (category, colour) in enumerate(CATEGORY_COLOURS.items()):
        yield go.Scatter(
            name=category,
            meta=(AREA, category),
            mode="lines",
            fill="tonexty" if number else "tozeroy",
            line={"width": 0, "color": colour},
            fillcolor=colour,
            legendgroup="held",
            hovertemplate=f"{category}: %{{customdata:.2f}} GiB, %{{text}}<extra></extra>",
        )
    yield go.Scatter(meta=(CAPACITY, 0), mode="lines", line=RED, showlegend=False)
    for what, colour, symbol in ((PEAK, "black", "triangle-down"), (BREACH, CAP_COLOUR, "x")):
        yield go.Scatter(
            name=what,
            meta=(what, 0),
            mode="markers",
            marker={"color": colour, "size": 11, "symbol": symbol},
            legendgroup="held",
            hovertemplate="%{text}<extra></extra>",
        )


def update(picture: BaseFigure, ranks: Sequence[int], curves: Any, here: Any, stack: Stack) -> None:
    """Show other values, as `figure` takes them, in a picture that `figure` made."""
    edges = [edge / (MS if stack.timed else 1) for edge in stack.edges]
    cap = stack.capacity_bytes / GIB if stack.capacity_bytes else None
    limit: dict[str, Any] = {"y": [cap, cap], "visible": cap is not None}
    data: dict[tuple[str, Any], dict[str, Any]] = {
        (CURVE, stage): {"x": list(ranks), "y": [amount / GIB for amount in amounts]}
        for stage, amounts in curves.items()
    }
    data |= {
        (HERE, 0): {"x": [here[0]], "y": [here[1] / GIB]},
        (LIMIT, 0): {"x": [ranks[0], ranks[-1]], **limit},
        (CAPACITY, 0): {"x": [edges[0], edges[-1]], **limit},
        (PEAK, 0): _point(edges, stack, stack.peak),
        (BREACH, 0): _point(edges, stack, stack.breach),
    }
    data |= _areas(edges, stack)
    with picture.batch_update():
        for item in picture.data:
            values = data.get(tuple(item.meta), {"x": [], "y": []})
            item.update({"visible": True, **values})
        picture.layout.annotations[0].text = "model states under ZeRO, without activations"
        picture.layout.annotations[1].text = f"one step: {stack}"
        picture.layout.xaxis2.update(range=[edges[0], edges[-1]], **_axis(stack))


def _areas(edges: Sequence[float], stack: Stack) -> dict[tuple[str, Any], dict[str, Any]]:
    """The stepped area of each category, on top of those before it.

    Each area reaches down to the line before it, so a category that does not occur is a flat area.
    """
    ops = [op for op in stack.ops for _ in (0, 1)]
    below, areas = [0.0] * len(stack.ops), {}
    for category in CATEGORY_COLOURS:
        amounts = [amount / GIB for amount in stack.held.get(category, [0.0] * len(below))]
        below = [low + amount for low, amount in zip(below, amounts)]
        xs, ys = steps(edges, below)
        held = steps(edges, amounts)[1]
        areas[AREA, category] = {"x": xs, "y": ys, "text": ops, "customdata": held}
    return areas


def _axis(stack: Stack) -> dict[str, Any]:
    """The horizontal axis of a stack: milliseconds, or the names of at most 14 ops."""
    if stack.timed:
        return {"title_text": "time, ms", "tickmode": "auto"}
    shown = range(0, len(stack.ops), -(-len(stack.ops) // 14))
    return {
        "tickmode": "array",
        "tickvals": [i + 0.5 for i in shown],
        "ticktext": [stack.ops[i] for i in shown],
        "title_text": "",
    }


def _point(edges: Sequence[float], stack: Stack, interval: int | None) -> dict[str, Any]:
    """A mark in the middle of an interval, at its total; nothing if `interval` is None."""
    if interval is None:
        return {"x": [], "y": [], "text": []}
    return {
        "x": [(edges[interval] + edges[interval + 1]) / 2],
        "y": [stack.totals[interval] / GIB],
        "text": [stack.at(interval)],
    }
