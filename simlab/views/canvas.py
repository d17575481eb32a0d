"""Timelines of many boxes: packed into bytes here, painted on a canvas in the browser by `canvas.js`, which also zooms.

A figure of objects takes seconds at 50,000 boxes, most of it to make them and to carry them over as JSON. Here
`struct` packs each column of a trace in one call (times as Float32), and nothing is made per box.
"""

from pathlib import Path
from struct import pack
from typing import NamedTuple

import anywidget
import traitlets

from simlab.analysis import critical_path
from simlab.errors import InputError
from simlab.garbage import no_garbage_collection
from simlab.program import Op
from simlab.trace import COMPUTE
from simlab.views.scene import (
    CAP_COLOUR,
    COLOURS,
    FADED,
    IDLE_COLOUR,
    MEANING,
    MEMORY_LABEL,
    PATH_COLOUR,
    RANK_COLOURS,
    cap_and_breaches,
    strip_category,
    title,
)

STYLE = {
    "colours": COLOURS, "meaning": MEANING, "idle": IDLE_COLOUR, "path": PATH_COLOUR, "faded": FADED, "cap": CAP_COLOUR,
    "ranks": RANK_COLOURS,
}  # fmt: skip
NOT_KINDS = b"0123456789 "  # what ops' texts hold beside their kinds


class Panel(NamedTuple):
    """One trace, packed: what a `Scene` holds, as bytes. Time starts at the first op.

    boxes:  starts, then ends, s, as Float32.
    rows:   the boxes' ranks, as Uint16.
    kinds:  a letter per box, F, B, I or W.
    used:   those that occur.
    ops:    the boxes' ops as text, a space between them.
    memory: times, s, then amounts, as Float32: from a time on, a rank holds an amount. Of points at one time the last counts.
    holders: those ranks, as Uint16.
    peak:   the most that a rank holds.
    path:   the numbers of the boxes on the critical path, first to last, as Uint32; None: it is not shown.
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


def panels(traces, *, critical_path=False):
    """[`Panel` of each trace], all with the same kind of memory strip. What `CanvasTimeline.update` does first."""
    category = strip_category(traces)
    return [panel(trace, category, critical_path) for trace in traces]


@no_garbage_collection()
def panel(trace, category, with_path=False):
    """The `Panel` of `trace`, its memory strip of `category`."""
    ranks, ops, starts_s, ends_s = trace.columns(COMPUTE)
    zero_s = min(starts_s, default=0.0)
    step_s = max(ends_s, default=0.0) - zero_s
    if step_s <= 0:
        raise InputError("no op takes any time, so there is nothing to draw: give times above 0")
    busy_s = sum(ends_s) - sum(starts_s)
    text = " ".join(ops).encode()
    kinds = text.translate(None, NOT_KINDS)
    used = "".join(kind for kind in sorted(COLOURS) if kind.encode() in kinds)
    if len(kinds) != len(ops) or kinds.translate(None, used.encode()):
        [*map(Op.parse, ops)]  # one of them is no op: say which
    held_by, times_s, amounts = trace.columns(category)
    peak = max(amounts, default=0)
    cap, over = cap_and_breaches(trace, category)
    path = None
    if with_path:
        number = {op: at for at, op in enumerate(ops)}
        path = _packed("I", [number[span.op] for span in critical_path(trace) if span.stream == COMPUTE])
    return Panel(
        title=title(trace, step_s, 1 - busy_s / (trace.ranks * step_s), peak),
        ranks=trace.ranks,
        end_s=step_s,
        boxes=_packed("f", _since(zero_s, starts_s), _since(zero_s, ends_s)),
        rows=_packed("H", ranks),
        kinds=kinds,
        used=used,
        ops=text,
        memory=_packed("f", _since(zero_s, times_s), amounts),
        holders=_packed("H", held_by),
        memory_label=MEMORY_LABEL[category],
        peak=peak,
        cap=cap,
        breaches=over,
        path=path,
    )


def _since(zero_s, times_s):
    return times_s if zero_s == 0 else [time_s - zero_s for time_s in times_s]


def _packed(code, *columns):
    """The columns' bytes one after the other; `code` is `struct`'s for their numbers."""
    return b"".join(pack(f"<{len(column)}{code}", *column) for column in columns)


class CanvasTimeline(anywidget.AnyWidget):
    """A widget: traces under each other on one time axis, each with its memory strip, zoomed and named in the browser.

    The browser writes what it has painted on the canvas element: `data-painted` is the `serial` of the last update that is
    to be seen, `data-range` the visible interval in s.

    traces:        a `Trace` or a list of them, or `panels` of them made beforehand.
    ranks:         how many rows it has room for, if `update` shall show more than `traces` have.
    critical_path: whether to outline the ops of the critical path, join them by a line, and fade the others.
    """

    _esm = Path(__file__).with_name("canvas.js")
    panels = traitlets.List(traitlets.Dict()).tag(sync=True)
    style = traitlets.Dict(STYLE).tag(sync=True)
    room = traitlets.Int(1).tag(sync=True)  # ranks
    serial = traitlets.Int(0).tag(sync=True)

    def __init__(self, traces, *, ranks=None, critical_path=False):
        self._critical_path = critical_path
        packed = self._packed(traces)
        super().__init__(panels=packed, room=ranks or max(panel["ranks"] for panel in packed), serial=1)

    def update(self, traces):
        """Show other traces (or `panels`), in one message; the interval that is zoomed in stays."""
        packed = self._packed(traces)
        with self.hold_sync():
            self.panels = packed
            self.serial += 1

    def _packed(self, traces):
        given = [traces] if isinstance(traces, Panel) or not isinstance(traces, (list, tuple)) else traces
        if not given:
            raise InputError("no trace to draw: give at least one")
        if not all(isinstance(item, Panel) for item in given):
            given = panels(given, critical_path=self._critical_path)
        return [panel._asdict() for panel in given]

    def __repr__(self):
        return f"CanvasTimeline({'; '.join(panel['title'] for panel in self.panels)})"  # a widget's own has all the bytes
