"""It computes idle time, and the three figures that the literature calls "the bubble"."""

from collections.abc import Sequence
from typing import NamedTuple

from simlab.errors import InputError
from simlab.program import Op, Program
from simlab.schedules import closed_bubble_s
from simlab.trace import Trace

ROUNDING = 1e-12
"""The fraction of a makespan below which idle time is what rounding left of sums."""


class Bubble(NamedTuple):
    """Three fractions of the same idle time.

    idle_over_ideal:    the idle time over the busy time, both summed over ranks. Narayanan et al.
                        2021, arXiv 2104.04473, section 2.2, call it t_pb / t_id.
    idle_over_makespan: the idle time over ranks times makespan. Huang et al. 2019 (GPipe), arXiv
                        1811.06965, section 2.3.
    longest_stage:      the idle fraction of the span of the rank whose span, from its first start
                        to its last end, is the longest. Qi et al. 2023 (zero bubble), arXiv
                        2401.10241, Table 5: (cost - m (F + I + W)) / cost.

    With equal stages and free communication, p ranks run m microbatches of GPipe or 1F1B in
    (m + p - 1)(F + B), of which each rank is busy for m (F + B). So idle_over_ideal is (p - 1) / m,
    and idle_over_makespan is (p - 1) / (m + p - 1).
    """

    idle_over_ideal: float
    idle_over_makespan: float
    longest_stage: float

    def to_dict(self) -> dict[str, float]:
        """The figures as {name: fraction}."""
        return self._asdict()


LEAST = 0.001
"""The part of a step from which on a cause of idle time is named."""


class BubbleParts(NamedTuple):
    """Why a pipeline idles: seconds as means over ranks, which add up to its idle time.

    warm_up_s:  the ranks wait for their first microbatch and, after their last one, for the others; and
                the gaps that the schedule's order leaves.
    unequal_s:  the slowest rank computes longer than the mean, and all others wait for it.
    messages_s: what the step would be shorter if messages took no time.
    slowest:    the rank that computes longest.
    longer:     by what fraction of the mean.
    """

    warm_up_s: float
    unequal_s: float
    messages_s: float
    slowest: int
    longer: float

    def text(self, step_s: float, form: str = "") -> str:
        """A sentence that says which part of a step of `step_s` is idle time, and why; '' if none of it
        is. form: what `warm_up_form` says."""
        of_equal = f" (for equal stages {form} of computing)" if form else ""
        slow = f" (pipeline rank {self.slowest} takes {self.longer:.1%} longer than the mean)"
        parts = [
            (self.warm_up_s, "warm-up and drain", of_equal),
            (self.unequal_s, "unequal stages", slow),
            (self.messages_s, "waiting for transfers", ""),
        ]
        named = [
            f"{name} {seconds / step_s:.1%}{more}"
            for seconds, name, more in sorted(parts, key=lambda part: -part[0])
            if seconds >= LEAST * step_s
        ]
        idle_s = self.warm_up_s + self.unequal_s + self.messages_s
        return f"{idle_s / step_s:.1%} of the step: {', '.join(named)}" if named else ""


def bubble_parts(busy_s: Sequence[float], step_s: float, free_s: float) -> BubbleParts:
    """The `BubbleParts` of a pipeline.

    busy_s: [per rank] the seconds in which it computes. step_s: the time of its ops, in seconds.
    free_s: the same if messages took no time. No rank can end before the slowest one has computed all
    of its ops, so that what is left of `free_s` then is the warm-up and the drain.
    """
    mean_s, most_s = sum(busy_s) / len(busy_s), max(busy_s)
    messages_s = max(0.0, step_s - free_s)
    return BubbleParts(
        max(0.0, step_s - messages_s - most_s),
        most_s - mean_s,
        messages_s,
        max(range(len(busy_s)), key=busy_s.__getitem__),
        most_s / mean_s - 1 if mean_s else 0.0,
    )


def warm_up_form(program: Program) -> str:
    """'(p - 1) / m = 3 / 16', or with v stages on a rank '(p - 1) / (m v) = 3 / 64', where that is the
    idle time over the computing of equal stages; '' for another schedule."""
    p, m = len(program.ranks), program.microbatches
    v = program.stages // p
    own_s = closed_bubble_s(program, 1.0, 0.5, 0.5)
    if own_s is None or p == 1 or abs(own_s * v - 2.0 * (p - 1)) > ROUNDING:
        return ""
    return f"(p - 1) / (m v) = {p - 1} / {m * v}" if v > 1 else f"(p - 1) / m = {p - 1} / {m}"


def busy_s(trace: Trace) -> list[float]:
    """[per rank] the seconds in which its compute stream runs an op."""
    busy = [0.0] * trace.ranks
    for span in trace.compute():
        busy[span.rank] += span.end_s - span.start_s
    return busy


def idle_s(trace: Trace) -> list[float]:
    """[per rank] the makespan minus the busy time, in seconds."""
    return [trace.step_s - busy for busy in busy_s(trace)]


def bubble(trace: Trace) -> Bubble:
    """The `Bubble` of `trace`.

    idle_over_ideal is sum(idle) / sum(busy), and idle_over_makespan is sum(idle) / (ranks x
    makespan). The sums are over ranks, so unequal stages count by their time.

    Raises `InputError` if no op takes any time, because the fractions then do not exist.
    """
    busy = busy_s(trace)
    if sum(busy) <= 0:
        raise InputError(
            "no op takes any time, so there is no bubble to speak of: give times above 0"
        )
    total = trace.ranks * trace.step_s
    rank, span_s = longest_span(trace)
    idle, own = total - sum(busy), 1 - busy[rank] / span_s
    # of ranks that never idle, rounding leaves a little more or less than 0
    idle, own = (
        0.0 if abs(left) < ROUNDING * of else left for left, of in ((idle, total), (own, 1))
    )
    return Bubble(idle / sum(busy), idle / total, own)


def longest_span(trace: Trace) -> tuple[int, float]:
    """The rank with the longest span, from its first start to its last end, and that span in
    seconds."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for span in trace.compute():
        first[span.rank] = min(first.get(span.rank, span.start_s), span.start_s)
        last[span.rank] = max(last.get(span.rank, span.end_s), span.end_s)
    spans = {rank: last[rank] - first[rank] for rank in first}
    return max(spans.items(), key=lambda item: item[1])


def steady_idle(trace: Trace) -> float | None:
    """The fraction of time in which the ranks idle while the pipeline is full.

    The pipeline counts as full from the end of rank 0's first backward to the start of its last
    forward. Where batches follow each other without a flush, this is what is left of the bubble.
    None if the first backward ends after the last forward starts.
    """
    ops = [(Op.of_span(span).kind, span) for span in trace.compute(0)]
    start_s = min((span.end_s for kind, span in ops if kind in "BI"), default=float("inf"))
    end_s = max((span.start_s for kind, span in ops if kind == "F"), default=0.0)
    if end_s <= start_s:
        return None
    busy_s = sum(
        max(0.0, min(span.end_s, end_s) - max(span.start_s, start_s)) for span in trace.compute()
    )
    return max(0.0, 1 - busy_s / (trace.ranks * (end_s - start_s)))
