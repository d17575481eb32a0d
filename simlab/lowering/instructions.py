"""What a rank does in a step, in order, with every wait explicit: the one lowering of a plan's
program.

`rank_instructions` writes the list, `simlab.engine.play` simulates the lists of all ranks, and
`realrun` executes them: its ranks hold what they do against their list, communication by
communication, to the byte. `simlab.cost.stage_times` walks the same ops for their seconds. An op of
the program becomes what its units compute, and the communications that they begin and wait for:

    compute   kernels, one after the other
    begin     a communication of the groups of `dimension`; it goes on by itself, behind those that
              were begun before in its dimension
    wait      until a communication that was begun, here or (a message) on another rank, has ended

What travels together, a unit, is the embedding, a layer, or the head. Each pass has a module:
`pieces` (tensor and context parallelism, recomputation), `sharding` (data parallelism, ZeRO),
`offloading`; messages between stages and the end of a step are here.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property

from simlab.errors import require_index
from simlab.layer.parameters import (
    Layers,
    copies_embedding,
    expert_parameters,
    numbers_of,
    partial_parameters,
    product_parameters,
    stage_parameters,
)
from simlab.layer.units import MODULE, UnitKind, is_layer
from simlab.lowering.expansion import expanded, in_turns, work_pieces
from simlab.lowering.instruction import Halves, Instruction, Unit, Work
from simlab.lowering.kernels import LayerKernels, UnitKernels, message_bytes, message_kernels
from simlab.lowering.kernels.kernel import Communication
from simlab.lowering.offloading import Offloading
from simlab.lowering.pieces import BEGIN, COMPUTE, WAIT, Action, Piece
from simlab.lowering.sharding import Sharding, both, ended
from simlab.lowering.zero import reduces_after_ops, shards_of
from simlab.program import Op, Program
from simlab.schedules import SCHEDULES
from simlab.spec.layout import MIRRORED
from simlab.spec.model import Model
from simlab.spec.plan import Plan

OVERFLOW_BYTES = 4
"""Of whether a gradient is infinite, which in fp16 every rank must know: then nobody updates, and
the loss's scale shrinks."""


def norm_bytes(plan: Plan) -> int:
    """Bytes of the sums of squared gradients, in fp64: of those that tp ranks have parts of, of
    those that are whole on all, and of experts that ranks share, where ZeRO does not cut all of them
    over the same ranks."""
    return 24 if plan.ep > 1 and not plan.zero else 16


def rank_instructions(
    model: Model, plan: Plan, program: Program, rank: int = 0, *, context_rank: int = 0
) -> list[Instruction]:
    """[`Instruction`] of a step of pipeline rank `rank`: the same on all GPUs of it, but where
    contiguous chunks of a sequence give each `context_rank` another share of the attention."""
    require_index("pipeline rank", rank, len(program.ranks))
    require_index("context-parallel rank", context_rank, plan.cp)
    instructions: list[Instruction] = []
    pieces: dict[Halves, list[tuple[int, Piece]]] = {}
    for item in RankLowering(model, plan, program, rank).step():
        if isinstance(item, Instruction):
            instructions.append(item)
            continue
        halves = item.halves
        if halves not in pieces:
            pieces[halves] = work_pieces(item, plan, context_rank)
        instructions += expanded(pieces[halves], item, halves)
    return instructions


class Making:
    """It makes what an op of a rank begins. It knows nothing of the rank's lowering, so that nothing refers to
    itself: a search that predicts thousands of plans would leave a cycle of objects for each of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.op: Op | None = None
        """The op that is being lowered; None: the step itself."""

    def __call__(
        self,
        unit: Unit | None,
        name: str,
        dimension: str,
        kind: str,
        size_bytes: float,
        peer: int | None = None,
    ) -> Instruction:
        text, op = ("", Op(-1, "", -1)) if self.op is None else (str(self.op), self.op)
        if self.plan.copies > 1 and dimension in MIRRORED:
            # the two ranks of a stage end with different microbatches, so what they sum is of no op
            text, op = "", Op(op.stage, "", -1)
        fields = name, (), dimension, kind, size_bytes, peer, 1.0
        return Instruction(BEGIN, text, *fields, *op, *(unit[:2] if unit else ()))


class RankLowering:
    """The step of one pipeline rank, op by op. kernels: `UnitKernels`, if they are there."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        program: Program,
        rank: int = 0,
        *,
        kernels: Mapping[UnitKind, LayerKernels] | None = None,
    ) -> None:
        self.kernels = kernels or UnitKernels(model, plan)
        self.model, self.plan, self.program, self.rank = model, plan, program, rank
        self.ops = program.ranks[rank]
        self._layers: dict[UnitKind, Unit] = {}
        self.units = {stage: self._units(stage) for stage in program.stages_of(rank)}
        self.last = {op.stage: op for op in self.ops if op.kind in "BW"}
        self.make = Making(plan)
        self.sharding = Sharding(plan, self.make)
        self.gathering = self.sharding.gathering(self.ops)
        self.offloading = Offloading(model, plan, self.make)

    def _units(self, stage: int) -> list[Unit]:
        model, plan = self.model, self.plan
        layers = plan.layers_of_stages(model.layers, self.program.stages)
        kinds = model.kinds_of_stages(layers)[stage]
        units: list[Unit] = []
        for n, kind in enumerate(kinds, sum(layers[:stage])):
            if kind == MODULE:
                units += self._module(n - model.layers + 1, first=stage == 0)
            else:
                units.append(self._layer(kind)._replace(name=f"layer {n}"))
        if stage == 0:
            sizes = self._sizes((), first=True)
            units.insert(0, Unit("embedding", "embedding", self.kernels["embedding"], *sizes))
        if stage == self.program.stages - 1:
            first = self._sizes((), first=stage == 0)
            both_ends = self._sizes((), first=stage == 0, last=True)
            sizes = [whole - part for whole, part in zip(both_ends, first)]
            units.append(Unit("head", "head", self.kernels["head"], *sizes))
        return units

    def _module(self, number: int, *, first: bool) -> list[Unit]:
        """The units of a module that predicts one more token: see `stage_units`. All modules have one
        embedding, perhaps a copy, and one head in common, but for the norm before it."""
        model, plan, its = self.model, self.plan, f"module {number}"
        copies = number == 1 and copies_embedding(model, plan, (MODULE,), first=first)
        table = round(copies * numbers_of(model, plan, "embedding").all)
        norm = round(numbers_of(model, plan, "head").whole)
        return [
            Unit(f"{its} embedding", "embedding", self.kernels["embedding"], table, 0),
            self._layer(MODULE)._replace(name=its),
            Unit(f"{its} head", "head", self.kernels["head"], norm, norm * plan.sequence_parallel),
        ]

    def _layer(self, kind: UnitKind) -> Unit:
        """A layer of a kind, without its number."""
        if kind not in self._layers:
            model, plan, one = self.model, self.plan, (kind,)
            unit = Unit("", kind, self.kernels[kind], *self._sizes(one))
            eight_bits = product_parameters(model, plan, one) if plan.fp8_param_gather else 0
            experts = round(expert_parameters(model, plan, one))
            self._layers[kind] = unit._replace(experts=experts, in_eight_bits=round(eight_bits))
        return self._layers[kind]

    def _sizes(self, layers: Layers, **ends: bool) -> list[int]:
        """[`Unit.parameters`, `Unit.partial`] of layers and of ends."""
        counts = (stage_parameters, partial_parameters)
        return [round(count(self.model, self.plan, layers, **ends)) for count in counts]

    # a step
    # ------------------------------------------------------------------------------------------

    def step(self) -> Iterator[Instruction | Work]:
        """`Instruction`s, and a `Work` for each unit of each op, in order."""
        yield from self.begins()
        ops = iter(self.ops)
        for op in ops:
            if op in self.program.paired:
                yield from self.of_pair(op, next(ops))
            else:
                yield from self.of_op(op)
        yield from self.ends()

    def begins(self) -> Iterator[Instruction]:
        """Those before the first op."""
        for stage in dict.fromkeys(op.stage for op in self.ops if op.kind == "F"):
            for unit in self.units[stage]:
                closes = unit is self.units[stage][-1]
                yield from self.sharding.gather_updated(unit, closes=closes)

    def of_op(self, op: Op) -> Iterator[Instruction | Work]:
        """Those of one op of the rank."""
        self.make.op, sharding, offloading = op, self.sharding, self.offloading
        units = self.units[op.stage] if op.kind == "F" else self.units[op.stage][::-1]
        gathers = op in self.gathering
        ahead = self.plan.prefetch if gathers else 0
        yield from offloading.fetch(op, units[: ahead + 1])
        for unit in units[:ahead]:
            yield from self._gathered(unit)
        yield from self._receive(op)
        for at, unit in enumerate(units):
            yield from offloading.fetch(op, units[at + ahead + 1 : at + ahead + 2])
            if gathers:
                for other in units[at + ahead : at + ahead + 1]:
                    yield from self._gathered(other)
                for gather in sharding.gather(unit):
                    yield ended(gather)
            yield from offloading.arrived(unit)
            yield from sharding.first_use(unit)
            yield Work(unit, op)
            yield from offloading.after(op, unit)
            yield from self._after_backward(unit, op)
        yield from offloading.end_op()
        yield from self._send(op)

    def of_pair(self, forward: Op, backward: Op) -> Iterator[Instruction | Work]:
        """Those of two ops that run side by side, in the order of `in_turns`. `check_combination` lets
        ZeRO-3 and offloading not be."""
        yield from self._receive(backward)
        yield from self._receive(forward)
        units = self.units[forward.stage], self.units[backward.stage][::-1]
        for ahead, back in in_turns(*units, lambda unit: is_layer(unit.type)):
            works = []
            if ahead is not None:
                self.make.op = forward
                yield from self.sharding.first_use(ahead)
                works.append(Work(ahead, forward))
            if back is not None:
                works.append(Work(back, backward, *works))
            yield works[-1]
            if back is not None:
                yield from self._after_backward(back, backward)
        yield from self._send(backward)
        yield from self._send(forward)

    def _after_backward(self, unit: Unit, op: Op) -> Iterator[Instruction]:
        self.make.op = op
        if op.kind in "BW":
            is_last, closes = op == self.last.get(op.stage), unit is self.units[op.stage][0]
            yield from self.sharding.after_backward(unit, is_last, closes=closes)

    def _gathered(self, unit: Unit) -> Iterator[Instruction]:
        yield from self.offloading.arrived(unit)
        yield from self.sharding.gather(unit)

    def _receive(self, op: Op) -> Iterator[Instruction]:
        self.make.op = op
        for need in self.program.needs(op):
            source = self.program.rank_of[need]
            if source != self.rank:
                yield self._message(WAIT, need, source)
                for kernel in message_kernels(self.model, self.plan):
                    yield from both(self.make(None, *kernel_fields(kernel)))

    def _send(self, op: Op) -> Iterator[Instruction]:
        user = self.program.user(op)
        if user is not None and self.program.rank_of[user] != self.rank:
            yield self._message(BEGIN, op, self.program.rank_of[user])

    def _message(self, action: Action, op: Op, peer: int) -> Instruction:
        return Instruction(
            action, str(op), "message", (), "pp", "message", self._message_bytes, peer, 1.0, *op
        )

    @cached_property
    def _message_bytes(self) -> float:
        return message_bytes(self.model, self.plan)

    # the end of a step
    # ------------------------------------------------------------------------------------------

    def ends(self) -> Iterator[Instruction]:
        """Those after the last op."""
        self.make.op, plan = None, self.plan
        if reduces_after_ops(plan):
            for op in reversed(self.ops):
                if op == self.last.get(op.stage):
                    for unit in reversed(self.units[op.stage]):
                        closes = unit is self.units[op.stage][0]
                        yield from self.sharding.reduce(unit, is_last=True, closes=closes)
                        yield from self.sharding.wait_for_all()
        yield from self.sharding.wait_for_all()
        yield from self._tied_head()
        overflow = OVERFLOW_BYTES if plan.precision == "fp16" else 0
        for what, size_bytes in (("overflow", overflow), ("norm", norm_bytes(plan))):
            for dimension in ("tp", "pp", "dp" if plan.zero else "ep"):
                if size_bytes and group_size(plan, dimension) > 1:
                    name = f"{what} over {dimension}"
                    yield from both(self.make(None, name, dimension, "all_reduce", size_bytes))
        yield from self._optimizer()

    def _tied_head(self) -> Iterator[Instruction]:
        """The sum of a tied head's gradient and the embedding's, which is a copy of it on another
        rank."""
        size_bytes = tied_head_bytes(self.model, self.plan)
        if size_bytes and {0, self.program.stages - 1} & {*self.units}:
            yield from both(self.make(None, "tied head", "ends", "all_reduce", size_bytes))

    def _optimizer(self) -> Iterator[Instruction]:
        plan, units = self.plan, [unit for its in self.units.values() for unit in its]
        own = sum(unit.parameters for unit in units) / shards_of(plan, "optimizer")
        elsewhere = plan.offload in ("optimizer", "parameters")
        if elsewhere:
            yield from self.offloading.gradients_out(own)
            yield from self.offloading.states_moved(own, "in")
        yield Instruction(COMPUTE, "", "optimizer")
        if elsewhere:
            yield from self.offloading.states_moved(own, "out")
            yield from self.offloading.parameters_in(own)


def kernel_fields(kernel: Communication) -> tuple[str, str, str, float]:
    """(name, dimension, kind, bytes) of a `Communication`."""
    return kernel.name, kernel.dimension, kernel.kind, kernel.size_bytes


def tied_head_bytes(model: Model, plan: Plan) -> float:
    """Of the gradient that a tied head and the embedding, copies of each other on the last and the
    first rank, sum up; 0 without. Modules that predict one more token have such a copy, too
    (`_allreduce_word_embedding_grads` in megatron/core/distributed/finalize_model_grads.py)."""
    shared = model.tied_head or model.mtp_layers > 0
    if not shared or plan.pp == 1 or SCHEDULES[plan.schedule].ends_together:
        return 0.0
    return model.vocab * model.hidden / plan.tp * plan.gradient_bytes


def group_of(plan: Plan, dimension: str) -> str:
    """The name of the group of `plan.layout` that communicates in an instruction's `dimension`."""
    return "shard" if dimension == "dp" and plan.zero and plan.hybrid else dimension


def group_size(plan: Plan, dimension: str) -> int:
    """How many ranks communicate in an instruction's `dimension`."""
    if dimension == "ends":
        return 2
    return len(plan.layout.offsets(group_of(plan, dimension)))
