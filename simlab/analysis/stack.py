"""It defines `Stack`, the bytes of each category that a rank holds over a step, for every
renderer."""

from collections.abc import Mapping, Sequence
from math import fsum, isclose
from typing import NamedTuple

from simlab.errors import InputError
from simlab.memory import StepMemory
from simlab.trace import Trace
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
"""{category of a picture: the categories of `simlab.memory` or of a prediction that it sums}. The
first one is drawn at the bottom."""


class Stack(NamedTuple):
    """What a rank holds over a step: from `edges[i]` to `edges[i + 1]`, while `ops[i]` runs, it
    holds `held[category][i]` bytes."""

    name: str
    edges: tuple[float, ...]
    """Times in seconds; or, if the stack is not `timed`, the number of intervals before."""
    timed: bool
    ops: tuple[str, ...]
    held: dict[str, tuple[float, ...]]
    """{category: [bytes of each interval]} for the categories that occur; the first one is at the
    bottom."""
    capacity_bytes: float | None = None

    @property
    def totals(self) -> list[float]:
        """[per interval] the bytes of all categories."""
        return [fsum(amounts) for amounts in zip(*self.held.values())]

    @property
    def peak(self) -> int:
        """The index of the interval that holds most; of equal ones, the first."""
        totals = self.totals
        return totals.index(max(totals))

    def held_in(self, op: str) -> dict[str, float]:
        """{category: bytes} in the first interval in which `op` runs.

        Raises `InputError` if there is no such op.
        """
        if op not in self.ops:
            raise InputError(
                f"{self.name}: no op {op!r}; there is {', '.join(dict.fromkeys(self.ops))}"
            )
        at = self.ops.index(op)
        return {category: amounts[at] for category, amounts in self.held.items()}

    @property
    def breach(self) -> int | None:
        """The index of the first interval that holds more than the capacity; None if none does."""
        if self.capacity_bytes is None:
            return None
        return next((i for i, total in enumerate(self.totals) if total > self.capacity_bytes), None)

    def largest(self, interval: int, count: int = 2) -> list[str]:
        """The `count` categories that hold most bytes in an interval, the largest first."""
        return sorted(self.held, key=lambda category: -self.held[category][interval])[:count]

    def at(self, interval: int) -> str:
        """The op of an interval and, if the stack has times, when the interval begins, as text."""
        when = f" ({seconds_text(self.edges[interval])})" if self.timed else ""
        return f"{self.ops[interval]}{when}"

    def __repr__(self) -> str:
        return f"<Stack {self.name!r}, {len(self.ops)} intervals: {self}>"

    def __str__(self) -> str:
        peak = self.peak
        text = f"peak {self.totals[peak] / GIB:.1f} GiB in {self.at(peak)}, most of it {' and '.join(self.largest(peak))}"
        if self.capacity_bytes is not None and self.breach is not None:
            text += f"; over {self.capacity_bytes / GIB:.1f} GiB from {self.at(self.breach)} on"
        return text


def memory_stack(
    memory: StepMemory, *, capacity_bytes: float | None = None, name: str = ""
) -> Stack:
    """The `Stack` of a `StepMemory`, with an interval for each moment.

    capacity_bytes: the memory of a GPU; None if it does not matter.
    name:           the title.

    All intervals are equally wide, because the moments have no times.
    """
    moments = memory.moments
    held = {
        group: tuple(
            fsum(moment.held.get(category, 0.0) for category in categories) for moment in moments
        )
        for group, categories in GROUPS.items()
    }
    return _stack(
        name,
        tuple(float(i) for i in range(len(moments) + 1)),
        False,
        [m.op for m in moments],
        held,
        capacity_bytes,
    )


def walk_stack(
    trace: Trace,
    rank: int,
    moments: list[tuple[str, dict[str, float]]],
    *,
    end_s: float | None = None,
    capacity_bytes: float | None = None,
    name: str = "",
) -> Stack:
    """The `Stack` of `rank` in `trace`, given what the rank holds at each moment.

    moments:        [(op, {category: bytes})]: first what the rank holds before its first op; then,
                    for each op in order, what it holds during the op and what after it; last what
                    it holds in the optimizer's step.
    end_s:          when the optimizer's step ends, in seconds; None leaves that step out.
    capacity_bytes: the memory of a GPU; None if it does not matter.
    name:           the title.

    Raises `InputError` if the trace has no such rank.
    """
    if not 0 <= rank < trace.ranks:
        raise InputError(f"rank {rank}: the trace has ranks 0 to {trace.ranks - 1}")
    (_, before), *inside, (_, last) = moments
    spans = sorted(trace.compute(rank), key=lambda span: span.start_s)
    edges, ops, amounts, now_s = [trace.start_s], [], [], trace.start_s
    for span, (_, busy), (_, after) in zip(spans, inside[::2], inside[1::2]):
        for op, held, until_s in (
            (f"idle before {span.op}", before, span.start_s),
            (span.op, busy, span.end_s),
        ):
            if until_s > now_s and not isclose(until_s, now_s, rel_tol=1e-12):
                edges.append(until_s)
                ops.append(op)
                amounts.append(held)
                now_s = until_s
        before = after
    if end_s is not None and end_s > now_s:
        edges.append(end_s)
        ops.append("after the last op")
        amounts.append(last)
    of_groups = {group: tuple(amount.get(group, 0.0) for amount in amounts) for group in GROUPS}
    return _stack(name, tuple(edges), True, ops, of_groups, capacity_bytes)


def _stack(
    name: str,
    edges: tuple[float, ...],
    timed: bool,
    ops: Sequence[str],
    held: Mapping[str, tuple[float, ...]],
    capacity_bytes: float | None,
) -> Stack:
    there = {group: held[group] for group in GROUPS if any(held.get(group, ()))}
    return Stack(name, edges, timed, tuple(ops), there, capacity_bytes)
