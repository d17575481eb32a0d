"""It draws what the streams of each rank do, computing and communicating, as a chart."""

from collections.abc import Mapping, Sequence

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

MOST_BOXES = 3_000
ROW = 0.4  # half the height of a box
OPENS = Words("\nclick: its rounds", "\n点击：看它的各轮")


def streams_chart(
    trace: Trace,
    *,
    key: str,
    title: Words,
    row: str = "",
    window: tuple[float, float] | None = None,
    most: float | None = None,
    height: int = 240,
    control: str = "",
    opens: Mapping[Span, str] | None = None,
) -> Chart:
    """The `Chart` of `trace`: a row for each stream that a rank uses.

    row:    what a rank of the trace is called, "rank", "stage" or "pp"; '' takes what the trace
            says of itself.
    window: the start and the end of what is shown, in seconds; None shows everything.
    most:   the end of the time axis in seconds, None for the last span's.
    opens:  {span: what a click on it gives `control`, a control of the explorer}.

    Rows that do nothing in the window are left out. Of a trace with more than `MOST_BOXES` spans in
    the window the longest are drawn, and the title says so.
    """
    row = row or row_word(trace)
    start_s, end_s = window or (0.0, trace.end_s)
    found = _Rows(row, start_s, end_s)
    found.add(trace)
    return Chart(
        key,
        found.titled(title),
        Axis(Words("time, ms", "时间，ms"), least=start_s / MS, most=(most or end_s) / MS),
        Axis(
            Words("", ""),
            least=-0.5,
            most=max(len(found.names), 1) - 0.5,
            ticks=[*range(len(found.names))],
            names=found.names,
            down=True,
        ),
        [
            *_waiting(found.waits),
            *(_boxes(work, found.spans[work], row, opens or {}) for work in works({*found.spans})),
        ],
        height,
        wide=True,
        timed=True,
        control=control,
    )


class _Rows:
    """The rows of a chart, and what stands in each: of `count` spans `drawn`.

    names: what each row is called. spans: {kind of work: [(row, span)]}. waits: [(row, (start, end) in
    seconds)] of the times in which its rank computes nothing.
    """

    def __init__(self, word: str, start_s: float, end_s: float) -> None:
        self.word, self.start_s, self.end_s = word, start_s, end_s
        self.names: list[str] = []
        self.spans: dict[str, list[tuple[int, Span]]] = {}
        self.waits: list[tuple[int, tuple[float, float]]] = []
        self.drawn = self.count = 0

    def add(self, trace: Trace) -> None:
        """Add a row for each stream that a rank of `trace` uses."""
        inside = _inside(trace, self.start_s, self.end_s)
        drawn = _longest(inside)
        self.drawn, self.count = len(drawn), len(inside)
        for rank in range(trace.ranks):
            own = [span for span in drawn if span.rank == rank]
            for stream in sorted({stream_of(span) for span in own}, key=place):
                at = len(self.names)
                name = STREAM_NAMES.get(stream, Words(stream, stream)).en
                self.names.append(f"{self.word} {rank} {name}")
                for span in own:
                    if stream_of(span) == stream:
                        self.spans.setdefault(work_of(span), []).append((at, span))
                if stream == COMPUTE:
                    until_s = min(self.end_s, trace.end_s)
                    gaps = idle(inside, rank, self.start_s, until_s)
                    self.waits += [(at, gap) for gap in gaps]

    def titled(self, title: Words) -> Words:
        """`title`, with what is left out."""
        if self.drawn == self.count:
            return title
        return Words(
            f"{title.en}: the {self.drawn:,} longest of {self.count:,} spans",
            f"{title.zh}：{self.count:,} 段中最长的 {self.drawn:,} 段",
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


def _waiting(waits: Sequence[tuple[int, tuple[float, float]]]) -> list[Boxes]:
    """The hatched boxes of times in which a rank computes nothing."""
    if not waits:
        return []
    look = LANGUAGE["work"]["waiting"]
    places = [(a / MS, b / MS, at - ROW, at + ROW) for at, (a, b) in waits]
    tips = [
        Words(f"{look['en']} for {seconds_text(b - a)}", f"{look['zh']} {seconds_text(b - a)}")
        for _, (a, b) in waits
    ]
    name = Words(look["en"], look["zh"])
    return [Boxes.at(places, "waiting", name, pattern=look["pattern"], tips=tips)]


def _boxes(
    work: str, spans: Sequence[tuple[int, Span]], row: str, opens: Mapping[Span, str]
) -> Boxes:
    look, name = LANGUAGE["work"][work], work_name(work)
    return Boxes.at(
        [(span.start_s / MS, span.end_s / MS, at - ROW, at + ROW) for at, span in spans],
        look["colour"],
        name,
        pattern=look["pattern"],
        outline="background",
        labels=[label(span, row) for _, span in spans],
        tips=[_tip(span, name, row, opens=span in opens) for _, span in spans],
        opens=[opens.get(span, "") for _, span in spans] if opens else None,
    )


def _tip(span: Span, name: Words, row: str, *, opens: bool) -> Words:
    """What it is, when, how much it moves, and whether a click shows more of it."""
    to = f" → {row} {span.peer}" if span.peer >= 0 else ""
    moved = f", {bytes_text(span.bytes)}" if span.bytes else ""
    when = f"{span.start_s / MS:.4g} – {span.end_s / MS:.4g} ms"
    how_long = f"{when} ({seconds_text(span.end_s - span.start_s)}){moved}"
    head = f"{span.op}{to}, {row} {span.rank}"
    more = OPENS if opens else Words("", "")
    return Words(
        f"{head}: {name.en}\n{how_long}{more.en}", f"{head}：{name.zh}\n{how_long}{more.zh}"
    )
