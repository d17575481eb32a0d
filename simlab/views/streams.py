"""It draws what the streams of each rank do, computing and communicating, as a chart."""

from collections.abc import Sequence

from simlab.trace import COMPUTE, Span, Trace
from simlab.units import MS, bytes_text, seconds_text
from simlab.views.chart import Axis, Boxes, Chart, Words
from simlab.views.language import LANGUAGE

ORDER = (COMPUTE, "tp", "cp", "dp", "replicas", "pp", "send")
"""Streams from the top down."""
STREAM_NAMES = {COMPUTE: Words("compute", "计算"), "replicas": Words("replicas", "副本")}
WORK_OF_KIND = {
    "all_gather": "gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "message": "send",
    "optimizer": "optimizer",
}
"""{kind of a span: the kind of work in the visual language that it is drawn as}"""
RING = Words("ring message", "环消息")
MOST_BOXES = 3_000
ROW = 0.4  # half the height of a box


def streams_chart(
    traces: Sequence[Trace],
    *,
    key: str,
    title: Words,
    row: str = "rank",
    names: Sequence[str] = (),
    window: tuple[float, float] | None = None,
    most: float | None = None,
    height: int = 240,
) -> Chart:
    """The `Chart` of `traces` under each other: a row for each stream that a rank uses.

    row:    what a rank of the trace is called, "rank" or "pp".
    names:  what each trace is called, where there are several.
    window: the start and the end of what is shown, in seconds; None shows everything.
    most:   the end of the time axis in seconds, None for the last span's.

    Rows that do nothing in the window are left out, and so is what is too short to be seen where
    there are more than `MOST_BOXES` spans.
    """
    start_s, end_s = window or (0.0, max(trace.end_s for trace in traces))
    rows: list[str] = []
    found: dict[str, list[tuple[int, Span]]] = {}
    idle: list[tuple[int, tuple[float, float]]] = []

    def end_of(trace: Trace) -> float:
        return min(end_s, trace.end_s)

    for number, trace in enumerate(traces):
        inside = _inside(trace, start_s, end_s)
        drawn = _longest(inside)
        for rank in range(trace.ranks):
            used = {_stream(span) for span in drawn if span.rank == rank}
            for stream in sorted(used, key=_place):
                label = f"{row} {rank} {STREAM_NAMES.get(stream, Words(stream, stream)).en}"
                for span in drawn:
                    if span.rank == rank and _stream(span) == stream:
                        found.setdefault(_look(span), []).append((len(rows), span))
                if stream == COMPUTE:
                    idle += [
                        (len(rows), gap) for gap in _idle(inside, rank, start_s, end_of(trace))
                    ]
                rows.append(f"{names[number]}, {label}" if names else label)
    return Chart(
        key,
        title,
        Axis(Words("time, ms", "时间，ms"), least=start_s / MS, most=(most or end_s) / MS),
        Axis(
            Words("", ""),
            least=-0.5,
            most=max(len(rows), 1) - 0.5,
            ticks=[*range(len(rows))],
            names=rows,
            down=True,
        ),
        [
            *_waiting(idle),
            *(_boxes(look, spans, row) for look, spans in sorted(found.items(), key=_legend_place)),
        ],
        height,
        wide=True,
    )


def _inside(trace: Trace, start_s: float, end_s: float) -> list[Span]:
    """The spans in the window."""
    return [
        span
        for span in trace.spans
        if span.end_s > start_s and span.start_s < end_s and span.end_s > span.start_s
    ]


def _longest(spans: list[Span]) -> list[Span]:
    """Those of `spans` that are drawn: the longest where they are very many."""
    if len(spans) <= MOST_BOXES:
        return spans
    longest = sorted(spans, key=lambda span: span.start_s - span.end_s)[:MOST_BOXES]
    return sorted(longest, key=lambda span: span.start_s)


def _idle(
    spans: Sequence[Span], rank: int, start_s: float, end_s: float
) -> list[tuple[float, float]]:
    """[(start, end)] of the times in which `rank` computes nothing."""
    now_s, found = start_s, []
    mine = [span for span in spans if span.rank == rank and _stream(span) == COMPUTE]
    for span in sorted(mine, key=lambda each: each.start_s):
        if span.start_s > now_s:
            found.append((now_s, span.start_s))
        now_s = max(now_s, span.end_s)
    return [*found, (now_s, end_s)] if end_s > now_s else found


def _waiting(idle: Sequence[tuple[int, tuple[float, float]]]) -> list[Boxes]:
    """The hatched boxes of times in which a rank computes nothing."""
    if not idle:
        return []
    look = LANGUAGE["work"]["waiting"]
    places = [(a / MS, b / MS, at - ROW, at + ROW) for at, (a, b) in idle]
    tips = [
        Words(f"{look['en']} for {seconds_text(b - a)}", f"{look['zh']} {seconds_text(b - a)}")
        for _, (a, b) in idle
    ]
    name = Words(look["en"], look["zh"])
    return [Boxes.at(places, "waiting", name, pattern=look["pattern"], tips=tips)]


def _stream(span: Span) -> str:
    return COMPUTE if span.stream == "optimizer" else span.stream


def _place(stream: str) -> tuple[int, str]:
    return (ORDER.index(stream) if stream in ORDER else len(ORDER)), stream


def _look(span: Span) -> str:
    """The kind of work in the visual language; "ring" for messages of ring attention."""
    if span.stream == COMPUTE:
        return span.op_kind or "F"
    return WORK_OF_KIND.get(span.kind, "ring")


def _legend_place(item: tuple[str, list[tuple[int, Span]]]) -> int:
    return [*LANGUAGE["work"], "ring"].index(item[0])


def _boxes(look: str, spans: Sequence[tuple[int, Span]], row: str) -> Boxes:
    work = LANGUAGE["work"].get(look) or LANGUAGE["streams"]["cp"] | {"pattern": "plain"}
    name = RING if look == "ring" else Words(work["en"], work["zh"])
    if look in "FBIW":
        name = Words(f"{look} {name.en}", f"{look} {name.zh}")
    return Boxes.at(
        [(span.start_s / MS, span.end_s / MS, at - ROW, at + ROW) for at, span in spans],
        work["colour"],
        name,
        pattern=work["pattern"],
        outline="background",
        labels=[_label(span) for _, span in spans],
        tips=[_tip(span, name, row) for _, span in spans],
    )


def _label(span: Span) -> str:
    """The part of an op that it is, such as 'layer 3', or the work itself."""
    return span.unit if span.unit and span.op_kind else span.op


def _tip(span: Span, name: Words, row: str) -> Words:
    """What it is, when, and how much it moves."""
    to = f" → {row} {span.peer}" if span.peer >= 0 else ""
    moved = f", {bytes_text(span.bytes)}" if span.bytes else ""
    when = f"{span.start_s / MS:.4g} – {span.end_s / MS:.4g} ms"
    how_long = f"{when} ({seconds_text(span.end_s - span.start_s)}){moved}"
    head = f"{span.op}{to}, {row} {span.rank}"
    return Words(f"{head}: {name.en}\n{how_long}", f"{head}：{name.zh}\n{how_long}")
