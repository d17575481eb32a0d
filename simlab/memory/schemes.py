"""Data parallelism's part of the memory: which rank holds which states, and the buffers that come
and go as they travel.

A scheme is asked before and after each unit of an op. It sees the op's units in their order, such
as ('embedding', 'layer', 'layer', 'head'), and which of them it is; so what it does depends on
nothing else, and two layers between layers do the same.
"""

from typing import NamedTuple

from simlab.layer.parameters import numbers_of
from simlab.layer.units import ENDS, UnitKind
from simlab.lowering.zero import (
    gathers_for_ops,
    reduces_beside,
    runs_in_torchs_pipeline,
    shards_of,
)
from simlab.memory.ledger import Ledger
from simlab.spec.model import Model
from simlab.spec.plan import Plan

Units = tuple[UnitKind, ...]
"""The units of an op, in its order."""


class NumberBytes(NamedTuple):
    """Bytes of a parameter's number in each of its forms."""

    parameter: float
    """Where it rests."""
    gradient: float
    """Where the optimizer reads it."""
    gathered: float
    """As it is gathered and computed with."""
    made: float
    """As autograd makes it; 0: it is added to where it stays at once."""
    reduced: float
    """As it is sent."""


class Use(NamedTuple):
    """One op of a stage, as a scheme sees it."""

    kind: str
    """F, B, I or W."""
    first: bool = True
    """Whether it is the stage's first op that accumulates gradients."""
    gathered: bool = False
    """Whether the stage's parameters have been gathered already."""
    stays: bool = False
    """Whether they stay gathered when it is over."""
    last: bool = True
    """Whether it is the stage's last op that accumulates gradients."""

    @property
    def frees(self) -> bool:
        """Whether gathered parameters go with each unit. A W gathers nothing, but it may be the
        last op of a stage that stayed gathered."""
        return not self.stays and (self.kind != "W" or self.gathered)


class Scheme:
    """Where parameters come from and gradients go to."""

    ahead = 1
    """How many of the units that follow it has to know."""
    first_differs = False
    """Whether a step's first gradients are made where later ones are only added to."""
    last_differs = False
    """Whether gradients are reduced by a step's last op that accumulates them, and stay whole until
    then."""
    until_op_ends: tuple[str, ...] = ()
    """The categories of what an op allocates that go when it is over."""

    def __init__(self, sizes: NumberBytes):
        self.sizes = sizes

    @property
    def made_gradient(self) -> float:
        """Bytes that a backward allocates for each number of a weight's gradient."""
        return self.sizes.made

    def accumulate(self, ledger: Ledger, size: float, first: bool) -> None:
        """A parameter's gradient, `size` bytes, is complete and added to where it stays."""
        ledger.free(("temporaries", size))

    def begins(self, ledger: Ledger, units: Units, at: int, use: Use) -> None:
        """Unit `at` of `units` is about to be computed."""

    def ends(self, ledger: Ledger, units: Units, at: int, use: Use) -> None:
        """It has been."""


class Replicated(Scheme):
    """DDP, and ZeRO-1 and 2 as `data_parallel_memory` has them: every rank has all parameters.

    DDP holds its buckets, one copy of all gradients, between steps too; how large each is changes
    nothing. A gradient is copied into its bucket, reduced there and copied back. As a view of the
    bucket it lives there, and what autograd made ends with the copy. ZeRO-1: the same; the
    optimizer's part is 1/N (torch's ZeroRedundancyOptimizer deals out whole tensors: some ranks
    have more). ZeRO-2: a gradient is copied into a bucket that comes round again and again; 1/N of
    it stays (`shards` = N).
    """

    first_differs = True

    def __init__(self, sizes: NumberBytes, *, as_view: bool = False, shards: int | None = None):
        super().__init__(sizes)
        self.as_view, self.shards = as_view, shards

    def accumulate(self, ledger: Ledger, size: float, first: bool) -> None:
        """The first microbatch's gradient becomes the parameter's; others are added to it."""
        if self.shards is None:
            if not first:
                ledger.free(("temporaries", size))
                return
            ledger.relabel("temporaries", "gradients", size)
            if self.as_view:
                ledger.free(("gradients", size))
        else:
            ledger.relabel("temporaries", "unsharded_gradients", size)
            ledger.op(
                ("gradients", size / self.shards if first else 0.0),
                free=(("unsharded_gradients", size),),
            )


class Resident(Scheme):
    """Megatron-LM without sharding or with its distributed optimizer: parameters and gradients are
    whole and there for good, and a weight's gradient is added to them by the kernel that makes
    it."""


class Added(Scheme):
    """nanotron: as `Resident`, but a backward makes 16-bit gradients of all its weights, which go
    when it is over and they have been added to the fp32 ones (`FP32GradientAccumulator.backward` in
    nanotron/optim/gradient_accumulator.py)."""

    until_op_ends = ("unsharded_gradients",)

    def accumulate(self, ledger: Ledger, size: float, first: bool) -> None:
        """It stays until the op is over."""
        ledger.relabel("temporaries", "unsharded_gradients", size)


class Partitioned(Scheme):
    """Flat ZeRO-2 and 3: a unit's parameters are gathered in one piece, `prefetch` units ahead, and
    go after it; its gradients are whole from its backward on until they have been reduced, beside
    the backward of the next unit where `beside`. In torch's pipelines they are whole from the
    stage's first backward on until its last one."""

    def __init__(self, sizes: NumberBytes, model: Model, plan: Plan):
        super().__init__(sizes)
        self.gathers = gathers_for_ops(plan) or plan.offload == "parameters"
        self.whole_gradients = shards_of(plan, "gradients") > 1
        self.last_differs = self.first_differs = runs_in_torchs_pipeline(plan)
        self.ahead = max(1, plan.prefetch)
        self.prefetch = plan.prefetch
        self.beside = reduces_beside(plan)
        self.numbers = {unit: numbers_of(model, plan, unit).all for unit in (*ENDS, *model.counts)}

    def _bytes(self, units: Units, first: int, last: int, size: float) -> float:
        return size * sum(self.numbers[unit] for unit in units[max(0, first) : max(0, last)])

    def begins(self, ledger: Ledger, units: Units, at: int, use: Use) -> None:
        """Gather what comes into reach; make room for gradients."""
        if self.gathers and use.kind != "W" and not use.gathered:
            reach = at + self.prefetch + 1
            size = self._bytes(units, reach - 1 if at else 0, reach, self.sizes.gathered)
            ledger.op(("unsharded_parameters", size))
        if self.whole_gradients and use.kind in "BW" and (use.first or not self.last_differs):
            size = self._bytes(units, at, at + 1, self.sizes.reduced)
            ledger.op(("unsharded_gradients", size))

    def ends(self, ledger: Ledger, units: Units, at: int, use: Use) -> None:
        """Free the unit's parameters, and gradients that have been reduced."""
        if self.gathers and use.frees:
            size = self._bytes(units, at, at + 1, self.sizes.gathered)
            ledger.free(("unsharded_parameters", size))
        if self.whole_gradients and use.kind in "BW" and use.last:
            last = at == len(units) - 1
            reduced_from = at - 1 if self.beside else at
            reduced_to = at + 1 if last or not self.beside else at
            size = self._bytes(units, reduced_from, reduced_to, self.sizes.reduced)
            ledger.free(("unsharded_gradients", size))
