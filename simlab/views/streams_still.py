"""Layer-by-layer traces as still pictures: for each trace the streams of one rank, one row each, on one time axis."""

import re

from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from simlab.trace import COMPUTE
from simlab.units import MS, seconds_text
from simlab.views.scene import COLOURS, MEANING
from simlab.views.still import LABEL_ROOM, Picture

COMMUNICATION = {"gather": "#0072B2", "scatter": "#D55E00", "gradients": "#D55E00", "message": "#999999"}
OTHER = "#CC79A7"


def streams_figure(traces, *, rank=0, titles=None, streams=(COMPUTE, "tp", "cp", "dp"), until_s=None, width_in=12.0):
    """A Figure of `rank` in each of `traces`: forwards and backwards on the compute stream, collectives on theirs, with layers' numbers.

    titles:  one text per trace; None: their names.
    streams: those that are shown, where anything is on them.
    until_s: where the time axis ends, counted from each trace's begin; None: with the longest.
    """
    there = [[stream for stream in streams if any(s.stream == stream and s.rank == rank for s in trace.spans)] for trace in traces]
    picture = Picture(figsize=(width_in, sum(0.55 + 0.34 * len(names) for names in there) + 0.9), layout="constrained", dpi=110)
    axes = picture.subplots(len(traces), 1, sharex=True, squeeze=False, height_ratios=[0.5 + len(names) for names in there])[:, 0]
    end_ms = (until_s or max(trace.step_s for trace in traces)) / MS
    labels = {}
    for number, (panel, trace, names) in enumerate(zip(axes, traces, there)):
        text = trace.metadata.get("name", "") if titles is None else titles[number]
        panel.set_title(f"{text}: {seconds_text(trace.step_s)}", loc="left", fontsize=10)
        labels |= _draw(panel, trace, rank, names, end_ms)
    axes[-1].set_xlabel("time, ms")
    axes[-1].set_xlim(0, end_ms * 1.005)
    handles = [Patch(facecolor=colour, edgecolor="black", linewidth=0.4, label=label) for label, colour in labels.items()]
    picture.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=9)
    return picture


def _draw(axes, trace, rank, names, end_ms):
    """The spans of `rank`; {label: colour} of what was drawn."""
    labels = {}
    for span in trace.spans:
        if span.rank != rank or span.stream not in names or span.end_s == span.start_s:
            continue
        left, right = (span.start_s - trace.start_s) / MS, (span.end_s - trace.start_s) / MS
        row = names.index(span.stream)
        what, colour = _look(span)
        labels[what] = colour
        corners = [(left, row - 0.4), (right, row - 0.4), (right, row + 0.4), (left, row + 0.4)]
        axes.add_collection(PolyCollection([corners], facecolors=colour, edgecolors="black", linewidths=0.3))
        layer = re.search(r"layer (\d+)", span.op)
        if layer and right - left > LABEL_ROOM * end_ms and left < end_ms:
            shade = "white" if colour in COMMUNICATION.values() else "black"
            axes.text((left + right) / 2, row, layer[1], ha="center", va="center", fontsize=8, color=shade, clip_on=True)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return labels


def _look(span):
    """(what the legend calls it, its colour)"""
    if span.stream == COMPUTE:
        kind = re.match(r"\d+([FBIW])", span.op)
        return (MEANING[kind[1]], COLOURS[kind[1]]) if kind else ("other", OTHER)
    for word, colour in COMMUNICATION.items():
        if word in span.op:
            return {"scatter": "reduce gradients", "gradients": "reduce gradients", "gather": "gather parameters"}.get(word, word), colour
    return f"{span.stream} collective", OTHER
