"""A walk over what a rank does in its step, op by op: what it holds at each moment, and when
most."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, product

from simlab.layer.parameters import (
    Matrices,
    expert_parameters,
    stage_matrices,
    stage_parameters,
)
from simlab.layer.units import UnitKind, is_layer
from simlab.lowering.expansion import in_turns
from simlab.lowering.zero import (
    State,
    gathered_around,
    held_of,
    is_shared,
    most_of,
    shards_of,
)
from simlab.memory.fsdp import Gathered
from simlab.memory.ledger import CATEGORIES, Ledger, Moment, Phase
from simlab.memory.schemes import (
    Added,
    NumberBytes,
    Partitioned,
    Replicated,
    Resident,
    Scheme,
    Use,
)
from simlab.memory.stage import FORWARD, LOSS_BYTES, Parts, Shape, StageWalk, sizes_of
from simlab.memory.states import eight_bit_bytes, optimizer_bytes, state_bytes
from simlab.optimizers import OPTIMIZERS
from simlab.program import Program
from simlab.spec.model import Model
from simlab.spec.plan import Plan

FOLDED = {
    "parameters": ("parameters",),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "activations": ("activations", "inputs"),
}
"""{category of a prediction: categories of the walk that it adds up}; all others are its
buffers."""


NUMBERS = {
    (kind, first, state, last): number
    for number, (kind, first, state, last) in enumerate(
        product("FBIW", (False, True), product((False, True), repeat=2), (False, True))
    )
}
USES = [Use(kind, first, gathered, stays, last) for kind, first, (gathered, stays), last in NUMBERS]


_Key = tuple[int, int]
"""(stage, number of a `Use`)"""
_Units = list[tuple[UnitKind, Phase]]


class StepWalk:
    """What the ranks of one pipeline hold in a step of `model` under `plan`.

    The walk goes through the ops of `program` in each rank's order, the optimizer's step last. An
    op's effect is found unit by unit, each kind of unit once. Leaves out: what the allocator
    wastes, communication libraries' own buffers (one to two GiB with NCCL), the sent messages that
    have not arrived. Activations have the plan's precision, but for torch's DDP in 16 bits, where
    autocast decides (`simlab.lowering.zero.autocasts` says of which plans).
    """

    def __init__(self, model: Model, plan: Plan, program: Program, layers: list[int]) -> None:
        self.model, self.plan, self.program = model, plan, program
        self.sizes = sizes_of(model, plan, plan.element_bytes, LOSS_BYTES)
        last, kinds = program.stages - 1, model.kinds_of_stages(layers)
        self.shapes = [Shape(its, s == 0, s == last) for s, its in enumerate(kinds)]
        parts: Parts = {}
        walks = {
            shape: StageWalk(
                model, plan, shape, scheme_of(model, plan, shape), sizes=self.sizes, parts=parts
            )
            for shape in set(self.shapes)
        }
        self.stages = [walks[shape] for shape in self.shapes]
        self._phases: dict[tuple[_Key, ...], Phase] = {}

    def activations(self) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
        """Per stage, bytes of one microbatch's activations from its F to its B or I, and from I to
        W; None for these where no backward is split."""
        forward = tuple(walk.op(FORWARD).end["activations"] for walk in self.stages)
        if not any(op.kind == "W" for op in self.program.ranks[0]):
            return forward, None
        between = (-walk.op(Use("W", first=False)).end["activations"] for walk in self.stages)
        return forward, tuple(max(0.0, size) for size in between)

    def changes_side_by_side(self, forward: int, backward: int) -> Iterator[float]:
        """By how many bytes of activations more are held after each unit of a forward of one stage and of
        a backward of another that go side by side."""
        ahead = self.stages[forward].units_of(FORWARD)
        back = self.stages[backward].units_of(Use("B", first=False))
        for both in in_turns(ahead, back, lambda unit: is_layer(unit[0])):
            yield from (unit[1].end["activations"] for unit in both if unit is not None)

    def rest(self, rank: int) -> dict[str, float]:
        """{category: bytes} that `rank` holds between two steps."""
        held = dict.fromkeys(CATEGORIES, 0.0)
        for stage in self.program.stages_of(rank):
            for name, size in rest_of(self.model, self.plan, self.shapes[stage]).items():
                held[name] += size
        return held

    def uses(self, rank: int) -> list[tuple[int, Use]]:
        """[(stage, `Use`)] of each op of `rank`, in order."""
        return [(stage, USES[number]) for stage, number in self._uses(rank)]

    def _turns(self, rank: int) -> list[tuple[_Key, ...]]:
        """The ops of `rank` in order, each by itself but those that go side by side."""
        uses, paired = self._uses(rank), self.program.paired
        if not paired:
            return [(use,) for use in uses]
        turns: list[tuple[_Key, ...]] = []
        ops = zip(self.program.ranks[rank], uses)
        for op, use in ops:
            turns.append((use, next(ops)[1]) if op in paired else (use,))
        return turns

    def _phase(self, turn: tuple[_Key, ...]) -> Phase:
        """What the ops of a turn do."""
        if turn not in self._phases:
            walks = [(self.stages[stage], USES[number]) for stage, number in turn]
            if len(walks) == 1:
                self._phases[turn] = walks[0][0].op(walks[0][1])
            else:
                forward, backward = (walk.units_of(use) for walk, use in walks)
                scheme = walks[0][0].scheme
                self._phases[turn] = _side_by_side(forward, backward, scheme.until_op_ends)
        return self._phases[turn]

    def _uses(self, rank: int) -> list[_Key]:
        """[(stage, number of a `Use`)] of each op of `rank`, in order: there are many ops, and few
        uses."""
        scheme, ops = self.stages[0].scheme, self.program.ranks[rank]
        first_differs, fresh = scheme.first_differs, dict[int, bool]()
        last_of = {op.stage: op for op in ops if scheme.last_differs and op.kind in "BW"}
        found = []
        for op, gathered in zip(ops, gathered_around(self.plan, ops)):
            stage, kind, _ = op
            first = first_differs and kind in "BW" and fresh.get(stage, True)
            if first:
                fresh[stage] = False
            last = last_of.get(stage, op) == op
            found.append((stage, NUMBERS[kind, first, gathered, last]))
        return found

    def peak(self, rank: int) -> dict[str, float]:
        """{category: bytes} when `rank` holds most."""
        held, turns, figures = self.rest(rank), self._turns(rank), {}
        for turn in dict.fromkeys(turns):
            phase = self._phase(turn)
            figures[turn] = phase.peak, phase.left
        total = best = sum(held.values())
        best_at = 0
        for at, turn in enumerate(turns, 1):
            peak, left = figures[turn]
            if total + peak > best:
                best, best_at = total + peak, at
            total += left
        step = self._optimizer_step(rank)
        in_step = total + step > best
        before = turns if in_step else turns[: max(0, best_at - 1)]
        for turn, count in Counter(before).items():
            for name, size in self._phase(turn).end.items():
                held[name] += count * size
        if in_step:
            held["temporaries"] += step
        elif best_at:
            for name, size in self._phase(turns[best_at - 1]).at_peak.items():
                held[name] += size
        return held

    def moments(self, rank: int) -> list[Moment]:
        """`Moment` of each op of `rank` at its own peak, and what is held when it is over under the
        op '': [rest, op, after it, op, after it, ..., optimizer step]. Two ops side by side have the
        same of both."""
        held = self.rest(rank)
        moments, ops = [Moment("", held)], iter(self.program.ranks[rank])
        for turn in self._turns(rank):
            phase = self._phase(turn)
            most = {name: size + phase.at_peak[name] for name, size in held.items()}
            held = {name: size + phase.end[name] for name, size in held.items()}
            for op in islice(ops, len(turn)):
                moments += Moment(str(op), most), Moment("", held)
        step = self._optimizer_step(rank)
        return [
            *moments,
            Moment("optimizer step", held | {"temporaries": held["temporaries"] + step}),
        ]

    def _optimizer_step(self, rank: int) -> float:
        """Bytes of the optimizer's scratch: of all that the rank updates, or of its largest matrix where
        they are updated one by one. A fused kernel has none."""
        plan, its = self.plan, OPTIMIZERS[self.plan.optimizer]
        shapes = [self.shapes[stage] for stage in self.program.stages_of(rank)]
        if plan.offload in ("optimizer", "parameters"):
            return 0.0
        if its.others is None:
            own = sum(
                held_of(plan, "optimizer", *numbers_of_stage(self.model, plan, shape))
                for shape in shapes
            )
            return its.scratch(fused=plan.habits.fuses_optimizer) * own
        held = {its: 0.0, its.others: 0.0}
        for matrices in (own for shape in shapes for own in matrices_of(self.model, plan, shape)):
            for matrix, count in matrices.items():
                by, numbers = its.of(matrix), matrix.numbers
                one_by_one = by.launches > 1
                held[by] = max(held[by], numbers) if one_by_one else held[by] + count * numbers
        return max(by.scratch(fused=plan.habits.fuses_optimizer) * n for by, n in held.items())


def _side_by_side(forward: _Units, backward: _Units, until_op_ends: Sequence[str]) -> Phase:
    """What a forward and a backward do that go side by side. Of two layers the forward is taken to come
    first, so that both hold all that they keep while the backward computes; in truth the forward's
    experts come last. until_op_ends: categories of which nothing is left when both are over."""
    ledger = Ledger()
    for both in in_turns(forward, backward, lambda unit: is_layer(unit[0])):
        for unit in both:
            if unit is not None:
                ledger.add(unit[1])
    ledger.free(*((name, ledger.held[name]) for name in until_op_ends))
    return ledger.phase


def held_by_rank(walk: StepWalk) -> list[dict[str, float]]:
    """[per pipeline rank: {category: bytes} at its own peak], in a prediction's categories."""
    return [folded(walk.peak(rank)) for rank in range(len(walk.program.ranks))]


def folded(held: dict[str, float]) -> dict[str, float]:
    """`held` by the walk's categories, in a prediction's: parameters, gradients, optimizer,
    activations, buffers."""
    sums = {name: sum(held[part] for part in parts) for name, parts in FOLDED.items()}
    return sums | {"buffers": max(0.0, sum(held.values()) - sum(sums.values()))}


def parameters_of(model: Model, plan: Plan, shape: Shape) -> float:
    """Parameters of a stage on one rank, before ZeRO; FSDP2's with their padding."""
    scheme = scheme_of(model, plan, shape)
    if isinstance(scheme, Gathered):
        return scheme.numbers(shape.layers)
    ends = {"first": shape.first, "last": shape.last}
    return stage_parameters(model, plan, shape.layers, **ends)


def numbers_of_stage(model: Model, plan: Plan, shape: Shape) -> tuple[float, float]:
    """(`parameters_of` a stage, those of them of experts that only an 'edp' group holds)"""
    experts = expert_parameters(model, plan, shape.layers)
    return parameters_of(model, plan, shape), experts


def matrices_of(model: Model, plan: Plan, shape: Shape) -> Matrices:
    """The parameters of a stage on one rank, before ZeRO."""
    ends = {"first": shape.first, "last": shape.last}
    return stage_matrices(model, plan, shape.layers, **ends)


def rest_of(model: Model, plan: Plan, shape: Shape) -> dict[str, float]:
    """{category: bytes} that a stage takes between two steps.

    torch's gradients are freed then; Megatron-LM's and nanotron's stay. Without ZeRO nanotron wraps
    the model in torch's DDP, whose buckets hold a copy of all 16-bit gradients
    (nanotron/trainer.py, `make_ddp`).
    """
    (count, experts), states = numbers_of_stage(model, plan, shape), state_bytes(plan)
    whole = OPTIMIZERS[plan.optimizer].whole
    sizes: dict[State, float] = {
        "parameters": states.parameter,
        "gradients": states.gradient,
        "optimizer": optimizer_bytes(plan) if not whole else 0.0,
    }
    held: dict[str, float] = {
        name: held_of(plan, name, count, experts) * size for name, size in sizes.items()
    }
    if whole:
        matrices = matrices_of(model, plan, shape)
        held["optimizer"] = most_of(plan, matrices, lambda its: optimizer_bytes(plan, its))
    held["parameters"] += eight_bit_bytes(model, plan, shape.layers)
    if plan.offload in ("optimizer", "parameters"):
        held["optimizer"] = 0.0
    if plan.offload == "parameters":
        held["parameters"] = 0.0
    if _gradients_come_and_go(plan):
        buckets = shards_of(plan, "optimizer") == 1 and is_shared(plan)
        held["gradients"], held["buckets"] = 0.0, count * states.gradient * buckets
    if plan.habits.copies_into_buckets and plan.zero == 0 and is_shared(plan):
        held["buckets"] = count * plan.element_bytes
    return held


def _gradients_come_and_go(plan: Plan) -> bool:
    """Whether gradients are freed between steps: torch's, but where shards of them are kept in flat
    buffers."""
    if plan.habits.has_flat_gradients:
        return False
    if plan.habits.cuts_each_tensor and plan.zero == 3:
        return True
    return shards_of(plan, "optimizer") == 1 and plan.offload != "parameters"


def scheme_of(model: Model, plan: Plan, shape: Shape) -> Scheme:
    """The `Scheme` by which `plan` spreads the states of a stage."""
    states, width = state_bytes(plan), plan.element_bytes
    made = 0.0 if plan.habits.adds_in_place else width
    sizes = NumberBytes(
        states.parameter, states.gradient, gathered=width, made=made, reduced=plan.gradient_bytes
    )
    if plan.habits.cuts_each_tensor and plan.zero == 3:
        return Gathered(sizes, model, plan, shape.units)
    if _gradients_come_and_go(plan):
        return Replicated(sizes._replace(made=states.gradient))
    if plan.zero >= 2 or plan.offload == "parameters":
        return Partitioned(sizes, model, plan)
    if plan.habits.adds_after_backward:
        return Added(sizes)
    return Resident(sizes)
