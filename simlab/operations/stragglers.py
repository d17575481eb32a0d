"""What slow ranks cost a synchronous training: jitter, garbage collection, a slow GPU.

All ranks of a data-parallel training wait for the slowest in every step. So a step takes the greatest
of their times, and not the mean.
"""

from dataclasses import dataclass
from math import exp, log, sqrt
from random import Random
from statistics import NormalDist, fmean, median, quantiles
from typing import NamedTuple, TypedDict

from simlab.cost import OpTimes
from simlab.display import facts_of
from simlab.engine import simulate
from simlab.errors import (
    InputError,
    require_amount,
    require_between,
    require_index,
    require_positive,
    require_whole,
)
from simlab.program import Program
from simlab.spec.fields import documented, with_field_docs

MOST_DRAWS = 5 * 10**6
MOST_S = 1e9
"""The longest step and pause; a step is no shorter than a nanosecond."""
MOST_OF = {"jitter": 100.0, "slow_by": 1e6, "hiccup_by": 1e6, "pause_s": MOST_S}
"""{what makes steps differ: the most of it}"""


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What makes the steps of a rank differ, in seconds and in parts of a step."""

    step_s: float = documented("A step of a rank that nothing disturbs.", default=10.0)
    jitter: float = documented(
        """How much a rank's step differs from its next one, by chance: the standard deviation over
        the mean of a lognormal factor whose mean is 1.""",
        default=0.0,
    )
    slow_ranks: int = documented("How many ranks are slow in every step.", default=0)
    slow_by: float = documented("By which part of a step they are slower.", default=0.0)
    pause_s: float = documented("A pause of a rank, such as a garbage collection.", default=0.0)
    pause_every: int = documented("A rank pauses once in so many steps.", default=100)
    together: bool = documented(
        "Whether all ranks pause in the same step. Else each has a step of its own.", default=False
    )
    hiccup: float = documented(
        "How likely a step is to be held up as a whole (network, storage).", default=0.0
    )
    hiccup_by: float = documented("By which part of a step it is then longer.", default=1.0)

    def __post_init__(self) -> None:
        require_between("step_s", self.step_s, 1 / MOST_S, MOST_S)
        for name in ("jitter", "slow_by", "pause_s", "hiccup_by"):
            require_between(name, getattr(self, name), 0, MOST_OF[name])
        require_amount("hiccup", self.hiccup)
        require_whole("slow_ranks", self.slow_ranks, 0)
        require_whole("pause_every", self.pause_every)
        if self.hiccup > 1:
            raise InputError(f"hiccup = {self.hiccup:g}: give a part of all steps, 0 to 1")

    @property
    def own_s(self) -> float:
        """The mean step of a rank that waits for no other, without slow ranks and hiccups."""
        return self.step_s + self.pause_s / self.pause_every


class StepsFacts(TypedDict):
    """`Steps` as plain values."""

    ranks: int
    steps: int
    mean_s: float
    slowdown: float
    waiting_s: float
    p90_over_median: float
    max_over_median: float


@dataclass(frozen=True, repr=False)
class Steps:
    """The steps of a synchronous training."""

    ranks: int
    disturbance: Disturbance
    steps_s: tuple[float, ...]

    def __repr__(self) -> str:
        return (
            f"<Steps: {len(self.steps_s)} of {self.ranks} ranks, mean {self.mean_s:.3f} s, "
            f"p90/median {self.p90_over_median:.3f}, max/median {self.max_over_median:.2f}>"
        )

    @property
    def mean_s(self) -> float:
        """The mean step."""
        return fmean(self.steps_s)

    @property
    def slowdown(self) -> float:
        """By which part the mean step is longer than one that nothing disturbs."""
        return self.mean_s / self.disturbance.step_s - 1

    @property
    def waiting_s(self) -> float:
        """What a step is longer than the mean of what its ranks need themselves: E[max] - mean."""
        return self.mean_s - self.disturbance.own_s

    @property
    def p90_over_median(self) -> float:
        """The step that a tenth of all exceed, over the median step: how narrow the bulk is."""
        return quantiles(self.steps_s, n=10)[8] / median(self.steps_s)

    @property
    def max_over_median(self) -> float:
        """The longest step over the median step: how heavy the tail is."""
        return max(self.steps_s) / median(self.steps_s)

    def to_dict(self) -> StepsFacts:
        """All figures as plain values that JSON knows."""
        return facts_of(self, StepsFacts, steps=len(self.steps_s))


def synchronous_steps(
    disturbance: Disturbance, *, ranks: int, steps: int = 1000, seed: int = 0
) -> Steps:
    """The steps of `ranks` ranks that wait for the slowest of them each time."""
    require_whole("ranks", ranks)
    require_whole("steps", steps, 2)
    if disturbance.slow_ranks > ranks:
        raise InputError(
            f"slow_ranks = {disturbance.slow_ranks} of {ranks} ranks: give at most all"
        )
    if ranks * steps > MOST_DRAWS:
        raise InputError(f"{ranks} ranks x {steps} steps: give at most {MOST_DRAWS:,} in all")
    luck, every = Random(seed), disturbance.pause_every
    pauses_at = {0} if disturbance.together else {luck.randrange(every) for _ in range(ranks)}
    slowest = _Slowest(disturbance, ranks, luck)
    times = []
    for step in range(steps):
        seconds = slowest.draw()
        if step % every in pauses_at:
            seconds += disturbance.pause_s
        if luck.random() < disturbance.hiccup:
            seconds += disturbance.step_s * disturbance.hiccup_by
        times.append(seconds)
    return Steps(ranks, disturbance, tuple(times))


class _Slowest:
    """The slowest of many ranks, each with a lognormal factor.

    The greatest of n independent draws is the draw at the quantile u^(1/n), u uniform: that is one
    draw for each kind of rank instead of one for each rank.
    """

    def __init__(self, disturbance: Disturbance, ranks: int, luck: Random) -> None:
        self.luck = luck
        self.sigma = sqrt(log(1 + disturbance.jitter**2))
        slow_s = disturbance.step_s * (1 + disturbance.slow_by)
        kinds = (
            (ranks - disturbance.slow_ranks, disturbance.step_s),
            (disturbance.slow_ranks, slow_s),
        )
        self.kinds = [(count, seconds) for count, seconds in kinds if count]

    def draw(self) -> float:
        """The time of the slowest rank in one step."""
        return max(seconds * self._greatest(count) for count, seconds in self.kinds)

    def _greatest(self, count: int) -> float:
        if not self.sigma:
            return 1.0
        quantile = min(max(self.luck.random() ** (1 / count), 1e-300), 1 - 1e-16)
        return exp(self.sigma * NormalDist().inv_cdf(quantile) - self.sigma**2 / 2)


def pause_slowdown(ranks: int, *, pause_s: float, every: int, step_s: float) -> tuple[float, float]:
    """By which part steps are longer because of pauses: (each rank in its own step, all together).

    A rank pauses in one step of k, at random. A step of d ranks is held up unless none of them
    pauses: with the probability 1 - (1 - 1/k)^d. If all pause together, it is 1/k. Left out: that a
    pause can hide where a rank would have waited anyway.
    """
    require_whole("ranks", ranks)
    require_whole("every", every)
    require_amount("pause_s", pause_s)
    require_positive("step_s", step_s)
    share = pause_s / step_s
    return share * (1 - (1 - 1 / every) ** ranks), share / every


class SlowStage(NamedTuple):
    """A pipeline's step with all stages alike, and with one that is slower."""

    before_s: float
    after_s: float

    @property
    def slowdown(self) -> float:
        """By which part the step is longer."""
        return self.after_s / self.before_s - 1


def slow_stage(program: Program, times: OpTimes, *, stage: int, slow_by: float) -> SlowStage:
    """The step of `program` if the ops of one stage take `slow_by` of their time longer.

    times: one number for all stages. Raises `InputError` if there is no such stage.
    """
    require_index("stage", stage, program.stages)
    require_amount("slow_by", slow_by)

    def one_slower(seconds: float | tuple[float, ...] | None) -> tuple[float, ...] | None:
        if seconds is None:
            return None
        each = seconds if isinstance(seconds, tuple) else (seconds,) * program.stages
        return tuple(s * (1 + slow_by * (at == stage)) for at, s in enumerate(each))

    slower = OpTimes(
        forward_s=one_slower(times.forward_s),
        backward_s=one_slower(times.backward_s),
        input_grad_s=one_slower(times.input_grad_s),
        weight_grad_s=one_slower(times.weight_grad_s),
    )
    return SlowStage(simulate(program, times).step_s, simulate(program, slower).step_s)
