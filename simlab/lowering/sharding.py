"""What ranks that hold the same part of the model send each other: gradients, and with ZeRO
parameters.

Gradients of a unit are reduced during the last backward (ZeRO 0 and 1) or during each (2 and 3).
ZeRO-1 and 2 gather all units, which were updated in parts, when a step begins; ZeRO-3 gathers each
before it is used. Which stage does what stands in `simlab.lowering.zero`. With `Plan.hybrid`
gradients are scattered within a shard group, and what is left of them is summed over the replicas
after the last backward.

What travels together is a unit. With `Plan.bucket_bytes` it is a bucket of that size, which holds
several units or a part of one: a bucket is reduced when the backward has filled it, and its
parameters are waited for by the first unit that has some of them.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from simlab.errors import InputError
from simlab.lowering.instruction import Instruction, Unit
from simlab.lowering.pieces import BEGIN, WAIT
from simlab.lowering.zero import (
    gathered_around,
    gathers_for_ops,
    gathers_updated,
    is_shared,
    reduces_beside,
    reduces_each_backward,
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


class Sharding:
    """The rules for one rank, and what it has begun and not waited for."""

    def __init__(self, plan: Plan, make: Make) -> None:
        self.plan, self.make = plan, make
        self.shared = is_shared(plan)
        self.shards = plan.shards if plan.zero else plan.dp * plan.cp
        self.replicated = self.shards < plan.dp * plan.cp
        self.each_backward, self.beside = reduces_each_backward(plan), reduces_beside(plan)
        self.gathered, self.reduced = Buckets(plan), Buckets(plan)
        self.opened = ""  # the first unit of the bucket that is being filled to be gathered
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

    def gather(self, unit: Unit) -> Instruction:
        """The instruction that begins to gather a unit's parameters."""
        size_bytes = self._padded(unit.parameters) * self.plan.element_bytes
        return self.make(unit, f"{unit.name} gather", "dp", "all_gather", size_bytes)

    def gather_updated(self, unit: Unit, *, closes: bool) -> Iterator[Instruction]:
        """What ZeRO-1 and 2 do for a unit when a step begins. closes: whether it is the last one of
        its stage."""
        if not gathers_updated(self.plan):
            return
        if not self.gathered.filled:
            self.opened = unit.name
        pieces = enumerate(self.gathered.add(unit.parameters, closes=closes))
        for number, numbers in pieces:
            name = self._named(f"{unit.name} gather", number)
            size_bytes = self._padded(numbers) * self.plan.element_bytes
            gather = self.make(unit, name, "dp", "all_gather", size_bytes)
            yield gather
            if self.plan.dp_overlap:
                self.unread.setdefault(self.opened, []).append(gather)
            else:
                yield ended(gather)
            self.opened = unit.name

    def first_use(self, unit: Unit) -> Iterator[Instruction]:
        """The waits of a unit's first use for what `gather_updated` began."""
        for gather in self.unread.pop(unit.name, ()):
            yield ended(gather)

    # gradients
    # ------------------------------------------------------------------------------------------

    def after_backward(self, unit: Unit, is_last: bool, *, closes: bool) -> Iterator[Instruction]:
        """What follows a unit's weight gradients. is_last: whether they are complete now; closes:
        see `reduce`."""
        if self.each_backward or (is_last and self.plan.dp_overlap):
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
        for number, numbers in enumerate(self.reduced.add(unit.parameters, closes=closes)):
            yield from self._reduce(unit, number, numbers, is_last)
        if self.each_backward and not self.beside:
            yield from self.wait(0)

    def _reduce(
        self, unit: Unit, number: int, numbers: int, is_last: bool
    ) -> Iterator[Instruction]:
        name, plan = self._named(f"{unit.name} gradients", number), self.plan
        staggered = self.each_backward or self.replicated
        yield from self.wait(1 if staggered else len(self.reducing))
        if name in self.reducing:
            yield from self.wait(0)
        summed = _Summed(unit, number, numbers) if self.replicated and is_last else None
        if self.shards > 1:
            sent, kind = numbers, "all_reduce"
            if plan.zero:
                sent, kind = self._padded(numbers), "reduce_scatter"
            reduction = self.make(unit, name, "dp", kind, sent * plan.gradient_bytes)
            yield reduction
            self.reducing[name] = reduction, summed
        elif is_last:
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
        size_bytes = self._padded(numbers) / self.shards * self.plan.gradient_bytes
        name = self._named(f"{unit.name} sum over replicas", number)
        self.summing.append(self.make(unit, name, "replicas", "all_reduce", size_bytes))
        yield self.summing[-1]
        if not self.plan.dp_overlap:
            yield ended(self.summing.pop())

    def _named(self, name: str, number: int) -> str:
        """The name of a unit's communication, or of the one of its `number`-th bucket."""
        return name if self.reduced.numbers is None else f"{name} bucket {number}"

    def _padded(self, numbers: int) -> int:
        """What is cut over ranks is padded, so that their parts are equal."""
        return -(-numbers // self.shards) * self.shards


def ended(begun: Instruction) -> Instruction:
    """The instruction that waits for a communication that was begun."""
    return begun._replace(action=WAIT)


def both(communication: Instruction) -> Iterator[Instruction]:
    """A communication that nothing runs beside: begun, and waited for."""
    assert communication.action == BEGIN
    yield communication
    yield ended(communication)
