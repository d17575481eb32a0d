"""It draws charts as one figure of plotly, below each other, each with its title and its legend."""

from collections.abc import Sequence
from math import log2, log10
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from simlab.errors import InputError
from simlab.views.chart import Area, Arrows, Axis, Boxes, Chart, Rule, Words
from simlab.views.interactive.marks import Look, positions, shape, traces
from simlab.views.language import LANGUAGE

MOST_MARKS = 20_000
"""The most boxes and points of a figure: a browser takes seconds for more."""
TITLE_LETTERS, TITLE_PX, TITLE_SIZE = 120, 20, 14
TICKS_PX, LABEL_PX, GAP_PX, ENTRY_PX = 26, 22, 22, 19
"""The heights of an axis, of its label, of what lies between two charts, and of a legend's entry."""
TICK_LETTERS, LETTER_PX = 110, 7.5
"""The letters that have room below an axis, and the length of one in a label beside an axis."""
STRETCH = 1.3
"""How much higher than elsewhere a chart is: plotly leaves room around the texts in boxes."""
EDGE = 0.1
"""How near the border of a picture, as a part of its width, a text would reach out of it."""
MARGIN = 0.04
"""Around marks that fill nothing, as a fraction of the axis."""


def figure(pictures: Sequence[Chart], *, tongue: str = "en", theme: str = "light") -> go.Figure:
    """The plotly Figure of charts: each has its own axes and its own legend, and those over time
    zoom together.

    tongue: the language of the texts, "en" or "zh". theme: "light" or "dark".

    Raises `InputError` without a chart, for another language or theme, and for more than
    `MOST_MARKS` boxes and points.
    """
    _check(pictures, tongue, theme)
    look = Look(tongue, theme)
    layout = _style(look)
    drawn: list[dict[str, Any]] = []
    slots = [_Slot(chart, look) for chart in pictures]
    layout["height"] = sum(slot.height for slot in slots) + 20
    whole, below = layout["height"] - 20, 0.0
    timed = ""
    for number, slot in enumerate(slots, 1):
        suffix = "" if number == 1 else str(number)
        top = 1 - (below + slot.title_px) / whole
        axes = _axes(slot, look, suffix, (top - slot.plot_px / whole, top))
        if slot.chart.timed:
            if timed:
                axes[f"xaxis{suffix}"]["matches"] = timed
            timed = timed or f"x{suffix}"
        layout |= axes
        layout[f"legend{suffix}"] = _legend(top)
        layout["annotations"] += slot.title(1 - below / whole)
        layout["shapes"] += _rules(slot.chart, look, suffix)
        drawn += _traces(slot.chart, look, suffix)
        below += slot.height
    return go.Figure(drawn, layout)


def _check(pictures: Sequence[Chart], tongue: str, theme: str) -> None:
    if not pictures:
        raise InputError("no chart to draw: give at least one")
    for name, value, known in (
        ("tongue", tongue, Words._fields),
        ("theme", theme, LANGUAGE["themes"]),
    ):
        if value not in known:
            raise InputError(f"{name} = {value!r}: give one of {', '.join(known)}")
    marks = [mark for chart in pictures for mark in chart.marks if not isinstance(mark, Rule)]
    count = sum(len(mark.x0 if isinstance(mark, Boxes | Arrows) else mark.x) for mark in marks)
    if count > MOST_MARKS:
        raise InputError(
            f"{count:,} boxes and points: a figure of plotly takes at most {MOST_MARKS:,}; "
            'timeline(trace, renderer="canvas") draws any number'
        )


class _Slot:
    """The place of a chart in the figure: its title, its plot, and the room for its legend."""

    def __init__(self, chart: Chart, look: Look) -> None:
        self.chart = chart
        lines = [
            part for line in look.text(chart.title).split("<br>") for part in _wrapped(line, look)
        ]
        self.lines = [line for line in lines if line]
        self.title_px = TITLE_PX * len(self.lines) + 6
        axis_px = 0 if chart.bare else TICKS_PX + LABEL_PX * bool(chart.x.label.en)
        self.plot_px = max(STRETCH * (chart.height - axis_px), 30)
        legend_px = ENTRY_PX * len(chart.legend()) + 14
        self.height = self.title_px + max(self.plot_px + axis_px, legend_px) + GAP_PX

    def title(self, top: float) -> list[dict[str, Any]]:
        """The title, if there is one, with its upper edge at `top`."""
        place = {"xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left"}
        text = {"text": "<br>".join(self.lines), "align": "left", "font": {"size": TITLE_SIZE}}
        return [place | text | {"yanchor": "top", "showarrow": False}] if self.lines else []


def _wrapped(line: str, look: Look) -> list[str]:
    if look.tongue == "zh":  # which has no spaces to break a line at
        room = TITLE_LETTERS // 2
        return [line[at : at + room] for at in range(0, len(line), room)]
    return wrap(line, TITLE_LETTERS, break_on_hyphens=False)


def _style(look: Look) -> dict[str, Any]:
    background = look.colour("background")
    return {
        "template": "none",
        "paper_bgcolor": background,
        "plot_bgcolor": background,
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": look.colour("ink")},
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "barmode": "overlay",
        "uniformtext": {"minsize": 8, "mode": "hide"},
        "hovermode": "closest",
        "annotations": [],
        "shapes": [],
    }


def _legend(top: float) -> dict[str, Any]:
    at = {"x": 1.01, "xanchor": "left", "y": top, "yanchor": "top"}
    return at | {"tracegroupgap": 0, "bgcolor": "rgba(0,0,0,0)", "itemsizing": "constant"}


def _traces(chart: Chart, look: Look, suffix: str) -> list[dict[str, Any]]:
    """The traces of all marks. Those of one name have one entry in the legend."""
    found = []
    named: set[Words] = set()
    for mark in chart.marks:
        for trace in traces(mark, look):
            trace |= {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "legend": f"legend{suffix}"}
            name, hidden = mark.name, not trace.get("showlegend", True)
            if name is not None:
                trace |= {"name": look.text(name), "legendgroup": look.text(name)}
            if trace.get("textposition") == "top center":
                trace["textposition"] = _inward(trace["x"], _range(chart, chart.x, "x", 0.0), chart)
            trace["showlegend"] = name is not None and not hidden and name not in named
            if trace["showlegend"] and name is not None:
                named.add(name)
            found.append(trace)
    return found


def _inward(x: Sequence[float], ends: Sequence[float], chart: Chart) -> list[str]:
    """On which side of each point a text above it has room: near the border the one inward."""
    bent = chart.x.scale != "linear"
    shares = [((log10(at) if bent else at) - ends[0]) / (ends[1] - ends[0] or 1) for at in x]
    return [
        "top right" if share < EDGE else "top left" if share > 1 - EDGE else "top center"
        for share in shares
    ]


def _rules(chart: Chart, look: Look, suffix: str) -> list[dict[str, Any]]:
    """The shapes of a chart's rules."""
    found = []
    named: set[Words] = set()
    for mark in chart.marks:
        if not isinstance(mark, Rule):
            continue
        x, y = f"x{suffix}", f"y{suffix}"
        at = (
            {"xref": f"{x} domain", "x0": 0, "x1": 1, "yref": y, "y0": mark.y, "y1": mark.y}
            if mark.y is not None
            else {"yref": f"{y} domain", "y0": 0, "y1": 1, "xref": x, "x0": mark.x, "x1": mark.x}
        )
        its = shape(mark, look) | at
        if mark.name is not None:
            its |= {"name": look.text(mark.name), "legend": f"legend{suffix}"}
            its["showlegend"] = mark.name not in named
            named.add(mark.name)
        found.append(its)
    return found


def _axes(
    slot: _Slot, look: Look, suffix: str, domain: tuple[float, float]
) -> dict[str, dict[str, Any]]:
    chart = slot.chart
    filled = all(isinstance(mark, Area | Boxes | Rule) for mark in chart.marks)
    margin = 0.0 if filled else 0.15 if chart.bare else MARGIN
    x = _axis(chart, chart.x, "x", margin, look)
    y = _axis(chart, chart.y, "y", margin, look)
    x |= {"anchor": f"y{suffix}", "domain": (0, 1)}
    y |= {"anchor": f"x{suffix}", "domain": domain, "automargin": True}
    lines = wrap(y["title"]["text"], max(8, int(slot.plot_px / LETTER_PX)))
    y["title"]["text"] = "<br>".join(lines)
    if chart.square:
        y |= {"scaleanchor": f"x{suffix}", "constrain": "domain", "constraintoward": "top"}
        x |= {"constrain": "domain", "constraintoward": "left"}
    return {f"xaxis{suffix}": x, f"yaxis{suffix}": y}


def _axis(chart: Chart, axis: Axis, letter: str, margin: float, look: Look) -> dict[str, Any]:
    its: dict[str, Any] = {
        "type": "linear" if axis.scale == "linear" else "log",
        "range": _range(chart, axis, letter, margin),
        "title": {
            "text": look.text(axis.label),
            "standoff": 6,
            "font": {"color": look.colour("muted")},
        },
        "visible": not chart.bare,
        "showgrid": False,
        "zeroline": False,
        "showline": True,
        "linecolor": look.colour("axis"),
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": look.colour("axis"),
    }
    if axis.ticks is not None:
        texts = [look.text(name) for name in axis.names] if axis.names is not None else None
        kept = _kept(texts, letter, len(axis.ticks))
        its["tickvals"] = list(axis.ticks)[::kept]
        its["ticktext"] = texts and texts[::kept]
    elif axis.scale == "log2":
        its |= {"dtick": log10(2), "tickformat": ",.8~r"}
    elif axis.scale == "log10":
        its |= {"tickformat": ",.8~r"}
    else:
        its |= {"nticks": 7, "tickformat": ",.8~r"}
    return its


def _kept(texts: Sequence[str] | None, letter: str, count: int) -> int:
    """Every how manieth of the texts below an axis has room."""
    letters = sum(len(text) + 2 for text in texts) if texts else 6 * count
    return 1 if letter == "y" else max(1, -(-letters // TICK_LETTERS))


def _range(chart: Chart, axis: Axis, letter: str, margin: float) -> list[float]:
    """The interval that is shown, as plotly wants it: logarithms on a logarithmic axis, and turned
    round where it grows downward."""
    bent = axis.scale != "linear"
    there = [at for mark in chart.marks for at in positions(mark, letter) if at > 0 or not bent]
    low, high = (min(there), max(there)) if there else (1.0, 2.0) if bent else (0.0, 1.0)
    if bent:
        low, high = log2(low), log2(high)
    room = margin * (high - low) or (0.5 if low == high else 0.0)
    low, high = low - room, high + room
    if bent:
        low, high = 2**low, 2**high
    ends = [
        low if axis.least is None else axis.least,
        high if axis.most is None else axis.most,
    ]
    if bent:
        ends = [log10(end) for end in ends]
    return ends[::-1] if axis.down else ends
