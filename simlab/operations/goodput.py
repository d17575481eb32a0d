"""Goodput against the interval between checkpoints: simulated, and by Young and Daly."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean, stdev
from typing import Annotated, Any, NamedTuple, TypedDict

from simlab.display import facts_of
from simlab.errors import InputError, require_positive, require_whole
from simlab.operations.closed_forms import daly_interval_s, expected_goodput, young_interval_s
from simlab.operations.long_run import LongRun, simulate_run
from simlab.schema import MaybeNan

SEEDS = 4
MOST_IN_STUDY = 2e6
"""Checkpoints and failures: some seven seconds."""
GRID = 17
"""The intervals that are tried where none are given: from a quarter of Daly's to four times it."""
SPAN = 4.0
NEAR = 2.5
"""Intervals at most this many times off the best one that was tried show where the best one is."""
SHORT_STALL = 0.05
"""Up to a checkpoint of this part of the mean time between failures Young's interval is close."""
LONG_STALL = 0.5
"""From a checkpoint of this part of the mean time between failures on, Daly's interval is no longer
the best one to within 1%."""


class Point(NamedTuple):
    """The goodput at one interval."""

    interval_s: float
    goodput: float
    """Simulated, the mean over seeds."""
    error: MaybeNan
    """The standard error of that mean; of one seed there is none."""
    expected: float
    """By Daly's cost function."""


class Assumption(NamedTuple):
    """Something that Young's and Daly's formulas take for granted."""

    holds: bool
    """Whether it is so in a run."""
    text: str
    """What is taken for granted."""
    here: str
    """How it is in the run."""


class IntervalFacts(TypedDict):
    """An `IntervalStudy` as plain values."""

    best_interval_s: float
    young_interval_s: float
    daly_interval_s: float
    best_goodput: float
    points: list[Annotated[dict[str, Any], Point]]
    assumptions: list[Annotated[dict[str, Any], Assumption]]


@dataclass(frozen=True, repr=False)
class IntervalStudy:
    """How the goodput of a run depends on the interval between its checkpoints."""

    run: LongRun
    points: tuple[Point, ...]
    best_interval_s: float
    """Where a parabola through the simulated losses near the best one is lowest."""
    young_interval_s: float
    daly_interval_s: float
    assumptions: tuple[Assumption, ...]

    def __repr__(self) -> str:
        return (
            f"<IntervalStudy: best {self.best_interval_s:.0f} s, Young "
            f"{self.young_interval_s:.0f} s, Daly {self.daly_interval_s:.0f} s>"
        )

    @property
    def best_goodput(self) -> float:
        """The highest goodput of the intervals that were tried."""
        return max(point.goodput for point in self.points)

    def to_dict(self) -> IntervalFacts:
        """All figures as plain values that JSON knows."""
        return facts_of(self, IntervalFacts)


def mean_goodput(run: LongRun, *, seeds: int = SEEDS) -> tuple[float, float]:
    """(mean goodput of `run` over seeds 0 to `seeds` - 1, its standard error)."""
    require_whole("seeds", seeds)
    found = [simulate_run(run, seed=seed).goodput for seed in range(seeds)]
    return fmean(found), stdev(found) / seeds**0.5 if seeds > 1 else float("nan")


def interval_study(
    run: LongRun, *, intervals_s: Sequence[float] = (), seeds: int = SEEDS
) -> IntervalStudy:
    """Simulate `run` at several intervals, each with the same failures.

    intervals_s: by default 17 of them around Daly's. seeds: runs for each of them.
    """
    require_whole("seeds", seeds)
    plan = run.checkpoints
    if plan.stall_s <= 0:
        raise InputError(
            f"stall_s = {plan.stall_s!r}: a checkpoint for which training never stands still is best "
            "made all the time; give a number above 0"
        )
    young, daly = (form(plan.stall_s, run.mtbf_s) for form in (young_interval_s, daly_interval_s))
    intervals = sorted(intervals_s) or [
        daly * SPAN ** (2 * at / (GRID - 1) - 1) for at in range(GRID)
    ]
    events = seeds * sum(run.work_s / each + run.work_s / run.mtbf_s for each in intervals)
    if not events <= MOST_IN_STUDY:
        raise InputError(
            f"about {events:.1g} checkpoints and failures in {len(intervals)} x {seeds} runs, more than "
            f"{MOST_IN_STUDY:g}: give less work, fewer seeds, or fewer intervals"
        )
    points = tuple(_point(run, interval_s, seeds) for interval_s in intervals)
    best = _lowest([(point.interval_s, 1 / point.goodput) for point in points])
    return IntervalStudy(run, points, best, young, daly, assumptions(run))


def at_interval(run: LongRun, interval_s: float) -> LongRun:
    """`run` with another interval between checkpoints on disk."""
    require_positive("interval_s", interval_s)
    memory_s = run.checkpoints.memory_interval_s
    memory_s = None if memory_s is None else min(memory_s, interval_s)
    plan = replace(run.checkpoints, interval_s=interval_s, memory_interval_s=memory_s)
    return replace(run, checkpoints=plan)


def _point(run: LongRun, interval_s: float, seeds: int) -> Point:
    mean, error = mean_goodput(at_interval(run, interval_s), seeds=seeds)
    expected = expected_goodput(
        interval_s=interval_s,
        checkpoint_s=run.checkpoints.stall_s,
        restart_s=run.restart_s,
        mtbf_s=run.mtbf_s,
    )
    return Point(interval_s, mean, error, expected)


def _lowest(losses: Sequence[tuple[float, float]]) -> float:
    """The interval at which a parabola in its logarithm, fitted to the losses near the lowest one,
    is lowest. Single losses are noisy, and the lowest one alone would be mostly luck."""
    at = min(losses, key=lambda each: each[1])[0]
    near = [(log(x / at), y) for x, y in losses if 1 / NEAR <= x / at <= NEAR]
    if len(near) < 3:
        return at
    sums = [sum(x**power for x, _ in near) for power in range(5)]
    right = [sum(y * x**power for x, y in near) for power in range(3)]
    _, slope, curve = _solved([[sums[i + j] for j in range(3)] for i in range(3)], right)
    if curve <= 0:
        return at
    lowest = -slope / (2 * curve)
    return at * exp(min(max(lowest, near[0][0]), near[-1][0]))


def _solved(matrix: list[list[float]], right: list[float]) -> tuple[float, float, float]:
    """The solution of three linear equations, by Cramer's rule."""

    def determinant(m: list[list[float]]) -> float:
        return sum(
            m[0][i]
            * (m[1][(i + 1) % 3] * m[2][(i + 2) % 3] - m[1][(i + 2) % 3] * m[2][(i + 1) % 3])
            for i in range(3)
        )

    whole = determinant(matrix)
    if not whole:
        return 0.0, 0.0, 0.0
    first, second, third = (
        determinant([[*row[:i], value, *row[i + 1 :]] for row, value in zip(matrix, right)]) / whole
        for i in range(3)
    )
    return first, second, third


def assumptions(run: LongRun) -> tuple[Assumption, ...]:
    """What Young's and Daly's formulas take for granted, and whether it is so in `run`.

    What they also take for granted, and every `LongRun` does: failures come one by one at a constant
    rate, and each is noticed.
    """
    plan, fleet, mtbf_s = run.checkpoints, run.fleet, run.mtbf_s
    in_repair = fleet.repair_s / mtbf_s * run.rate.node_share
    return (
        Assumption(
            plan.stall_s < SHORT_STALL * mtbf_s,
            "Young: a checkpoint is short beside the mean time between failures",
            f"{plan.stall_s:.3g} s beside {mtbf_s:.3g} s",
        ),
        Assumption(
            plan.stall_s <= LONG_STALL * mtbf_s,
            "Daly: a checkpoint takes at most half of that time",
            f"{plan.stall_s / mtbf_s:.2g} of it",
        ),
        Assumption(
            plan.write_s == 0,
            "a checkpoint is complete when training goes on",
            f"writing goes on for {plan.write_s:.3g} s, which each failure costs in addition",
        ),
        Assumption(
            plan.memory_interval_s is None,
            "all failures go back to the disk",
            f"{plan.memory_survives * (plan.memory_interval_s is not None):.0%} go back to memory",
        ),
        Assumption(
            fleet.spares >= in_repair + 3 * in_repair**0.5,
            "a spare is always there",
            f"{fleet.spares} spares, and {in_repair:.1f} nodes in repair on average",
        ),
        Assumption(
            run.work_s >= 20 * mtbf_s,
            "the training is long",
            f"{run.work_s / mtbf_s:.0f} failures are expected in it",
        ),
    )
