"""What ranks that hold the same part of the model send each other: gradients, and with ZeRO
parameters.

Gradients of a unit are reduced during the last backward (ZeRO 0 and 1), during each (2 and 3), or
when all ops are over (without overlap, and in torch's pipelines).
ZeRO-1 and 2 gather all units, which were updated in parts, when a step begins; ZeRO-3 gathers each
before it is used. Which stage does what stands in `simlab.lowering.zero`. With `Plan.hybrid`
gradients are scattered within a shard group, and what is left of them is summed over the replicas
after the last backward.

What travels together is a unit. With `Plan.bucket_bytes` it is a bucket of that size, which holds
several units or a part of one: a bucket is reduced when the backward has filled it, and its
parameters are waited for by the first unit that has some of them.

With expert parallelism a layer's experts travel apart from the rest, in the groups of the ranks that
hold the same experts; where there is one such rank, they do not travel at all.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from simlab.errors import InputError
from simlab.lowering.instruction import Instruction, Unit
from simlab.lowering.pieces import BEGIN, WAIT
from simlab.lowering.zero import (
    deals_matrices,
    gathered_around,
    gathers_for_ops,
    gathers_updated,
    is_shared,
    reduces_after_ops,
    reduces_beside,
    reduces_each_backward,
    reduces_to_all,
)
from simlab.program import Op
from simlab.spec.plan import Plan

MOST_BUCKETS = 10_000
"""Of one unit. In more a list of instructions would be too long to work with."""


class Buckets:
    """Cuts the numbers of a stage's units, one unit after the other, into buckets of
    `Plan.bucket_bytes`, in which each number takes so many bytes as in gradients. Without a size a
    unit is one bucket."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.filled = plan, 0
        size = plan.bucket_bytes
        self.numbers = None if size is None else max(1, size // plan.gradient_bytes)

    def add(self, numbers: int, *, closes: bool) -> Iterator[int]:
        """The sizes of the buckets that are complete with these `numbers`. closes: whether the
        stage has no other unit after this one, so that the last bucket stays smaller."""
        self.filled += numbers
        if self.numbers is None:
            yield self.filled
            self.filled = 0
            return
        if self.filled > MOST_BUCKETS * self.numbers:
            least = math.ceil(self.filled / MOST_BUCKETS) * self.plan.gradient_bytes
            raise InputError(
                f"bucket_bytes = {self.plan.bucket_bytes} makes more than {MOST_BUCKETS} buckets of "
                f"the {numbers} parameters of a unit: give at least {least}"
            )
        while self.filled >= self.numbers:
            self.filled -= self.numbers
            yield self.numbers
        if closes and self.filled:
            yield self.filled
            self.filled = 0


class Make(Protocol):
    """Makes the `Instruction` that begins a communication, in the op that is being lowered."""

    def __call__(
        self,
        unit: Unit | None,
        name: str,
        dimension: str,
        kind: str,
        size_bytes: float,
        peer: int | None = None,
    ) -> Instruction:
        """unit: whose it is, or None. For the rest see `Instruction`."""


class _Summed(NamedTuple):
    """A bucket of a unit whose gradients are to be summed over replicas."""

    unit: Unit
    number: int
    numbers: int


class _Holders:
    """Ranks that hold the same parameters: of experts, with expert parallelism, or of all else."""

    def __init__(self, plan: Plan, shards: int, *, experts: bool = False) -> None:
        self.shards, self.experts = shards, experts
        self.dimension, self.what = ("edp", "expert ") if experts else ("dp", "")
        self.gathered, self.reduced = Buckets(plan), Buckets(plan)
        self.opened = ""  # the first unit of the bucket that is being filled to be gathered
        self.in_eight_bits = 0  # of what has not been gathered

    def numbers(self, unit: Unit) -> int:
        """The parameters of a unit that they hold."""
        return unit.experts if self.experts else unit.parameters - unit.experts

    def padded(self, numbers: int) -> int:
        """What is cut over ranks is padded, so that their parts are equal."""
        return -(-numbers // self.shards) * self.shards

    def add(self, unit: Unit) -> None:
        """A unit is about to be gathered."""
        of_experts = min(unit.in_eight_bits, unit.experts)
        self.in_eight_bits += of_experts if self.experts else unit.in_eight_bits - of_experts

    def gathered_bytes(self, numbers: int, number_bytes: int) -> int:
        """Bytes of so many numbers that are gathered, those of them in 8 bits first."""
        narrow = min(numbers, self.in_eight_bits)
        self.in_eight_bits -= narrow
        return self.padded(numbers) * number_bytes - narrow * (number_bytes - 1)


class Sharding:
    """The rules for one rank, and what it has begun and not waited for."""

    def __init__(self, plan: Plan, make: Make) -> None:
        self.plan, self.make = plan, make
        self.shared = is_shared(plan)
        self.shards = plan.shards
        self.replicated = self.shards < plan.holders
        self.each_backward, self.beside = reduces_each_backward(plan), reduces_beside(plan)
        self.to_all = reduces_to_all(plan)
        self.holders = [_Holders(plan, self.shards)]
        if plan.ep > 1:
            self.holders.append(_Holders(plan, plan.expert_holders, experts=True))
        self.forget()

    def forget(self) -> None:
        """Take all that was begun as over, so that the next op begins while nothing is in flight."""
        # {unit: [gatherings that it is the first to wait for]}
        self.unread: dict[str, list[Instruction]] = {}
        # {name: (reduction, what is then summed over replicas, or None)}
        self.reducing: dict[str, tuple[Instruction, _Summed | None]] = {}
        self.summing: list[Instruction] = []

    # parameters
    # ------------------------------------------------------------------------------------------

    def gathering(self, ops: Sequence[Op]) -> set[Op]:
        """Those of a rank's `ops` for which ZeRO-3 gathers each unit."""
        if not gathers_for_ops(self.plan):
            return set()
        around = gathered_around(self.plan, ops)
        return {op for op, its in zip(ops, around) if op.kind != "W" and not its.before}

    def gather(self, unit: Unit) -> list[Instruction]:
        """The instructions that begin to gather a unit's parameters: those of its experts, where
        other ranks hold the same, and all else."""
        gathers = []
        for its in self.holders:
            if not its.experts or (its.shards > 1 and unit.experts):
                its.add(unit)
                name = f"{unit.name} {its.what}gather"
                gathers.append(self._gather(unit, name, its, its.numbers(unit)))
        return gathers

    def _gather(self, unit: Unit, name: str, its: _Holders, numbers: int) -> Instruction:
        size_bytes = its.gathered_bytes(numbers, self.plan.element_bytes)
        return self.make(unit, name, its.dimension, "all_gather", size_bytes)

    def gather_updated(self, unit: Unit, *, closes: bool) -> Iterator[Instruction]:
        """What ZeRO-1 and 2 do for a unit when a step begins. closes: whether it is the last one of
        its stage."""
        if not gathers_updated(self.plan):
            return
        for its in self.holders:
            if its.shards == 1:
                continue
            if not its.gathered.filled:
                its.opened = unit.name
            its.add(unit)
            for number, numbers in enumerate(its.gathered.add(its.numbers(unit), closes=closes)):
                name = self._named(f"{unit.name} {its.what}gather", number)
                if not numbers:
                    continue
                gather = self._gather(unit, name, its, numbers)
                yield gather
                if self.plan.dp_overlap and not deals_matrices(self.plan):
                    self.unread.setdefault(its.opened, []).append(gather)
                else:
                    yield ended(gather)
                its.opened = unit.name

    def first_use(self, unit: Unit) -> Iterator[Instruction]:
        """The waits of a unit's first use for what `gather_updated` began."""
        for gather in self.unread.pop(unit.name, ()):
            yield ended(gather)

    # gradients
    # ------------------------------------------------------------------------------------------

    def after_backward(self, unit: Unit, is_last: bool, *, closes: bool) -> Iterator[Instruction]:
        """What follows a unit's weight gradients. is_last: whether they are complete now; closes:
        see `reduce`."""
        if self.each_backward or (is_last and not reduces_after_ops(self.plan)):
            yield from self.reduce(unit, is_last, closes=closes)

    def reduce(self, unit: Unit, is_last: bool, *, closes: bool) -> Iterator[Instruction]:
        """Sum up a unit's gradients: those of norms over tp, then all of them over the ranks that
        hold the same. closes: whether it is the last one of its stage in the backward."""
        if unit.partial:
            size_bytes = unit.partial * self.plan.gradient_bytes
            yield from both(
                self.make(unit, f"{unit.name} partial gradients", "tp", "all_reduce", size_bytes)
            )
        if not self.shared:
            return
        for its in self.holders:
            for number, numbers in enumerate(its.reduced.add(its.numbers(unit), closes=closes)):
                if numbers:
                    yield from self._reduce(unit, its, number, numbers, is_last)
        if self.each_backward and not self.beside:
            yield from self.wait(0)

    def _reduce(
        self, unit: Unit, its: _Holders, number: int, numbers: int, is_last: bool
    ) -> Iterator[Instruction]:
        name, plan = self._named(f"{unit.name} {its.what}gradients", number), self.plan
        staggered = self.each_backward or self.replicated
        yield from self.wait(1 if staggered else len(self.reducing))
        if name in self.reducing:
            yield from self.wait(0)
        summed = _Summed(unit, number, numbers) if self.replicated and is_last else None
        if its.shards > 1:
            sent, kind = numbers, "all_reduce"
            if not self.to_all:
                sent, kind = its.padded(numbers), "reduce_scatter"
            reduction = self.make(unit, name, its.dimension, kind, sent * plan.gradient_bytes)
            yield reduction
            self.reducing[name] = reduction, summed
        elif is_last and self.replicated:
            yield from self._sum(unit, number, numbers)

    def wait(self, left: int) -> Iterator[Instruction]:
        """Wait until so many reductions are left."""
        while len(self.reducing) > left:
            reduction, summed = self.reducing.pop(next(iter(self.reducing)))
            yield ended(reduction)
            if summed is not None:
                yield from self._sum(*summed)

    def wait_for_all(self) -> Iterator[Instruction]:
        """Wait for all reductions, and for the sums over replicas."""
        yield from self.wait(0)
        while self.summing:
            yield ended(self.summing.pop(0))

    def _sum(self, unit: Unit, number: int, numbers: int) -> Iterator[Instruction]:
        padded = self.holders[0].padded(numbers)
        size_bytes = padded / self.shards * self.plan.gradient_bytes
        name = self._named(f"{unit.name} sum over replicas", number)
        self.summing.append(self.make(unit, name, "replicas", "all_reduce", size_bytes))
        yield self.summing[-1]
        if not self.plan.dp_overlap:
            yield ended(self.summing.pop())

    def _named(self, name: str, number: int) -> str:
        """The name of a unit's communication, or of the one of its `number`-th bucket."""
        return name if self.plan.bucket_bytes is None else f"{name} bucket {number}"


def ended(begun: Instruction) -> Instruction:
    """The instruction that waits for a communication that was begun."""
    return Instruction(WAIT, *begun[1:])


def both(communication: Instruction) -> Iterator[Instruction]:
    """A communication that nothing runs beside: begun, and waited for."""
    assert communication.action == BEGIN
    yield communication
    yield ended(communication)
