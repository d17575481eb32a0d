"""What a rank does in a step, in order: the refined form of a plan's program, with every wait explicit.

`rank_instructions` writes the list, `simlab.playback` simulates the lists of all ranks, and `realrun` executes them: its ranks hold what
they do against their list, communication by communication, to the byte. An op of the program becomes what its layers compute, and the
communications that they begin and wait for:

    compute   kernels, one after the other
    begin     a communication of the groups of `dimension`; it goes on by itself, behind those that were begun before in its dimension
    wait      until a communication that was begun, here or (a message) on another rank, has ended

What travels together, a unit, is the embedding, a layer, or the head. Units' gradients are reduced during the last backward (ZeRO 0 and 1)
or during each (2 and 3). ZeRO-1 and 2 gather all units, updated in parts, when a step begins; 3 gathers each before it is used.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from simlab.cost.context import ring_work
from simlab.cost.kernels import Attention, Communication, Matmul, embedding_kernels, head_kernels, layer_kernels, message_kernels
from simlab.cost.parameters import partial_parameters, stage_parameters
from simlab.cost.stage_times import StageCost

COMPUTE, BEGIN, WAIT = "compute", "begin", "wait"


class Instruction(NamedTuple):
    """One thing that a rank does."""

    action: str
    """COMPUTE, BEGIN or WAIT."""
    op: str
    """The op that it is a part of, '2F0', of a message the op whose result it is; '' for what belongs to the step."""
    name: str
    """'layer 3', or of a communication 'layer 3 output reduce'. With the op it names one communication of a group."""
    kernels: tuple = ()
    """What is computed."""
    dimension: str = ""
    """Of a communication: 'tp', 'cp', 'dp' (the ranks that hold the same part of the model, dp x cp of them) or 'pp'."""
    kind: str = ""
    """'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'ring' (to the next of the group) or 'message' (to another stage)."""
    size_bytes: float = 0.0
    """Of the whole buffer, as `simlab.cost.kernels.Communication` has it."""
    peer: int | None = None
    """Of a message: the pipeline rank at its other end."""


class Unit(NamedTuple):
    """What is gathered, and reduced, in one piece."""

    name: str
    kernels: object
    """`LayerKernels`."""
    parameters: int
    partial: int
    """Of them: those whose gradients are sums over tp ranks, each of which has met its own tokens only (sequence parallelism)."""


def rank_instructions(model, plan, program, rank=0, *, context_rank=0):
    """[`Instruction`] of a step of pipeline rank `rank`: the same on all GPUs of it, but where contiguous chunks of a sequence give each
    `context_rank` another share of the attention. Leaves out: tied heads, offload, replicated shards (`Plan.hybrid`)."""
    return _Writer(model, plan, program, rank, context_rank).instructions


@dataclass
class _Writer:
    model: object
    plan: object
    program: object
    rank: int
    context_rank: int
    instructions: list = field(default_factory=list)

    def __post_init__(self):
        plan, program = self.plan, self.program
        self.op = ""
        self.shared = plan.dp * plan.cp > 1  # whether gradients are anybody else's, too
        self.units = {stage: self._units(stage) for stage in program.stages_of(self.rank)}
        self.pieces = {}
        self.reducing = []  # names and ops of reductions that were begun and not waited for
        self.unread = set()  # units that are being gathered since the step's begin
        self.last = {op.stage: op for op in program.ranks[self.rank] if op.kind in "BW"}
        self._step_begins()
        for op in program.ranks[self.rank]:
            self._run(op)
        self._step_ends()

    def _units(self, stage):
        model, plan = self.model, self.plan
        layers = plan.layers_of_stages(model.layers, self.program.stages)
        first, last = stage == 0, stage == self.program.stages - 1
        numbers = range(sum(layers[:stage]), sum(layers[: stage + 1]))
        units = [Unit("embedding", embedding_kernels(model, plan), *self._sizes(0, first=True))] if first else []
        units += [Unit(f"layer {n}", self._layer_kernels, *self._sizes(1)) for n in numbers]
        return units + ([Unit("head", head_kernels(model, plan), *self._sizes(0, last=True))] if last else [])

    def _sizes(self, layers, **ends):
        counted = (count(self.model, self.plan, layers, **ends) for count in (stage_parameters, partial_parameters))
        return [round(count) for count in counted]

    @cached_property
    def _layer_kernels(self):
        return layer_kernels(self.model, self.plan)

    # the list -----------------------------------------------------------------------------------------------

    def _compute(self, name, *kernels):
        last = self.instructions[-1] if self.instructions else None
        if last and last[:3] == (COMPUTE, self.op, name):
            self.instructions[-1] = last._replace(kernels=last.kernels + kernels)
        else:
            self.instructions.append(Instruction(COMPUTE, self.op, name, kernels))

    def _begin(self, name, dimension, kind, size_bytes):
        self.instructions.append(Instruction(BEGIN, self.op, name, (), dimension, kind, size_bytes))

    def _wait(self, name, dimension, kind, size_bytes, op=None):
        self.instructions.append(Instruction(WAIT, self.op if op is None else op, name, (), dimension, kind, size_bytes))

    def _both(self, *communication):
        self._begin(*communication)
        self._wait(*communication)

    # a step -------------------------------------------------------------------------------------------------

    def _step_begins(self):
        """ZeRO-1 and 2: all units are gathered, in the order of their first use."""
        if self.plan.zero not in (1, 2) or not self.shared:
            return
        for stage in dict.fromkeys(op.stage for op in self.program.ranks[self.rank] if op.kind == "F"):
            for unit in self.units[stage]:
                self._begin(*self._gather(unit))
                self.unread.add(unit.name)
                if not self.plan.dp_overlap:
                    self._gathered_at_begin(unit)

    def _gathered_at_begin(self, unit):
        if unit.name in self.unread:
            self.unread.remove(unit.name)
            self._wait(*self._gather(unit), op="")

    def _step_ends(self):
        self.op = ""
        for op in reversed(self.program.ranks[self.rank]):
            if op == self.last.get(op.stage) and self.plan.zero < 2 and not self.plan.dp_overlap:
                for unit in reversed(self.units[op.stage]):
                    self._reduce(unit)
                    self._wait_for_reductions(0)
        self._wait_for_reductions(0)
        for what, size_bytes in (("overflow", OVERFLOW_BYTES if self.plan.precision == "fp16" else 0), ("norm", NORM_BYTES)):
            for dimension in ("tp", "pp", *(["dp"] if self.plan.zero else [])):
                if size_bytes and self._ranks(dimension) > 1:
                    self._both(f"{what} over {dimension}", dimension, "all_reduce", size_bytes)
        self._compute("optimizer")

    def _ranks(self, dimension):
        return self.plan.dp * self.plan.cp if dimension == "dp" else getattr(self.plan, dimension)

    # an op --------------------------------------------------------------------------------------------------

    def _run(self, op):
        self.op = str(op)
        units = self.units[op.stage] if op.kind == "F" else self.units[op.stage][::-1]
        sharded = self.plan.zero == 3 and self.shared and op.kind != "W" and (op.kind == "F" or self.plan.reshard)
        for unit in units[: self.plan.prefetch if sharded else 0]:
            self._begin(*self._gather(unit))
        self._receive(op)
        for at, unit in enumerate(units):
            if sharded:
                ahead = self.plan.prefetch
                for other in units[at + ahead : at + ahead + 1]:
                    self._begin(*self._gather(other))
                self._wait(*self._gather(unit))
            self._gathered_at_begin(unit)
            self._unit(unit, op.kind)
            if op.kind in "BW" and (self.plan.zero >= 2 or (op == self.last[op.stage] and self.plan.dp_overlap)):
                self._reduce(unit)
        self._send(op)

    def _receive(self, op):
        for need in self.program.needs(op):
            source = self.program.rank_of[need]
            if source != self.rank:
                self.instructions.append(Instruction(WAIT, str(need), "message", (), "pp", "message", self._message_bytes, source))
                for kernel in message_kernels(self.model, self.plan):
                    self._both(kernel.name, kernel.dimension, kernel.kind, kernel.size_bytes)

    def _send(self, op):
        user = self.program.user(op)
        if user is not None and self.program.rank_of[user] != self.rank:
            destination = self.program.rank_of[user]
            self.instructions.append(Instruction(BEGIN, self.op, "message", (), "pp", "message", self._message_bytes, destination))

    @cached_property
    def _message_bytes(self):
        return StageCost.message_bytes_of(self.model, self.plan)

    def _unit(self, unit, kind):
        key = id(unit.kernels), kind
        if key not in self.pieces:
            self.pieces[key] = unit_pieces(unit.kernels, kind, self.plan, self.context_rank)
        for action, content in self.pieces[key]:
            if action == COMPUTE:
                self._compute(unit.name, *content)
            else:
                name, dimension, communication, size = content
                {BEGIN: self._begin, WAIT: self._wait}[action](f"{unit.name} {name}", dimension, communication, size)

    # what data-parallel ranks send each other ---------------------------------------------------------------

    def _gather(self, unit):
        return f"{unit.name} gather", "dp", "all_gather", self._padded(unit.parameters) * self.plan.element_bytes

    def _padded(self, numbers):
        """What is cut over ranks is padded, so that their parts are equal."""
        ranks = self._ranks("dp")
        return -(-numbers // ranks) * ranks

    def _reduce(self, unit):
        """Sum up a unit's gradients: those of norms over tp, then all of them over the ranks that hold the same."""
        plan = self.plan
        if unit.partial:
            self._both(f"{unit.name} partial gradients", "tp", "all_reduce", unit.partial * plan.gradient_bytes)
        if not self.shared:
            return
        self._wait_for_reductions(1 if plan.zero >= 2 else len(self.reducing))
        if any(self.reducing[at][1][0] == f"{unit.name} gradients" for at in range(len(self.reducing))):
            self._wait_for_reductions(0)
        numbers, kind = (self._padded(unit.parameters), "reduce_scatter") if plan.zero else (unit.parameters, "all_reduce")
        reduction = f"{unit.name} gradients", "dp", kind, numbers * plan.gradient_bytes
        self._begin(*reduction)
        self.reducing.append((self.op, reduction))
        if plan.zero >= 2 and not (plan.dp_overlap and (plan.zero == 2 or plan.prefetch)):
            self._wait_for_reductions(0)

    def _wait_for_reductions(self, left):
        while len(self.reducing) > left:
            op, reduction = self.reducing.pop(0)
            self._wait(*reduction, op=op)


OVERFLOW_BYTES = 4
"""Of whether a gradient is infinite, which in fp16 every rank must know: then nobody updates, and the loss's scale shrinks."""
NORM_BYTES = 16
"""Of the sum of squared gradients, in fp64: of those that tp ranks have parts of, and of those that are whole on all."""


# one unit -------------------------------------------------------------------------------------------------


def unit_pieces(kernels, kind, plan, context_rank=0):
    """[(COMPUTE, kernels) or (BEGIN or WAIT, (name, dimension, kind, bytes))] of a unit's F, B, I or W, in the order of Megatron-LM's
    layers: a column-parallel matrix gathers its input once more while it computes the input's gradient, and sums or scatters that while it
    computes the weight's."""
    pieces = _Pieces(plan, context_rank)
    if kind == "F":
        pieces.forward(kernels.forward)
    elif kind == "W":
        pieces.compute(*kernels.weight_grad)
    else:
        pieces.forward(kernels.again, "again ")
        pieces.backward(kernels, with_weights=kind == "B")
    return pieces.list


class _Pieces:
    def __init__(self, plan, context_rank):
        self.plan, self.list = plan, []
        self.share = [float(part) * plan.cp for part in ring_work(plan.cp, plan.cp_layout)[context_rank]] if plan.cp > 1 else [1.0]

    def compute(self, *kernels):
        if kernels:
            self.list.append((COMPUTE, kernels))

    def begin(self, kernel, name=None, size_bytes=None):
        size_bytes = kernel.size_bytes if size_bytes is None else size_bytes
        self.list.append((BEGIN, (name or kernel.name, kernel.dimension, kernel.kind, size_bytes)))
        return len(self.list) - 1

    def wait(self, begun):
        self.list.append((WAIT, self.list[begun][1]))

    def attend(self, attention):
        """Without a ring: all of this rank's scores at once."""
        gathered = self.plan.cp > 1 and self.plan.cp_kind == "all-gather"
        self.compute(replace(attention, share=sum(self.share)) if gathered else attention)

    def attend_piece(self, attention, share):
        """A step of a ring: a kernel over the keys that are here, a cp-th of all."""
        self.compute(replace(attention, keys=attention.keys // self.plan.cp, share=self.plan.cp * share))

    def forward(self, kernels, prefix=""):
        ring = None
        for kernel in kernels:
            if not isinstance(kernel, Communication):
                if ring and kernel.name == ring.beside:
                    self.ring_forward(ring, kernel, prefix)
                elif isinstance(kernel, Attention):
                    self.attend(kernel)
                else:
                    self.compute(kernel)
            elif kernel.kind == "ring":
                ring = kernel
            else:
                self.wait(self.begin(kernel, prefix + kernel.name))

    def ring_forward(self, ring, attention, prefix):
        """Keys and values are on their way to the next rank while those that are here are computed with."""
        for step, share in enumerate(self.share):
            begun = self.begin(ring, f"{prefix}{ring.name} {step}") if step < ring.steps else None
            self.attend_piece(attention, share)
            if begun is not None:
                self.wait(begun)

    def backward(self, kernels, with_weights):
        """`kernels.input_grad`, and with_weights `kernels.weight_grad`, each after its input's gradient."""
        by_name = {kernel.name: kernel for kernel in kernels.input_grad}
        weights = {kernel.name: kernel for kernel in kernels.weight_grad} if with_weights else {}
        for kernel in kernels.input_grad:
            product = kernel.name.split()[0]
            if isinstance(kernel, Matmul) and f"{product} gather again" in by_name:
                begun = self.begin(by_name[f"{product} gather again"])
                self.compute(kernel)
                self.wait(begun)
            elif kernel.name.endswith("gather again") or getattr(kernel, "kind", None) == "ring":
                continue  # with their product, with their attention
            elif kernel.name == "attention grad" and "attention grad ring" in by_name:
                self.ring_backward(by_name["attention grad ring"], kernel)
            elif isinstance(kernel, Attention):
                self.attend(kernel)
            elif isinstance(kernel, Communication):
                begun = self.begin(kernel)
                if kernel.beside in weights:
                    self.compute(weights.pop(kernel.beside))
                self.wait(begun)
            else:
                self.compute(kernel)
                beside = any(isinstance(other, Communication) and other.beside == f"{product} weight grad" for other in kernels.input_grad)
                if isinstance(kernel, Matmul) and f"{product} weight grad" in weights and not beside:
                    self.compute(weights.pop(f"{product} weight grad"))
        self.compute(*weights.values())

    def ring_backward(self, ring, attention):
        """Keys and values go round once more, and their gradients after them, home with the last message."""
        travelling, half = None, ring.size_bytes / 2
        for step, share in enumerate(self.share):
            keys = self.begin(ring, f"{ring.name} {step}", half) if step < ring.steps else None
            self.attend_piece(attention, share)
            if travelling is not None:
                self.wait(travelling)
            if step:
                travelling = self.begin(ring, f"{ring.name} gradients {step}", half)
            if keys is not None:
                self.wait(keys)
        self.wait(travelling)
