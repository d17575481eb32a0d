"""Interactive pictures of memory with plotly: ZeRO's curves beside the categories of a step, updated in place."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simlab.units import GIB, MS
from simlab.views.scene import CAP_COLOUR, CATEGORY_COLOURS, STAGE_COLOURS, STAGE_DASHES, STAGE_NAMES, steps

CURVE, HERE, LIMIT, AREA, CAPACITY, PEAK, BREACH = "curve", "here", "limit", "area", "capacity", "peak", "breach"


def figure(ranks, curves, here, stack, *, make=go.Figure):
    """A plotly figure: `curves` = {stage: [bytes for each of `ranks`]} with the point `here` = (ranks, bytes), and a `Stack` below.

    make: the class to make it of, e.g. `plotly.graph_objects.FigureWidget`.
    """
    picture = make(make_subplots(rows=2, cols=1, row_heights=[0.42, 0.58], vertical_spacing=0.16, subplot_titles=(" ", " ")))
    picture.update_layout(height=720, template="plotly_white", margin={"l": 70, "r": 20, "t": 50, "b": 90}, legend={"tracegroupgap": 20})
    for stage in STAGE_NAMES:
        line = {"color": STAGE_COLOURS[stage], "dash": STAGE_DASHES[stage], "width": 2.5}
        hover = f"{STAGE_NAMES[stage]}, %{{x}} ranks: %{{y:.2f}} GiB<extra></extra>"
        item = go.Scatter(name=STAGE_NAMES[stage], meta=(CURVE, stage), mode="lines", line=line, legendgroup="zero", hovertemplate=hover)
        picture.add_trace(item, row=1, col=1)
    dot = {"color": "black", "size": 12, "symbol": "diamond", "line": {"color": "white", "width": 1}}
    picture.add_trace(go.Scatter(name="chosen", meta=(HERE, 0), mode="markers", marker=dot, legendgroup="zero"), row=1, col=1)
    red = {"color": CAP_COLOUR, "dash": "dash", "width": 2}
    picture.add_trace(go.Scatter(name="the GPU's memory", meta=(LIMIT, 0), mode="lines", line=red, legendgroup="zero"), row=1, col=1)
    for category, colour in CATEGORY_COLOURS.items():
        hover = f"{category}: %{{customdata:.2f}} GiB, %{{text}}<extra></extra>"
        fill = "tonexty" if any(item.meta[0] == AREA for item in picture.data) else "tozeroy"
        item = go.Scatter(
            name=category, meta=(AREA, category), mode="lines", fill=fill, line={"width": 0, "color": colour}, fillcolor=colour,
            legendgroup="held", hovertemplate=hover,
        )  # fmt: skip
        picture.add_trace(item, row=2, col=1)
    picture.add_trace(go.Scatter(meta=(CAPACITY, 0), mode="lines", line=red, showlegend=False), row=2, col=1)
    for what, colour, symbol in ((PEAK, "black", "triangle-down"), (BREACH, CAP_COLOUR, "x")):
        marker = {"color": colour, "size": 11, "symbol": symbol}
        item = go.Scatter(
            name=what, meta=(what, 0), mode="markers", marker=marker, legendgroup="held", hovertemplate="%{text}<extra></extra>"
        )
        picture.add_trace(item, row=2, col=1)
    picture.update_xaxes(type="log", title_text="data-parallel ranks", row=1, col=1)
    picture.update_yaxes(type="log", title_text="model states, GiB", row=1, col=1)
    picture.update_yaxes(title_text="GiB on a rank", rangemode="tozero", row=2, col=1)
    update(picture, ranks, curves, here, stack)
    return picture


def update(picture, ranks, curves, here, stack):
    """Show other values in a picture that `figure` made."""
    scale = MS if stack.timed else 1
    edges = [edge / scale for edge in stack.edges]
    ops = steps(stack.edges, stack.ops)[1]
    totals = [total / GIB for total in stack.totals]
    cap = stack.capacity_bytes / GIB if stack.capacity_bytes else None
    data = {(CURVE, stage): {"x": list(ranks), "y": [amount / GIB for amount in amounts]} for stage, amounts in curves.items()}
    data |= {
        (HERE, 0): {"x": [here[0]], "y": [here[1] / GIB]},
        (LIMIT, 0): {"x": [ranks[0], ranks[-1]], "y": [cap, cap], "visible": cap is not None},
        (CAPACITY, 0): {"x": [edges[0], edges[-1]], "y": [cap, cap], "visible": cap is not None},
        (PEAK, 0): _point(edges, stack, totals, stack.peak),
        (BREACH, 0): _point(edges, stack, totals, stack.breach),
    }
    below = [0.0] * len(stack.ops)
    for category in CATEGORY_COLOURS:  # each area reaches down to the line before it: one that is not there is flat
        amounts = [amount / GIB for amount in stack.held.get(category, [0.0] * len(below))]
        below = [low + amount for low, amount in zip(below, amounts)]
        xs, ys = steps(edges, below)
        data[AREA, category] = {"x": xs, "y": ys, "text": ops, "customdata": steps(edges, amounts)[1]}
    with picture.batch_update():
        for item in picture.data:
            values = data.get(tuple(item.meta), {"x": [], "y": []})
            item.update({"visible": True, **values})
        picture.layout.annotations[0].text = "model states under ZeRO, without activations"
        picture.layout.annotations[1].text = f"one step: {stack}"
        every = -(-len(stack.ops) // 14)
        shown = range(0, len(stack.ops), every)
        axis = {"title_text": "time, ms", "tickmode": "auto"} if stack.timed else {
            "tickmode": "array", "tickvals": [i + 0.5 for i in shown], "ticktext": [stack.ops[i] for i in shown], "title_text": "",
        }  # fmt: skip
        picture.layout.xaxis2.update(range=[edges[0], edges[-1]], **axis)


def _point(edges, stack, totals, interval):
    if interval is None:
        return {"x": [], "y": [], "text": []}
    return {"x": [(edges[interval] + edges[interval + 1]) / 2], "y": [totals[interval]], "text": [stack.at(interval)]}
