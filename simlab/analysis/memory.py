"""It computes what each rank holds over time, its peak, and when it first exceeds a cap."""

from math import isclose
from typing import NamedTuple

from simlab.errors import InputError, number, require_index, shortened
from simlab.trace import ACTIVATIONS, LIVE, Trace
from simlab.units import seconds_text

Curve = tuple[list[float], list[float]]
"""(times in seconds, amounts) of a stepped line, see `memory_curve`."""


def memory_curve(trace: Trace, rank: int, category: str = LIVE) -> Curve:
    """The times and the amounts of what `rank` holds of `category`.

    The rank holds amounts[i] from times[i] until times[i + 1], and 0 at the start. The unit of the
    amounts is in `trace.metadata["units"]`.
    """
    require_index("rank", rank, trace.ranks)
    return memory_curves(trace, category)[rank]


def memory_curves(trace: Trace, category: str = LIVE) -> list[Curve]:
    """[per rank] the `memory_curve` of `category`."""
    start_s = trace.start_s
    curves = [([start_s], [0.0]) for _ in range(trace.ranks)]
    for rank, kind, time_s, amount in trace.memory:
        if kind == category:
            times, amounts = curves[rank]
            # What is released and taken at the same time is one point.
            if len(times) > 1 and isclose(times[-1], time_s):
                amounts[-1] = amount
            else:
                times.append(time_s)
                amounts.append(amount)
    return curves


def peak_memory(trace: Trace, category: str = LIVE) -> list[float]:
    """[per rank] the most that it ever holds of `category`, in the unit of that category."""
    peaks = [0.0] * trace.ranks
    for point in trace.memory:
        if point.category == category:
            peaks[point.rank] = max(peaks[point.rank], point.amount)
    return peaks


class Breach(NamedTuple):
    """A rank exceeds its cap: it holds `amount` from `time_s` (in seconds) on, when `op` starts."""

    rank: int
    time_s: float
    op: str
    amount: float

    def __str__(self) -> str:
        return f"rank {self.rank} holds {self.amount:.3g} from {seconds_text(self.time_s)} on, when {self.op} starts"


def breaches(trace: Trace, cap: float | list[float], category: str = ACTIVATIONS) -> list[Breach]:
    """For each rank that ever holds more of `category` than its cap, the first time at which it
    does.

    cap: one number for all ranks, or a list with one for each rank, in the unit of the category.

    Raises `InputError` for a cap that is no number or below 0.
    """
    caps = cap if isinstance(cap, list) else [cap] * trace.ranks
    if len(caps) != trace.ranks or not all(number(cap) and cap >= 0 for cap in caps):
        raise InputError(
            f"a cap of {shortened(cap)}: give a number, 0 or more, or one for each of {trace.ranks} ranks"
        )
    starts = {(span.rank, span.start_s): span.op for span in trace.compute()}
    first = {}
    for point in trace.memory:
        if (
            point.category == category
            and point.amount > caps[point.rank] * (1 + 1e-9)
            and point.rank not in first
        ):
            first[point.rank] = Breach(
                point.rank, point.time_s, starts.get((point.rank, point.time_s), "?"), point.amount
            )
    return [first[rank] for rank in sorted(first)]
