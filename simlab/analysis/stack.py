"""What a rank holds over a step, category on category: plain data, which every renderer draws as it is."""

from itertools import pairwise
from math import fsum
from typing import NamedTuple

from simlab.analysis.memory import memory_curve
from simlab.errors import InputError
from simlab.trace import ACTIVATIONS
from simlab.units import GIB, seconds_text

GROUPS = {
    "parameters": ("parameters",),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "activations": ("activations", "inputs"),
    "gathered": ("unsharded_parameters", "unsharded_gradients"),
    "buffers": ("buffers", "all_gather", "reduce_scatter", "buckets"),
    "temporaries": ("temporaries",),
}
"""{category of a picture: categories of `simlab.memory`, or of a prediction, that it adds up}, from the bottom."""


class Stack(NamedTuple):
    """From `edges[i]` to `edges[i + 1]` a rank holds `held[category][i]` bytes, while `ops[i]` runs."""

    name: str
    edges: tuple[float, ...]
    """Seconds; or, if there are no times, how many parts of the step are over."""
    timed: bool
    ops: tuple[str, ...]
    held: dict[str, tuple[float, ...]]
    """{category: bytes}, from the bottom; only categories that occur."""
    capacity_bytes: float | None = None

    @property
    def totals(self):
        """[bytes of all categories], one per interval."""
        return [fsum(amounts) for amounts in zip(*self.held.values())]

    @property
    def peak(self):
        """The interval that holds most; of equal ones the first."""
        totals = self.totals
        return totals.index(max(totals))

    def held_in(self, op):
        """{category: bytes} in the first interval in which `op` runs."""
        if op not in self.ops:
            raise InputError(f"{self.name}: no op {op!r}; there is {', '.join(dict.fromkeys(self.ops))}")
        at = self.ops.index(op)
        return {category: amounts[at] for category, amounts in self.held.items()}

    @property
    def breach(self):
        """The first interval that holds more than the GPU has; None if none does."""
        if self.capacity_bytes is None:
            return None
        return next((i for i, total in enumerate(self.totals) if total > self.capacity_bytes), None)

    def largest(self, interval, count=2):
        """The `count` categories that hold most in an interval."""
        return sorted(self.held, key=lambda category: -self.held[category][interval])[:count]

    def at(self, interval):
        """In words: the op, and when."""
        when = f" ({seconds_text(self.edges[interval])})" if self.timed else ""
        return f"{self.ops[interval]}{when}"

    def __str__(self):
        peak = self.peak
        text = f"peak {self.totals[peak] / GIB:.1f} GiB in {self.at(peak)}, most of it {' and '.join(self.largest(peak))}"
        if self.breach is not None:
            text += f"; over {self.capacity_bytes / GIB:.1f} GiB from {self.at(self.breach)} on"
        return text


def memory_stack(memory, *, capacity_bytes=None, name=""):
    """The `Stack` of a `StepMemory`, moment by moment; all moments are drawn equally wide, for they have no times."""
    moments = memory.moments
    held = {
        group: tuple(fsum(moment.held.get(category, 0.0) for category in categories) for moment in moments)
        for group, categories in GROUPS.items()
    }
    return _stack(name, tuple(float(i) for i in range(len(moments) + 1)), False, [m.op for m in moments], held, capacity_bytes)


def trace_stack(trace, rank, states, *, buffers=0.0, end_s=None, capacity_bytes=None, name=""):
    """The `Stack` of `rank` in `trace`: its activations over time on `states` = {category: bytes} that it holds for good.

    buffers: what any of its ops holds while it runs. end_s: until when it goes on after the last op (the optimizer's step); None: not.
    """
    if not 0 <= rank < trace.ranks:
        raise InputError(f"rank {rank}: the trace has ranks 0 to {trace.ranks - 1}")
    spans = sorted((span for span in trace.compute(rank)), key=lambda span: span.start_s)
    times, amounts = memory_curve(trace, rank, ACTIVATIONS)
    edges = sorted({*times, *(time_s for span in spans for time_s in (span.start_s, span.end_s))} | ({end_s} if end_s else set()))
    ops, activations, busy, at, current = [], [], [], 0, 0
    for start_s, _ in pairwise(edges):
        while at + 1 < len(times) and times[at + 1] <= start_s:
            at += 1
        while current < len(spans) and spans[current].end_s <= start_s:
            current += 1
        running = current < len(spans) and spans[current].start_s <= start_s
        over = current == len(spans)
        ops.append(spans[current].op if running else "after the last op" if over else f"idle before {spans[current].op}")
        activations.append(amounts[at])
        busy.append(buffers if running else 0.0)
    held = {category: (size,) * len(ops) for category, size in states.items()}
    return _stack(name, tuple(edges), True, ops, held | {"activations": tuple(activations), "buffers": tuple(busy)}, capacity_bytes)


def _stack(name, edges, timed, ops, held, capacity_bytes):
    there = {group: held[group] for group in GROUPS if any(held.get(group, ()))}
    return Stack(name, edges, timed, tuple(ops), there, capacity_bytes)
