"""Streams of a layer-by-layer trace as a matplotlib figure: what computes, what communicates, and what waits."""

from simlab.trace import COMPUTE
from simlab.units import seconds_text
from simlab.views.scene import COLOURS
from simlab.views.still import Picture

STREAM_COLOURS = {"tp": "#D55E00", "cp": "#CC79A7", "dp": "#0072B2", "send": "#999999"}
"""Of communication (Okabe and Ito's palette); what computes has its op's colour."""


def figure(traces, *, only="", shown=(COMPUTE, "tp", "cp"), names=None):
    """A figure with a row for each stream in `shown` of each rank, one trace under the other on one time axis that starts at 0.

    only:  draw the spans whose op begins with this, '0F0 layer 1' for one layer's forward.
    names: the traces' titles, in place of their own.
    """
    picked = [[span for span in trace.spans if span.op.startswith(only) and span.stream in shown] for trace in traces]
    ranks = [sorted({span.rank for span in spans}) for spans in picked]
    used = [stream for stream in shown if any(span.stream == stream for spans in picked for span in spans)]
    rows = [len(its) * len(used) for its in ranks]
    picture = Picture(figsize=(10, 0.9 + sum(0.28 * row + 0.5 for row in rows)), layout="constrained", dpi=90)
    axes = picture.subplots(len(traces), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    for at, (trace, spans, axis) in enumerate(zip(traces, picked, axes)):
        zero_s = min(span.start_s for span in spans)
        row = {(rank, stream): number for number, (rank, stream) in enumerate((rank, stream) for rank in ranks[at] for stream in used)}
        for span in spans:
            box = [((span.start_s - zero_s) * 1e3, (span.end_s - span.start_s) * 1e3)]
            edge = {"edgecolor": "black", "linewidth": 0.4}
            axis.broken_barh(box, (row[span.rank, span.stream] - 0.42, 0.84), facecolor=_colour(span), **edge)
        labels = [f"rank {rank}  {stream}" if len(ranks[at]) > 1 else stream for rank, stream in row]
        axis.set_yticks(range(len(row)), labels, fontsize=8)
        axis.set_ylim(len(row) - 0.4, -0.6)
        lasts_s = max(span.end_s for span in spans) - zero_s
        name = names[at] if names else trace.metadata.get("name", "")
        axis.set_title(f"{name}: {seconds_text(lasts_s)}", fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("ms")
    return picture


def _colour(span):
    """The op's for what computes: 'F' of '2F0 layer 3'."""
    if span.stream != COMPUTE:
        return STREAM_COLOURS[span.stream]
    kind = span.op.lstrip("0123456789")[:1]
    return COLOURS.get(kind, COLOURS["F"])
