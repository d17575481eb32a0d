"""It turns a plan and what it predicts into plain boxes for any renderer.

It has a layer trace by streams, and the shares of a step's time and memory.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from simlab.trace import COMPUTE, Span, Trace
from simlab.training import Prediction
from simlab.units import GIB, seconds_text
from simlab.views.language import LANGUAGE, colours
from simlab.views.scene import CATEGORY_COLOURS, IDLE_COLOUR
from simlab.views.stream_rows import idle, label, place, row_word, stream_of, work_of

MOST_BOXES = 2_000
MOST_CELLS = 512
"""The most ranks that a picture of a plan shows."""

# A dimension has one colour in every picture of shares.
STREAM_COLOURS = colours("streams")
PART_COLOURS = {
    "compute": LANGUAGE["parts"]["compute"],
    "host": LANGUAGE["parts"]["host"],
    "tp": STREAM_COLOURS["tp"],
    "cp": STREAM_COLOURS["cp"],
    "ep": LANGUAGE["parts"]["ep"],
    "dp": STREAM_COLOURS["dp"],
    "pp": STREAM_COLOURS["send"],
    "bubble": IDLE_COLOUR,
    "optimizer": STREAM_COLOURS["optimizer"],
    "offload": LANGUAGE["parts"]["offload"],
}


class StreamBox(NamedTuple):
    """Work on one stream: `row` is the index of its row, `kind` the kind of work in the visual
    language that it is drawn as."""

    row: int
    start_s: float
    end_s: float
    kind: str
    label: str = ""
    """The text in the box, if the box is wide enough for it."""


class StreamScene(NamedTuple):
    """A trace as rows of streams."""

    title: str
    rows: list[tuple[int, str]]  # (rank, stream)
    boxes: list[StreamBox]
    start_s: float
    end_s: float
    waiting: list[StreamBox]
    """The times in which a rank computes nothing, in its row of computing."""
    row_word: str = "rank"
    """What the number of a row counts: 'rank', 'stage' or 'pp'."""


def stream_scene(
    trace: Trace,
    *,
    window: tuple[float, float] | None = None,
    ranks: Collection[int] | None = None,
    streams: Collection[str] | None = None,
    only: str = "",
) -> StreamScene:
    """The `StreamScene` of `trace`.

    window:  the start and the end of what is shown, in seconds; None shows all of it.
    ranks:   the ranks that are shown; None shows all.
    streams: the streams that are shown; None shows all.
    only:    the op, such as '0F0', or the unit of an op, such as '0F0 layer 1', to which everything
             that is shown belongs; '' shows everything.

    Every rank has a row for each stream that any rank uses in the window. If there are more than
    `MOST_BOXES` boxes, neighbours with the smallest gaps are merged, first those of one kind.
    """
    spans = [
        span
        for span in trace.spans
        if _belongs(span, only)
        and (streams is None or stream_of(span) in streams)
        and span.end_s > span.start_s
    ]
    start_s, end_s = window or (
        min((s.start_s for s in spans), default=0.0),
        max((s.end_s for s in spans), default=0.0),
    )
    ranks = range(trace.ranks) if ranks is None else ranks
    inside = [span for span in spans if span.end_s > start_s and span.start_s < end_s]
    used = sorted({stream_of(span) for span in inside if span.rank in ranks}, key=place)
    rows = [(rank, stream) for rank in ranks for stream in used]
    number = {row: at for at, row in enumerate(rows)}
    boxes, word = [], row_word(trace)
    for span in inside:
        if (row := number.get((span.rank, stream_of(span)))) is not None:
            boxes.append(_box(row, span, word))
    boxes.sort(key=lambda box: (box.row, box.start_s))
    shown, gap_s, count = boxes, (end_s - start_s) / 2_000, 0
    while len(shown) > MOST_BOXES:
        shown = _merged(boxes, gap_s, alike=count < 8)
        gap_s, count = 2 * gap_s, count + 1
    title = f"{trace.metadata.get('name', '')}: {seconds_text(start_s)} to {seconds_text(end_s)}"
    waits = _waiting(trace, rows, start_s, end_s)
    return StreamScene(title, rows, shown, start_s, end_s, waits, word)


def _belongs(span: Span, only: str) -> bool:
    """Whether `span` is, or is a part of, the op or unit that `only` names; "" names everything."""
    return only in ("", span.op, span.op_text, f"{span.op_text} {span.unit}")


def _box(row: int, span: Span, word: str) -> StreamBox:
    return StreamBox(row, span.start_s, span.end_s, work_of(span), label(span, word))


def _waiting(
    trace: Trace, rows: Sequence[tuple[int, str]], start_s: float, end_s: float
) -> list[StreamBox]:
    """The times in which a rank computes nothing at all, also nothing that is not shown; those that
    are too short to be seen are left out."""
    seen_s = (end_s - start_s) / 1_000
    return [
        StreamBox(row, begin_s, until_s, "waiting")
        for row, (rank, stream) in enumerate(rows)
        if stream == COMPUTE
        for begin_s, until_s in idle(trace.spans, rank, start_s, end_s)
        if until_s - begin_s > seen_s
    ]


def _merged(boxes: Sequence[StreamBox], gap_s: float, *, alike: bool) -> list[StreamBox]:
    """`boxes`, where neighbours that are at most `gap_s` apart are merged.

    A merged box has the kind of the longer one and no label. With `alike`, only boxes of one kind are merged.
    """
    result: list[StreamBox] = []
    for box in boxes:
        last = result[-1] if result else None
        if (
            last is None
            or last.row != box.row
            or box.start_s - last.end_s > gap_s
            or (alike and box.kind != last.kind)
        ):
            result.append(box)
            continue
        kind = box.kind if box.end_s - box.start_s > last.end_s - last.start_s else last.kind
        result[-1] = StreamBox(last.row, last.start_s, max(last.end_s, box.end_s), kind)
    return result


# shares
# -----------------------------------------------------------------------------------------------------


def step_parts(prediction: Prediction) -> list[tuple[str, float]]:
    """The (part, seconds) of the step's waterfall in order, including parts that take no time."""
    return list(zip(prediction.waterfall_s._fields, prediction.waterfall_s))


def memory_parts(prediction: Prediction) -> list[tuple[str, float]]:
    """The (category, GiB) at the peak of the rank with the highest peak."""
    held = prediction.memory_bytes
    return [(name, held[name] / GIB) for name in CATEGORY_COLOURS if name in held]
