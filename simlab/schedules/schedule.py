"""The record of a schedule: its function, and what its program does not show by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import NamedTuple

from simlab.program import Program


class Case(NamedTuple):
    """What a closed form may depend on: p ranks of v stages each, m microbatches, and the times F, I, W,
    B = I + W, and F&B (`pair`) of a rank for one microbatch, summed over its stages, in seconds."""

    p: int
    m: int
    v: int
    f: float
    i: float
    w: float
    b: float
    pair: float

    @property
    def fills(self) -> bool:
        """Whether W fits into the gaps of F and I, and there are enough microbatches to fill them."""
        return self.w <= self.f and self.w <= self.i and self.m >= 2 * self.p


@dataclass(frozen=True)
class Schedule:
    """One schedule, as `simlab.schedules.SCHEDULES` holds it under its name."""

    name: str
    """The name of the command line; that of the programs, too."""
    function: Callable[..., Program]
    """`(ranks, microbatches, own options) -> Program`. It is pure, and raises `InputError` for
    numbers of which the schedule cannot be made. It can be made of 2 ranks and 4 microbatches."""
    bubble_s: Callable[[Case], float | None] = lambda case: None
    """The bubble by the paper's closed form, in seconds; None where its conditions do not hold."""
    aliases: tuple[str, ...] = ()
    """Other names."""
    in_flight: Callable[[int, int, int], int] = lambda p, m, v: 1
    """The most microbatches of a stage that the first of p ranks of v stages holds at once, at least,
    of m. With more a search rejects more plans before it simulates them."""
    beside: float = 0
    """The most ranks for which each turn has a forward and a backward of different microbatches at
    hand, so that the two can go side by side without a wait (`Plan.ep_overlap`)."""
    steady: bool = False
    """Whether from 2 p microbatches on each one adds equally much to the step and nothing to the peak.
    A search then extrapolates from 3 p; it simulates whole steps of any other schedule. GPipe's peak
    grows with m. In Eager 1F1B, ZB-H2, ZB-V and DualPipe ranks have turns to spare at first, and one that
    needs a little longer for a microbatch than others uses them up; so in interleaved 1F1B if stages
    are unequal, where a search is up to some percent too fast."""
    searched: bool = False
    """Whether a search of plans tries it where no schedule is given."""
    flush: bool = True
    """Whether weights change at the end of a step only. A plan and realrun have no other schedules."""

    @cached_property
    def options(self) -> tuple[str, ...]:
        """The names of its own options."""
        return tuple(signature(self.function).parameters)[2:]

    @property
    def chunked(self) -> bool:
        """Whether one chooses how many stages each rank holds."""
        return "chunks" in self.options

    @property
    def timed(self) -> bool:
        """Whether its order depends on the times of ops, for which it is searched."""
        return "forward_s" in self.options

    @cached_property
    def _small(self) -> Program:
        return self.function(2, 4)

    @property
    def chunks(self) -> int:
        """The stages on each rank, unless others are chosen."""
        return self._small.stages // 2

    @cached_property
    def copies(self) -> int:
        """The ranks that hold each stage: 2 where half of the microbatches go the other way, so that a
        stage is at the same distance from either end of the pipeline."""
        return sum(0 in self._small.stages_of(rank) for rank in range(2))

    @cached_property
    def ends_together(self) -> bool:
        """Whether the first rank holds the first stage and the last one."""
        return self._small.stages - 1 in self._small.stages_of(0)

    @cached_property
    def one_backward(self) -> bool:
        """Whether its backward is one op, so that the last one goes through all stages below it."""
        return all(op.kind in "FB" for op in self._small.rank_of)
