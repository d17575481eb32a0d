"""Idle time, and the three figures that the literature calls "the bubble"."""

from typing import NamedTuple

from simlab.errors import InputError
from simlab.program import Op


class Bubble(NamedTuple):
    """Three fractions of the same idle time. For GPipe and 1F1B with equal stages and free communication:

    idle_over_ideal:    (p - 1) / m            Narayanan et al. 2021, arXiv 2104.04473, section 2.2: t_pb / t_id
    idle_over_makespan: (p - 1) / (m + p - 1)  Huang et al. 2019 (GPipe), arXiv 1811.06965, section 2.3
    longest_stage:      the rank whose own span (its first start to its last end) is longest: the idle part of that
                        span. Qi et al. 2023 (zero bubble), arXiv 2401.10241, Table 5: (cost - m(F+I+W)) / cost
    """

    idle_over_ideal: float
    idle_over_makespan: float
    longest_stage: float


def busy_s(trace):
    """[per rank] seconds in which the compute stream runs an op."""
    busy = [0.0] * trace.ranks
    for span in trace.compute():
        busy[span.rank] += span.end_s - span.start_s
    return busy


def idle_s(trace):
    """[per rank] makespan - busy, s."""
    return [trace.step_s - busy for busy in busy_s(trace)]


def bubble(trace):
    """`Bubble` of `trace`. Idle and ideal are summed over ranks, so unequal stages count by their time.

    idle_over_ideal = sum(idle) / sum(busy); idle_over_makespan = sum(idle) / (ranks x makespan).
    `InputError` if nothing ran or everything took no time: the ratios do not exist.
    """
    busy = busy_s(trace)
    if sum(busy) <= 0:
        raise InputError("no op takes any time, so there is no bubble to speak of: give times above 0")
    total = trace.ranks * trace.step_s
    rank, span_s = longest_span(trace)
    return Bubble((total - sum(busy)) / sum(busy), (total - sum(busy)) / total, 1 - busy[rank] / span_s)


def longest_span(trace):
    """(rank, s): the rank whose own span, its first start to its last end, is the longest."""
    first, last = {}, {}
    for span in trace.compute():
        first[span.rank] = min(first.get(span.rank, span.start_s), span.start_s)
        last[span.rank] = max(last.get(span.rank, span.end_s), span.end_s)
    spans = {rank: last[rank] - first[rank] for rank in first}
    return max(spans.items(), key=lambda item: item[1])


def steady_idle(trace):
    """The idle share of all ranks while the pipeline is full: from the end of rank 0's first backward to the start of its last forward.

    What is left of the bubble where batches follow each other without a flush. None if the first backward ends after that.
    """
    ops = [(Op.parse(span.op).kind, span) for span in trace.compute(0)]
    start_s = min((span.end_s for kind, span in ops if kind in "BI"), default=float("inf"))
    end_s = max((span.start_s for kind, span in ops if kind == "F"), default=0.0)
    if end_s <= start_s:
        return None
    busy_s = sum(max(0.0, min(span.end_s, end_s) - max(span.start_s, start_s)) for span in trace.compute())
    return max(0.0, 1 - busy_s / (trace.ranks * (end_s - start_s)))
