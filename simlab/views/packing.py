"""Traces as bytes, for the timeline that a browser paints on a canvas.

A figure of objects takes seconds at 50,000 boxes, most of it to make them and to carry them over as
JSON. Here `struct` packs each column of a trace in one call (times as Float32), and nothing is made
per box. No library is needed, so the page that simulates in the browser packs in the same way.
"""

from collections.abc import Sequence
from struct import pack
from typing import Any, NamedTuple

from simlab.analysis import critical_path, gaps
from simlab.errors import InputError
from simlab.garbage import no_garbage_collection
from simlab.program import Op
from simlab.trace import COMPUTE, SEND, Trace
from simlab.units import bytes_text
from simlab.views.scene import (
    COLOURS,
    cap_and_breaches,
    held_unit,
    memory_label,
    stages_of_ranks,
    strip_category,
    title,
)

MOST_EXPLAINED = 2_000
"""Ops of a trace up to which it is worked out what each idle rank waited for: 30 ms at most."""


class Panel(NamedTuple):
    """One trace, packed: what a `Scene` holds, as bytes. Time starts at the first op.

    boxes:  starts, then ends, s, as Float32.
    rows:   the boxes' ranks, as Uint16.
    kinds:  a letter per box, F, B, I or W.
    used:   those that occur.
    ops:    the boxes' ops as text, a space between them.
    memory: times, s, then amounts, as Float32: from a time on, a rank holds an amount. Of points at
    one time the last counts.
    holders: those ranks, as Uint16.
    peak:   the most that a rank holds.
    path:   the numbers of the boxes on the critical path, first to last, as Uint32; None: it is not
            shown.
    stages: per rank those that it has, ascending: a stage's place is the chunk whose shade it has.
    waits:  {op before which its rank was idle: (op that it waited for, that op's rank, reason)}, as
            `simlab.gaps` says; empty above `MOST_EXPLAINED` ops.
    sends:  {op: (the rank to which its result goes, the message's size as text)} of those that have a
            size; empty above `MOST_EXPLAINED` ops.
    """

    title: str
    ranks: int
    end_s: float
    boxes: bytes
    rows: bytes
    kinds: bytes
    used: str
    ops: bytes
    memory: bytes
    holders: bytes
    memory_label: str
    peak: float
    cap: float | None
    breaches: list[tuple[float, float]]
    path: bytes | None
    stages: list[list[int]]
    waits: dict[str, tuple[str | None, int | None, str]]
    sends: dict[str, tuple[int, str]]


def panels(traces: Sequence[Trace], *, critical_path: bool = False) -> list[Panel]:
    """[`Panel` of each trace], all with the same kind of memory strip. What `CanvasTimeline.update`
    does first."""
    category = strip_category(traces)
    return [panel(trace, category, critical_path) for trace in traces]


@no_garbage_collection()
def panel(trace: Trace, category: str, with_path: bool = False) -> Panel:
    """The `Panel` of `trace`, its memory strip of `category`."""
    ranks, ops, starts_s, ends_s, kinds = trace.columns(COMPUTE)
    zero_s = min(starts_s, default=0.0)
    step_s = max(ends_s, default=0.0) - zero_s
    if step_s <= 0:
        raise InputError("no op takes any time, so there is nothing to draw: give times above 0")
    busy_s = sum(ends_s) - sum(starts_s)
    used = "".join(sorted({*kinds} & {*COLOURS}))
    if not {*kinds} <= {*COLOURS}:
        [*map(Op.of_span, trace.compute())]  # one of them is no op: say which
    stages = stages_of_ranks(trace)
    chunks = max(map(len, stages), default=1)
    held_by, times_s, amounts = trace.columns(category)
    peak = max(amounts, default=0)
    cap, over = cap_and_breaches(trace, category)
    path = None
    if with_path:
        number = {span.op_text: at for at, span in enumerate(trace.compute())}
        path = _packed(
            "I", [number[span.op_text] for span in critical_path(trace) if span.stream == COMPUTE]
        )
    return Panel(
        title=title(
            trace, step_s, 1 - busy_s / (trace.ranks * step_s), peak, held_unit(category, chunks)
        ),
        ranks=trace.ranks,
        end_s=step_s,
        boxes=_packed("f", _since(zero_s, starts_s), _since(zero_s, ends_s)),
        rows=_packed("H", ranks),
        kinds="".join(kinds).encode(),
        used=used,
        ops=" ".join(ops).encode(),
        memory=_packed("f", _since(zero_s, times_s), amounts),
        holders=_packed("H", held_by),
        memory_label=memory_label(category, chunks),
        peak=peak,
        cap=cap,
        breaches=over,
        path=path,
        stages=stages,
        waits=_waits(trace) if len(ops) <= MOST_EXPLAINED else {},
        sends=_sends(trace) if len(ops) <= MOST_EXPLAINED else {},
    )


def _waits(trace: Trace) -> dict[str, tuple[str | None, int | None, str]]:
    return {gap.op: (gap.waited_for, gap.holder, gap.reason) for gap in gaps(trace) if gap.op}


def _sends(trace: Trace) -> dict[str, tuple[int, str]]:
    return {
        span.op_text: (span.peer, bytes_text(span.bytes))
        for span in trace.spans
        if span.stream == SEND and span.bytes and span.peer >= 0
    }


def _since(zero_s: float, times_s: Sequence[float]) -> Sequence[float]:
    return times_s if zero_s == 0 else [time_s - zero_s for time_s in times_s]


def _packed(code: str, *columns: Sequence[Any]) -> bytes:
    """The columns' bytes one after the other; `code` is `struct`'s for their numbers."""
    return b"".join(pack(f"<{len(column)}{code}", *column) for column in columns)
