"""The step of one pipeline rank in time: each op takes what a walk over its instructions takes,
from the moment at which it starts, with the communication that is still in flight then.

`simlab.engine.simulate` asks a `RankWalk` how long the rank's next op takes. The walk lowers the op,
prices its instructions, and remembers the communication that the op has begun and left, so that a
later op is slowed by it or waits for it. Ops that begin alike take equally long, so most are looked
up.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from simlab.cost.stage_times import StageCost
from simlab.cost.walk import SLOWING, Parts
from simlab.lowering.instructions import Instruction, RankLowering, Work
from simlab.lowering.pieces import BEGIN, COMPUTE
from simlab.lowering.zero import gathers_for_ops, gathers_updated, reduces_each_backward
from simlab.program.program import Op

UNITS, BEGUN, WAITED, MESSAGE = range(4)
"""What a step of an `_Outline` is."""

SPENT_ON = {"replicas": "dp", "edp": "dp", "offload out": "offload", "offload in": "offload"}
"""{dimension of an instruction: field of `Parts`}, where the two have different names."""

AS_SOON = 12
"""Decimal places of a second up to which two ops begin alike."""


class Carried(NamedTuple):
    """A communication over the ranks that hold the same part of the model, or a copy that the end of
    a step waits for: once a step."""

    instruction: Instruction
    start_s: float
    end_s: float


class Meeting(NamedTuple):
    """A communication for which a rank waits for other pipeline ranks."""

    name: str
    dimension: str
    """'pp': all ranks of the pipeline; 'ends': the first and the last one."""
    ready_s: float
    """When this rank is there."""


class _Outline(NamedTuple):
    """What an op does, or a pair of ops, with prices."""

    steps: tuple[tuple[Any, ...], ...]
    """(UNITS, `Halves`, count), (BEGUN, dimension, name, seconds, instruction), (WAITED,
    dimension, name) or (MESSAGE,)."""
    needs: tuple[str, ...]
    """The names of what it waits for and an earlier op has begun."""
    early: bool
    """Whether it begins something before the message that it waits for has arrived."""
    known: dict[tuple[Any, ...], "_Walked"]
    """{how it begins: what it then takes}"""


class _Walked(NamedTuple):
    """What an op takes, in seconds after its base."""

    end_s: float
    parts: Parts
    free_s: dict[str, float]
    """{dimension: when its stream is free}, of those that are not when the op ends."""
    ends_s: dict[str, float]
    """{name: when it ends}, of what the op begins and does not wait for."""


Outlines = dict[tuple[Any, ...], tuple[_Outline, dict[str, Any]]]
"""{what makes ops alike: (their outline, the reductions that they leave in flight)}"""


@dataclass(slots=True)
class _Plain:
    """What the ops of a stage and kind take while nothing is in flight."""

    seconds: float
    parts: Parts
    count: int = 0
    """How many there were, without the first one."""


class RankWalk:
    """One pipeline rank's step.

    cost: the `StageCost` of the rank's GPU. outlines: where outlines of ops are kept, which ranks
    with the same `cost` may share.

    What is remembered holds under these conditions, and whoever lets an op begin or wait for something
    new has to keep them:

    - `outlines`: ops of a kind over units of the same kinds, of which both or neither receive a message,
      have the same steps at the same prices. Where ops reduce gradients or gather parameters
      (`_stateful`), also their stage, whether they gather, and the reductions before them that are
      pending have to be the same; an outline then leaves the same reductions pending, too. An op
      of `_special` (the last backward of a stage; the first forward, where updated parameters are
      gathered) and one beside sums over replicas have an outline of their own, which is not kept.
    - `_Outline.known`: what an outline takes depends on nothing but when its message is there, how long
      each stream is still busy, and when what it waits for ends, all in seconds after its base. That
      base is the moment at which the op may start or, where it begins something before its message,
      at which the rank is done with the op before. Two such moments are alike to `AS_SOON`.
    - `_plain`: in a plan whose ops leave nothing in flight (no `_stateful`), an op that is not special,
      begins nothing before its message, and finds nothing in flight takes the same each time, so that
      it is only counted.
    """

    def __init__(
        self,
        lowering: RankLowering,
        cost: StageCost,
        outlines: Outlines | None = None,
    ) -> None:
        self.lowering, self.cost = lowering, cost
        self.outlines: Outlines = {} if outlines is None else outlines
        self.free_s: dict[str, float] = {}
        self.ends_s: dict[str, float] = {}
        self.spent: dict[Parts, int] = {}
        self.carried: list[Carried] = []
        self.copies: list[Carried] = []
        self.reduced_s = self.end_s = 0.0
        self._own: Outlines = {}
        plan, shared = lowering.plan, lowering.sharding.shared
        self._plain: dict[tuple[Any, ...], _Plain] = {}
        self._after: dict[Op, Op] = {}  # {the forward of a pair: its backward}
        for at, op in enumerate(lowering.ops if lowering.program.paired else ()):
            if op in lowering.program.paired:
                self._after[op] = lowering.ops[at + 1]
        self._left_s: float | None = None  # of a pair, what its backward takes of it
        self._stateful = (reduces_each_backward(plan) or gathers_for_ops(plan)) and shared
        self._special: set[Op] = set()
        if shared or plan.sequence_parallel:
            self._special |= set(lowering.last.values())
        if gathers_updated(plan):
            first = {(op.stage, op.kind): op for op in reversed(lowering.ops)}
            self._special |= {op for op in first.values() if op.kind == "F"}
        self._begins_s = 0.0

    def begins(self) -> "RankWalk":
        """This walk, after what the rank does before its first op."""
        for instruction in self.lowering.begins():
            self._begins_s = self._instruction(instruction, self._begins_s)
        return self

    def op_s(self, op: Op, ready_s: float, start_s: float) -> float:
        """Seconds that `op` takes. ready_s: when the rank was done with the op before it. start_s:
        when all that it needs is there. Of a pair both start with the forward, and each takes its
        part of what both take, as long as they are to each other alone."""
        if self._left_s is not None:
            left_s, self._left_s = self._left_s, None
            return left_s
        backward = self._after.get(op)
        if backward is None:
            return self._ops_s((op,), ready_s, start_s)
        both_s = self._ops_s((op, backward), ready_s, start_s)
        alone_s = [
            sum(
                self.cost.unit_parts(unit.type, its.kind).total
                for unit in self.lowering.units[its.stage]
            )
            for its in (op, backward)
        ]
        own_s = both_s * alone_s[0] / sum(alone_s)
        self._left_s = both_s - own_s
        return own_s

    def _ops_s(self, ops: tuple[Op, ...], ready_s: float, start_s: float) -> float:
        """Seconds of an op, or of a pair."""
        special = any(op in self._special for op in ops)
        alike = tuple(op[:2] for op in ops)
        if not (special or self.free_s or self._begins_s):
            plain = self._plain.get(alike)
            if plain is not None:
                plain.count += 1
                return plain.seconds
        outline, late_s = self._outline(ops, special), 0.0
        if self._begins_s:
            late_s, self._begins_s = max(0.0, self._begins_s - start_s), 0.0
            ready_s, start_s = ready_s + late_s, start_s + late_s
        base_s = ready_s if outline.early else start_s
        in_flight = {
            name: round(free_s - base_s, AS_SOON)
            for name, free_s in self.free_s.items()
            if free_s > base_s
        }
        waited = {name: round(self.ends_s.pop(name) - base_s, AS_SOON) for name in outline.needs}
        arrival_s = round(start_s - base_s, AS_SOON)
        key = arrival_s, *in_flight.items(), *waited.items()
        walked = outline.known.get(key)
        if walked is None:
            noted: list[Carried] | None = [] if special else None
            walked = self._walk(outline, arrival_s, in_flight, waited, noted)
            outline.known[key] = walked
            for carried in noted or ():
                _, begin_s, end_s = carried
                self.carried.append(Carried(carried[0], base_s + begin_s, base_s + end_s))
        self.free_s = {name: base_s + its_s for name, its_s in walked.free_s.items()}
        for name, its_s in walked.ends_s.items():
            self.ends_s[name] = base_s + its_s
        parts = walked.parts
        if late_s:
            parts = parts._replace(dp=parts.dp + late_s)
        self.spent[parts] = self.spent.get(parts, 0) + 1
        if not (special or late_s or in_flight or outline.early or self._stateful):
            self._plain[alike] = _Plain(walked.end_s, parts)
        return late_s + walked.end_s - arrival_s

    @property
    def parts(self) -> Parts:
        """`Parts` of all ops so far."""
        total = Parts()
        for parts, count in self.spent.items():
            total = total.plus(parts.times(count))
        for plain in self._plain.values():
            total = total.plus(plain.parts.times(plain.count))
        return total

    def ends(self, now_s: float, optimizer_s: float) -> Generator[Meeting, float, None]:
        """Walk the end of the step, which begins when the last op is over, at `now_s`.

        Where other pipeline ranks take part in a communication, a `Meeting` is given, and the
        moment at which all of them are there is to be sent back. Afterwards `reduced_s` is the
        moment at which this rank's gradients are complete, `end_s` that at which its parameters
        are, and `copies` what it has copied to and from the host and its drives.
        """
        self.reduced_s = now_s
        for item in self.lowering.ends():
            begin_s = now_s
            if item.action == COMPUTE:
                now_s += optimizer_s
                continue
            if item.action == BEGIN and item.dimension in ("pp", "ends"):
                begin_s = yield Meeting(item.name, item.dimension, now_s)
            after_s = self._instruction(item, begin_s)
            if item.action == BEGIN:
                continue
            if item.unit or item.dimension == "ends":
                self.reduced_s = after_s
            elif item.kind == "copy":
                self.copies.append(Carried(item, now_s, after_s))
            now_s = after_s
        self.end_s = now_s

    def _instruction(self, item: Instruction, now_s: float) -> float:
        """Begin a communication, or wait for it; the moment at which the rank goes on."""
        if item.action != BEGIN:
            return max(now_s, self.ends_s.pop(item.name))
        begin_s = max(self.free_s.get(item.dimension, 0.0), now_s)
        end_s = begin_s + self.cost.instruction_s(item)
        self.free_s[item.dimension] = self.ends_s[item.name] = end_s
        if item.dimension in ("dp", "edp", "replicas") and item.unit:
            self.carried.append(Carried(item, begin_s, end_s))
        return now_s

    # an op
    # ------------------------------------------------------------------------------------------

    def _outline(self, ops: tuple[Op, ...], special: bool) -> _Outline:
        """The outline of `ops`, found once for those that do the same."""
        sharding = self.lowering.sharding
        if special or sharding.summing or any(summed for _, summed in sharding.reducing.values()):
            return self._outlined(ops)
        pending = tuple(sharding.reducing)
        key = *((op.stage, op.kind, op in self.lowering.gathering) for op in ops), pending
        if key not in self._own:
            alike = key if self._stateful else tuple(map(self._shape, ops))
            if alike not in self.outlines:
                self.outlines[alike] = self._outlined(ops), dict(sharding.reducing)
            self._own[key] = self.outlines[alike]
        outline, reducing = self._own[key]
        if self._stateful:  # else last backwards only, which are special, leave any in flight
            sharding.reducing = dict(reducing)
        return outline

    def _shape(self, op: Op) -> tuple[Any, ...]:
        """What makes ops that leave no communication alike, whatever their stage."""
        program, lowering = self.lowering.program, self.lowering
        received = any(program.rank_of[need] != lowering.rank for need in program.needs(op))
        units = tuple(unit.type for unit in lowering.units[op.stage])
        return op.kind, units, received

    def _outlined(self, ops: tuple[Op, ...]) -> _Outline:
        lowering = self.lowering
        items = lowering.of_op(*ops) if len(ops) == 1 else lowering.of_pair(*ops)
        steps: list[tuple[Any, ...]] = []
        begun: set[str] = set()
        needs = []
        early = False
        for item in items:
            if isinstance(item, Work):
                halves = item.halves
                if steps and steps[-1][0] == UNITS and steps[-1][1] == halves:
                    steps[-1] = UNITS, halves, steps[-1][2] + 1
                else:
                    steps.append((UNITS, halves, 1))
            elif item.kind == "message":
                if item.action != BEGIN:
                    early = early or bool(steps)
                    steps.append((MESSAGE,))
            elif item.action == BEGIN:
                begun.add(item.name)
                seconds = self.cost.instruction_s(item)
                steps.append((BEGUN, item.dimension, item.name, seconds, item))
            else:
                if item.name not in begun and item.name not in needs:
                    needs.append(item.name)
                steps.append((WAITED, item.dimension, item.name))
        return _Outline(tuple(steps), tuple(needs), early, {})

    def _walk(
        self,
        outline: _Outline,
        arrival_s: float,
        in_flight: dict[str, float],
        waited: dict[str, float],
        noted: list[Carried] | None,
    ) -> _Walked:
        """What the op takes. Times are in seconds after the op's base; what is spent before
        `arrival_s`, when the op starts, is the rank's idle time. noted: to which communication over
        the ranks that hold the same is added."""
        now_s, free_s, ends_s = 0.0, dict(in_flight), dict(waited)
        if not outline.early:
            now_s = arrival_s
        spent = Parts()
        for step in outline.steps:
            if step[0] == UNITS:
                _, halves, count = step
                if not free_s:
                    parts = self.cost.parts_of(halves).times(count)
                    spent, now_s, count = spent.plus(parts), now_s + parts.total, 0
                busy_s = max([free_s.get(name, 0.0) for name in SLOWING])  # noqa: C419 quicker
                for _ in range(count):
                    parts = self.cost.parts_of(halves, busy_s - now_s)
                    spent = spent.plus(parts)
                    now_s += parts.total
            elif step[0] == BEGUN:
                _, dimension, name, seconds, instruction = step
                begin_s = max(free_s.get(dimension, 0.0), now_s)
                free_s[dimension] = ends_s[name] = begin_s + seconds
                if noted is not None and dimension in ("dp", "edp", "replicas"):
                    noted.append(Carried(instruction, begin_s, begin_s + seconds))
            elif step[0] == WAITED:
                _, dimension, name = step
                end_s = ends_s.pop(name)
                part = SPENT_ON.get(dimension, dimension)
                idle_s = max(0.0, end_s - max(now_s, arrival_s))
                spent = spent._replace(**{part: getattr(spent, part) + idle_s})
                now_s = max(now_s, end_s)
            else:
                now_s = max(now_s, arrival_s)
        free_s = {name: its_s for name, its_s in free_s.items() if its_s > now_s}
        return _Walked(now_s, spent, free_s, ends_s)


def op_parts(cost: StageCost, lowering: RankLowering, op: Op) -> Parts:
    """`Parts` of an op that begins while nothing is in flight, without what it leaves in flight."""
    lowering.sharding.forget()
    walk = RankWalk(lowering, cost)
    walk.op_s(op, 0.0, 0.0)
    return walk.parts
