"""The one rule for pictures of streams: in which row a span stands, as which kind of work of the
visual language it is drawn, what is written into it, and when a rank waits."""

from collections.abc import Sequence

from simlab.trace import COMPUTE, OPTIMIZER, SEND, Span, Trace
from simlab.views.chart import Words
from simlab.views.language import LANGUAGE

STREAMS = (
    COMPUTE, "tp", "cp", "ep", "dp", "edp", "replicas", "pp", "ends", SEND, "offload out", "offload in",
    "drive",
)  # fmt: skip
"""Streams from the top down; others follow."""
STREAM_NAMES = {
    COMPUTE: Words("compute", "计算"),
    "replicas": Words("replicas", "副本"),
    "ends": Words("tied weights", "共享权重"),
}
WORK_OF_KIND = {
    "all_gather": "gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
    "ring": "ring",
    "message": "send",
    "copy": "offload",
    OPTIMIZER: "optimizer",
}
"""{kind of a span: the kind of work in the visual language that it is drawn as}"""
OTHER = "communication"
"""The kind of work of a communication whose kind is not known."""


def stream_of(span: Span) -> str:
    """The stream in whose row `span` is drawn; the optimizer computes."""
    return COMPUTE if span.stream == OPTIMIZER else span.stream


def place(stream: str) -> tuple[int, str]:
    """The place of `stream` among the rows of a rank, to sort by."""
    return (STREAMS.index(stream) if stream in STREAMS else len(STREAMS)), stream


def work_of(span: Span) -> str:
    """The entry of the visual language's table "work" as which `span` is drawn."""
    if span.stream == COMPUTE:
        return span.op_kind or "F"
    known = "send" if span.stream == SEND else OTHER
    return WORK_OF_KIND.get(OPTIMIZER if span.stream == OPTIMIZER else span.kind, known)


def work_name(work: str) -> Words:
    """What a legend calls an entry of the table "work", such as 'F forward' or 'all-gather'."""
    entry = LANGUAGE["work"][work]
    english, chinese = entry["en"], entry["zh"]
    return (
        Words(f"{work} {english}", f"{work} {chinese}")
        if work in "FBIW"
        else Words(english, chinese)
    )


def works(used: set[str]) -> list[str]:
    """The entries in `used`, in the order of the visual language."""
    return [work for work in LANGUAGE["work"] if work in used]


def label(span: Span, row: str = "rank") -> str:
    """What is written into the box of `span`: what is done in the unit, such as 'QKV' or 'MLP'; of
    a message where it goes; the whole text where it is no part of a unit."""
    if span.part:
        return span.part
    text = f"{span.op} to {row} {span.peer}" if span.stream == SEND else span.op
    within = text.removeprefix(span.op_text).strip()
    inside = within.removeprefix(span.unit).strip() if span.unit else within
    return inside or within or text


def short_label(label: str) -> str:
    """What stands where `label` has no room: the first of several operations, 'QKV…' of 'QKV,
    attention', the number of a layer, 'L9' of 'layer 9', or a count, '1' of '1 of 8'."""
    first, comma, _ = label.partition(", ")
    if label.startswith("layer ") and label[6:].isdecimal():
        return f"L{label[6:]}"
    count, of, _ = label.partition(" of ")
    if of and count.isdecimal():
        return count
    return f"{first}…" if comma else ""


def row_word(trace: Trace) -> str:
    """What a row of `trace` is: 'rank', or 'stage' or 'pp' where one stands for all ranks of it."""
    return str(trace.metadata.get("row", "rank"))


def idle(
    spans: Sequence[Span], rank: int, start_s: float, end_s: float
) -> list[tuple[float, float]]:
    """[(start, end)] in seconds of the times between `start_s` and `end_s` in which `rank` computes
    nothing."""
    now_s, found = start_s, []
    mine = [span for span in spans if span.rank == rank and stream_of(span) == COMPUTE]
    for span in sorted(mine, key=lambda each: each.start_s):
        if span.start_s >= end_s:
            break
        if span.start_s > now_s:
            found.append((now_s, span.start_s))
        now_s = max(now_s, span.end_s)
    return [*found, (now_s, end_s)] if end_s > now_s else found
