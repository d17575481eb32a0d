"""op → seconds, op → what it holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from random import Random

from simlab.errors import InputError, number
from simlab.program import WEIGHT_GRAD_MEMORY, Op, Program

MOST_JITTER = 10
PerStage = float | tuple[float, ...]
"""A number for all stages, or one for each."""
FIELD_OF_KIND = {"F": "forward_s", "B": "backward_s", "I": "input_grad_s", "W": "weight_grad_s"}


@dataclass(frozen=True, kw_only=True)
class OpTimes:
    """How long each op kind takes: one number for all stages, or one per stage.

    Kinds left None are not known: simulating a program that has them is an error.
    """

    forward_s: PerStage | None = None
    """F, seconds."""
    backward_s: PerStage | None = None
    """B, the full backward, seconds; None: I + W, where those are given."""
    input_grad_s: PerStage | None = None
    """I, the backward down to the input gradient, seconds."""
    weight_grad_s: PerStage | None = None
    """W, the rest of the backward, seconds."""
    pair_s: float | None = None
    """F&B, a forward and a backward side by side (`Program.paired`), seconds; None: as long as both
    one after the other."""
    jitter: float = 0.0
    """How much one op differs from the next: the coefficient of variation (standard deviation /
    mean) of a lognormal factor with mean 1. It is drawn per op: with the same seed, an op has the
    same luck in every schedule."""
    seed: int = 0
    """Of the jitter."""

    def __post_init__(self) -> None:
        for field in FIELD_OF_KIND.values():
            value = getattr(self, field)
            if value is None:
                continue
            if not isinstance(value, (int, float)):
                value = tuple(value)
                object.__setattr__(self, field, value)
            for seconds in value if isinstance(value, tuple) else (value,):
                _require_finite(field, seconds, "seconds")
        if self.pair_s is not None:
            _require_finite("pair_s", self.pair_s, "seconds")
        if not 0 <= self.jitter <= MOST_JITTER:
            raise InputError(
                f"jitter = {self.jitter!r}: give a standard deviation over the mean, 0 to {MOST_JITTER}"
            )

    def scaled(self, factor: float) -> "OpTimes":
        """The same with every time multiplied by `factor`."""

        def product(value: PerStage) -> PerStage:
            if isinstance(value, tuple):
                return tuple(part * factor for part in value)
            return value * factor

        scaled = self._with(lambda field, value: product(value))
        return scaled if self.pair_s is None else replace(scaled, pair_s=self.pair_s * factor)

    def _with(self, change: Callable[[str, PerStage], PerStage]) -> "OpTimes":
        """The same with each time that is given changed. change: (field, value) → value."""
        given = [(field, getattr(self, field)) for field in FIELD_OF_KIND.values()]
        changed = {f: None if value is None else change(f, value) for f, value in given}
        return OpTimes(**changed, pair_s=self.pair_s, jitter=self.jitter, seed=self.seed)

    def weighted(self, work: Sequence[float]) -> "OpTimes":
        """The same, for stages that do not have equal work: [work of each stage], in any unit. The
        mean over stages stays as it is.

        Raises `InputError` if there are pairs: how long two unequal halves take side by side is not
        known; and if there
        is no mean to keep: times of each stage are given already, or nothing has any work.
        """
        if self.pair_s is not None:
            raise InputError(
                "stages of unequal work have no one time of a pair: leave out pair_s, or the work"
            )
        for part in work:
            _require_finite("work of a stage", part, "any one unit")
        if not sum(work):
            raise InputError(f"stages of work {[*work]}: give at least one that has some")
        mean = sum(work) / len(work)

        def spread(field: str, value: PerStage) -> PerStage:
            if isinstance(value, tuple):
                raise InputError(
                    f"{field} = {value} has a time of each stage already: give one number, or leave out the work"
                )
            return tuple(value * part / mean for part in work)

        return self._with(spread)

    def table(self, program: Program) -> dict[tuple[int, str], float]:
        """{(stage, kind): seconds} for every stage and kind that `program` has; `InputError` where
        one is unknown."""
        return {
            pair: self._seconds(*pair)
            for pair in sorted({(op.stage, op.kind) for op in program.rank_of})
        }

    def durations(self, program: Program) -> list[list[float]]:
        """[per rank] seconds of each of its ops; of a pair, both ops take their part of
        `pair_s`."""
        seconds = self.table(program)
        durations = [[seconds[op[:2]] for op in ops] for ops in program.ranks]
        if self.pair_s is not None:
            for ops, its in zip(program.ranks, durations):
                for at in (at for at, op in enumerate(ops) if op in program.paired):
                    alone_s = its[at] + its[at + 1]
                    its[at], its[at + 1] = (
                        self.pair_s * (part / alone_s if alone_s else 0.5)
                        for part in its[at : at + 2]
                    )
        if self.jitter:
            durations = [
                [s * self._luck(op) for s, op in zip(its, ops)]
                for its, ops in zip(durations, program.ranks)
            ]
        return durations

    def _luck(self, op: Op) -> float:
        # of the normal distribution whose exponential has mean 1 and this variation
        variance = log(1 + self.jitter**2)
        return Random(f"{self.seed} {op}").lognormvariate(-variance / 2, variance**0.5)

    def _seconds(self, stage: int, kind: str) -> float:
        value = getattr(self, FIELD_OF_KIND[kind])
        if kind == "B" and None not in (self.input_grad_s, self.weight_grad_s) and value is None:
            return self._seconds(stage, "I") + self._seconds(stage, "W")
        if value is None:
            raise InputError(f"the program has {kind} ops, but {FIELD_OF_KIND[kind]} is not given")
        return _of_stage(value, stage, FIELD_OF_KIND[kind])


def _require_finite(field: str, value: float, unit: str) -> None:
    if not number(value) or not 0 <= value < float("inf"):
        raise InputError(f"{field} = {value!r}: give a finite number of {unit}, 0 or more")


@dataclass(frozen=True, kw_only=True)
class OpMemory:
    """What one microbatch's ops hold on a stage, in any unit: one number for all stages, or one per
    stage.

    F takes `activations` (the zero-bubble papers' M_B) when it starts. B gives it back when it
    ends; with a split backward, I gives back all but `weight_grad` (M_W), and W that. Leaves out:
    what an op needs only while it runs.
    """

    activations: PerStage = 1.0
    """M_B: what a microbatch's forward leaves for its backward."""
    weight_grad: PerStage | None = None
    """M_W: what I leaves, and only W frees. None: half of M_B. (For a transformer layer of hidden
    size h, a heads and s tokens the zero-bubble paper's Table 1, arXiv 2401.10241, has 32 / (34 +
    5as/h) of it: about 0.4 there, 0.94 with flash attention.)"""
    unit: str = "microbatches"
    """What the numbers count, for titles: "bytes", say."""

    def __post_init__(self) -> None:
        for field in ("activations", "weight_grad"):
            value = getattr(self, field)
            for held in (
                () if value is None else value if isinstance(value, (tuple, list)) else (value,)
            ):
                _require_finite(field, held, "whatever it is counted in")

    def change(self, stage: int, kind: str) -> float:
        """What an op of `kind` on `stage` adds to what its rank holds: above 0 from its start,
        below 0 from its end."""
        held = _of_stage(self.activations, stage, "activations")
        kept = (
            held * WEIGHT_GRAD_MEMORY
            if self.weight_grad is None
            else _of_stage(self.weight_grad, stage, "weight_grad")
        )
        return {"F": held, "B": -held, "I": kept - held, "W": -kept}[kind]


def _of_stage(value: PerStage, stage: int, field: str) -> float:
    """`value`, or the one of `stage` where there is one per stage; `InputError` if it has none for
    it."""
    if not isinstance(value, (tuple, list)):
        return value
    if stage >= len(value):
        raise InputError(f"{field} has {len(value)} stages, but the program has a stage {stage}")
    return value[stage]
