"""It draws what the streams of each rank do, computing and communicating, as charts."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simlab.trace import COMPUTE, Span, Trace
from simlab.units import MS, bytes_text, seconds_text
from simlab.views.chart import Axis, Boxes, Chart, Words
from simlab.views.language import LANGUAGE
from simlab.views.stream_rows import (
    STREAM_NAMES,
    idle,
    label,
    place,
    row_word,
    stream_of,
    work_name,
    work_of,
    works,
)

MOST_BOXES, MOST_OUTLINED = 2_000, 400
"""The most boxes, above which neighbours are merged, and the most that have outlines, which would
hide very many."""
ROW, BETWEEN = 0.4, 0.6
"""Half the height of a box, and the room between two ranks, in rows."""
ROW_PX, AXES_PX = 20, 60
OPENS = Words("\nclick: its rounds", "\n点击：看它的各轮")
NO_NAME, TIME = Words("", ""), Words(**LANGUAGE["words"]["time"])
WAITING = "waiting"


class _Box(NamedTuple):
    """Work on one stream: `row` is the number of its row, `work` the kind of work in the visual
    language that it is drawn as, `opens` what a click on it gives."""

    row: int
    start_s: float
    end_s: float
    work: str
    label: str
    tip: Words
    opens: str = ""


def stream_charts(
    traces: Sequence[Trace],
    captions: Sequence[str] | None = None,
    *,
    window: tuple[float, float] | None = None,
    ranks: Collection[int] | None = None,
    streams: Collection[str] | None = None,
    only: str = "",
) -> list[Chart]:
    """For each trace the chart of its streams. Several have one time axis, on which each of them
    begins at 0.

    captions: a text for each trace, in place of its name.
    ranks:    the ranks that are shown; None shows all.
    window, streams, only: as `streams_chart` has them.
    """
    windows = [window or _reach(_belonging(trace, streams, only)) for trace in traces]
    several = len(traces) > 1
    longest_s = max(end_s - start_s for start_s, end_s in windows)
    charts = []
    for number, (trace, (start_s, end_s)) in enumerate(zip(traces, windows)):
        name, lasts = trace.metadata.get("name", ""), seconds_text(end_s - start_s)
        title = f"{name}: {seconds_text(start_s)} to {seconds_text(end_s)}"
        if captions:
            title = f"{captions[number]}: {lasts}" if several else captions[number]
        words = Words(title, title)
        charts.append(
            streams_chart(
                trace,
                key=f"streams {number}",
                title=words,
                window=(start_s, end_s),
                ranks=range(trace.ranks) if ranks is None else ranks,
                streams=streams,
                only=only,
                zero_s=start_s if several else 0.0,
                most=longest_s if several else None,
            )
        )
    return charts


def streams_chart(
    trace: Trace,
    *,
    key: str,
    title: Words,
    row: str = "",
    window: tuple[float, float] | None = None,
    ranks: Collection[int] | None = None,
    streams: Collection[str] | None = None,
    only: str = "",
    zero_s: float = 0.0,
    most: float | None = None,
    height: int | None = None,
    control: str = "",
    opens: Mapping[Span, str] | None = None,
) -> Chart:
    """The `Chart` of `trace`: a row for each stream that a rank uses.

    row:     what a rank of the trace is called, "rank", "stage" or "pp"; '' takes what the trace
             says of itself.
    window:  the start and the end of what is shown, in seconds; None shows all that is asked for.
    ranks:   the ranks that are shown, each with a row for each stream that one of them uses; None
             shows the rows in which something is done.
    streams: the streams that are shown; None shows all.
    only:    the op, such as '0F0', or the unit of an op, such as '0F0 layer 1', to which everything
             that is shown belongs; '' shows everything.
    zero_s:  the time at which the time axis begins, at 0.
    most:    the end of the time axis in seconds, None for the window's.
    height:  CSS pixels; None gives each row the same.
    opens:   {span: what a click on it gives `control`, a control of the explorer}.

    Of more than `MOST_BOXES` boxes neighbours with
    the smallest gaps are merged, first those of one kind.
    """
    row = row or row_word(trace)
    spans = _belonging(trace, streams, only)
    start_s, end_s = window or _reach(spans)
    spans = [
        span
        for span in spans
        if span.end_s > start_s and span.start_s < end_s and (ranks is None or span.rank in ranks)
    ]
    rows = _rows(spans, range(trace.ranks) if ranks is None else ranks, whole=ranks is not None)
    number = {name: at for at, name in enumerate(rows)}
    boxes = [
        _box(number[span.rank, stream_of(span)], span, row, zero_s, (opens or {}).get(span, ""))
        for span in spans
    ]
    waits = _waits(trace, rows, start_s, min(end_s, trace.end_s), zero_s)
    few = _few(sorted(boxes), (end_s - start_s) / 2_000)
    between = BETWEEN if height is None else 0.0
    heights = _heights(rows, between)
    edge, last = 0.1 + ROW + between / 6, max(heights, default=0.0)
    until_s = end_s - zero_s if most is None else most
    names = [f"{row} {rank} {_stream_name(stream)}" for rank, stream in rows]
    return Chart(
        key,
        title,
        Axis(TIME, least=(start_s - zero_s) / MS, most=until_s / MS),
        Axis(NO_NAME, least=-edge, most=last + edge, ticks=heights, names=names, down=True),
        [*_marks([*waits, *few], heights, clicked=bool(opens))],
        height or AXES_PX + round(ROW_PX * (last + 1)),
        wide=True,
        timed=True,
        control=control,
    )


def _belonging(trace: Trace, streams: Collection[str] | None, only: str) -> list[Span]:
    """The spans of `trace` that last, of `streams` and of the op or unit that `only` names."""
    return [
        span
        for span in trace.spans
        if only in ("", span.op, span.op_text, f"{span.op_text} {span.unit}")
        and (streams is None or stream_of(span) in streams)
        and span.end_s > span.start_s
    ]


def _reach(spans: Sequence[Span]) -> tuple[float, float]:
    """When the first of `spans` begins and the last one ends."""
    start_s = min((span.start_s for span in spans), default=0.0)
    return start_s, max((span.end_s for span in spans), default=0.0)


def _rows(spans: Sequence[Span], ranks: Collection[int], *, whole: bool) -> list[tuple[int, str]]:
    """[(rank, stream) of each row]; `whole`: whether all ranks have the same streams."""
    used = {(rank, stream_of(span)) for span in spans for rank in (ranks if whole else [span.rank])}
    order = {rank: at for at, rank in enumerate(ranks)}
    return sorted(used, key=lambda row: (order[row[0]], place(row[1])))


def _heights(rows: Sequence[tuple[int, str]], between: float) -> list[float]:
    """[the place of each row], with so much more room between two ranks."""
    ranks = list(dict.fromkeys(rank for rank, _ in rows))
    return [at + between * ranks.index(rank) for at, (rank, _) in enumerate(rows)]


def _stream_name(stream: str) -> str:
    return STREAM_NAMES.get(stream, Words(stream, stream)).en


def _box(at: int, span: Span, row: str, zero_s: float, opens: str) -> _Box:
    """What it is, when, how much it moves, and whether a click shows more of it."""
    work, start_s, end_s = work_of(span), span.start_s - zero_s, span.end_s - zero_s
    to = f" → {row} {span.peer}" if span.peer >= 0 else ""
    moved = f", {bytes_text(span.bytes)}" if span.bytes else ""
    when = f"{_when(start_s, end_s)}{moved}"
    head, name = f"{span.op}{to}, {row} {span.rank}", work_name(work)
    more = OPENS if opens else NO_NAME
    tip = Words(f"{head}: {name.en}\n{when}{more.en}", f"{head}：{name.zh}\n{when}{more.zh}")
    return _Box(at, start_s, end_s, work, label(span, row), tip, opens)


def _when(start_s: float, end_s: float) -> str:
    return f"{start_s / MS:.4g} – {end_s / MS:.4g} ms ({seconds_text(end_s - start_s)})"


def _few(boxes: Sequence[_Box], gap_s: float) -> Sequence[_Box]:
    """At most `MOST_BOXES` boxes: neighbours that are at most `gap_s`, and then ever more, apart are
    merged, first those of one kind."""
    shown, count = boxes, 0
    while len(shown) > MOST_BOXES:
        shown = _merged(boxes, gap_s, alike=count < 8)
        gap_s, count = 2 * gap_s, count + 1
    return shown


def _merged(boxes: Sequence[_Box], gap_s: float, *, alike: bool) -> list[_Box]:
    """`boxes`, where neighbours that are at most `gap_s` apart, with `alike` of one kind only, are
    one box without a label, which has the kind of the longer one."""
    found: list[_Box] = []
    for box in boxes:
        last = found[-1] if found else None
        if (
            last is None
            or last.row != box.row
            or box.start_s - last.end_s > gap_s
            or (alike and box.work != last.work)
        ):
            found.append(box)
            continue
        longer = max(last, box, key=lambda its: its.end_s - its.start_s)
        end_s = max(last.end_s, box.end_s)
        when = _when(last.start_s, end_s)
        tip = Words(*(f"{name}\n{when}" for name in work_name(longer.work)))
        found[-1] = _Box(box.row, last.start_s, end_s, longer.work, "", tip)
    return found


def _waits(
    trace: Trace, rows: Sequence[tuple[int, str]], start_s: float, end_s: float, zero_s: float
) -> Iterator[_Box]:
    """The times in which a rank computes nothing at all, also nothing that is not shown; those that
    are too short to be seen are left out."""
    for at, (rank, stream) in enumerate(rows):
        gaps = idle(trace.spans, rank, start_s, end_s) if stream == COMPUTE else []
        for a, b in gaps:
            if b - a > (end_s - start_s) / 1_000:
                took, name = seconds_text(b - a), work_name(WAITING)
                tip = Words(f"{name.en} for {took}", f"{name.zh} {took}")
                yield _Box(at, a - zero_s, b - zero_s, WAITING, "", tip)


def _marks(boxes: Sequence[_Box], heights: Sequence[float], *, clicked: bool) -> Iterator[Boxes]:
    """The boxes of each kind of work; waits, which lie below the others, come first."""
    outline = "outline" if len(boxes) <= MOST_OUTLINED else None
    used = works({box.work for box in boxes})
    for work in sorted(used, key=lambda work: work != WAITING):
        look, its = LANGUAGE["work"][work], [box for box in boxes if box.work == work]
        y = [heights[box.row] for box in its]
        places = [(box.start_s / MS, box.end_s / MS, at - ROW, at + ROW) for box, at in zip(its, y)]
        options: dict[str, Any] = {"pattern": look["pattern"], "tips": [box.tip for box in its]}
        if work == WAITING:
            yield Boxes.at(places, WAITING, work_name(work), **options)
            continue
        options |= {"outline": outline, "labels": [box.label for box in its]}
        options["opens"] = [box.opens for box in its] if clicked else None
        yield Boxes.at(places, look["colour"], work_name(work), **options)
