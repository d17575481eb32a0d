"""What a rank holds over time."""

from math import isclose
from typing import NamedTuple

from simlab.errors import InputError
from simlab.trace import ACTIVATIONS, LIVE
from simlab.units import seconds_text


def memory_curve(trace, rank, category=LIVE):
    """([time_s], [amount]) of `rank`: it holds amount[i] from time_s[i] until time_s[i + 1]. Starts with 0."""
    return memory_curves(trace, category)[rank]


def memory_curves(trace, category=LIVE):
    """[per rank] its `memory_curve`."""
    start_s = trace.start_s
    curves = [([start_s], [0.0]) for _ in range(trace.ranks)]
    for rank, kind, time_s, amount in trace.memory:
        if kind == category:
            times, amounts = curves[rank]
            if len(times) > 1 and isclose(times[-1], time_s):  # given back and taken at once: no time in between
                amounts[-1] = amount
            else:
                times.append(time_s)
                amounts.append(amount)
    return curves


def peak_memory(trace, category=LIVE):
    """[per rank] the most it ever holds of `category`, in that category's unit."""
    peaks = [0] * trace.ranks
    for point in trace.memory:
        if point.category == category:
            peaks[point.rank] = max(peaks[point.rank], point.amount)
    return peaks


class Breach(NamedTuple):
    """`rank` holds `amount`, more than the cap, from `time_s` on, when `op` started."""

    rank: int
    time_s: float
    op: str
    amount: float

    def __str__(self):
        return f"rank {self.rank} holds {self.amount:.3g} from {seconds_text(self.time_s)} on, when {self.op} starts"


def breaches(trace, cap, category=ACTIVATIONS):
    """[`Breach`]: for each rank that ever holds more than `cap` (one for all, or [one for each rank]) of `category`, the first time it
    does."""
    caps = cap if isinstance(cap, list) else [cap] * trace.ranks
    if not all(cap >= 0 for cap in caps):
        raise InputError(f"a cap of {cap}: give a number, 0 or more")
    starts = {(span.rank, span.start_s): span.op for span in trace.compute()}
    first = {}
    for point in trace.memory:
        if point.category == category and point.amount > caps[point.rank] * (1 + 1e-9) and point.rank not in first:
            first[point.rank] = Breach(point.rank, point.time_s, starts.get((point.rank, point.time_s), "?"), point.amount)
    return [first[rank] for rank in sorted(first)]
