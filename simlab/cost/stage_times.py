"""What the ops of a plan take on a cluster: its kernels and collectives priced, and its units and
ops walked with these prices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import NamedTuple

from simlab.cost.communication_times import CommunicationTimes
from simlab.cost.roofline import casts_s, efficiencies_of, kernel_s
from simlab.cost.walk import Parts, Seconds, slows, walk_unit
from simlab.layer.operation import OperationKind
from simlab.layer.units import UnitKind, is_layer
from simlab.lowering.expansion import alternating
from simlab.lowering.instruction import Halves
from simlab.lowering.kernels import (
    Communication,
    GroupedMatmul,
    Matmul,
    UnitKernels,
    runtime_ops,
)
from simlab.lowering.kernels.kernel import Kernel, Launched
from simlab.lowering.pieces import (
    COMPUTE,
    Piece,
    Slice,
    recompute_pieces,
    unit_pieces,
)
from simlab.spec.hardware import Gpu
from simlab.spec.plan import Plan

MOST_STRETCHES = 100
"""Steps in which a unit's stretch is found; where nothing is waited for, each leaves at most half of
what is short."""

HOST_COLLECTIVE_OPS = 3
"""A collective is worth as many ops to the host: the call, the wait of its stream, and that of the
one it came from."""


MADE_IN_8_BITS = (OperationKind.DOWN, "forward"), (OperationKind.UP, "input")
"""(operation, role) of the products of `Plan.fused_experts` whose left operand the kernel before has made in
8 bits: the activation's result, and its gradient (`fuser_forward` and `fuser_backward` in Transformer
Engine's pytorch/ops/fused/grouped_mlp.py)."""


class StageTimes(NamedTuple):
    """`Parts` of what a unit or a stage does for a microbatch, by the kind of the op."""

    forward: Parts
    backward: Parts
    """A full backward, with recomputation."""
    input_grad: Parts
    """The half of it that makes the input's gradient, with recomputation."""
    weight_grad: Parts

    def of(self, kind: str) -> Parts:
        """Of an op of `kind`: F, B, I or W."""
        return self["FBIW".index(kind)]


def sends_block(plan: Plan) -> bool:
    """Whether a GPU goes on only when what it sends is there: with one stage a rank, as in
    Megatron-LM's 1F1B."""
    return plan.chunks == plan.copies == 1


@dataclass
class StageCost(CommunicationTimes):
    """Times of stages of `model` under `plan` on `cluster`; what is alike is computed once."""

    gpu: Gpu | None = None
    faster: Mapping[str, float] = field(default_factory=dict)
    """{kernel: how many times as fast it is as it would be}: 'attention' and its gradient, 'norm'
    for both norms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gpu = self._gpu = self.gpu or self.cluster.gpu
        self._kernel_s: dict[tuple[Kernel | Communication | Slice, bool], float] = {}
        self._pieces: dict[Halves, tuple[list[Piece], list[Seconds]]] = {}
        self._walked: dict[tuple[Halves, float], Parts] = {}
        self._stretched: dict[Halves, float] = {}
        self._recomputed_s: dict[UnitKind, float] = {}
        self.kernels = UnitKernels(self.model, self.plan)

    @cached_property
    def layer(self) -> StageTimes:
        """`StageTimes` of a layer."""
        return StageTimes(*(self.unit_parts("layer", kind) for kind in "FBIW"))

    # units and ops
    # ------------------------------------------------------------------------------------------

    def unit_parts(self, unit: UnitKind, kind: str) -> Parts:
        """`Parts` of an op of `kind` in a 'layer', the 'embedding' or the 'head', on the
        context-parallel rank that computes most."""
        return self.parts_of(((unit, kind),))

    def parts_of(self, halves: Halves, in_flight_s: float = 0.0) -> Parts:
        """`Parts` of what a rank computes side by side, while communication of data parallelism goes
        on for the first `in_flight_s`."""
        if in_flight_s <= 0:
            return self._parts_of(halves, 0.0)
        throughout = self._parts_of(halves, inf)
        if in_flight_s >= throughout.total:
            return throughout
        return self._parts_of(halves, round(in_flight_s, 12))

    def _parts_of(self, halves: Halves, in_flight_s: float) -> Parts:
        key = halves, in_flight_s
        if key not in self._walked:
            pieces, seconds, host_s = self._priced(halves)
            parts = walk_unit(pieces, seconds, in_flight_s)
            self._walked[key] = parts._replace(compute=parts.compute - host_s, host=host_s)
        return self._walked[key]

    def stretch(self, halves: Halves) -> float:
        """How many times as long the kernels of `halves` take as they do alone, for the GPU waits for
        the host to launch them."""
        if halves not in self._stretched:
            self._stretched[halves] = self._stretch(halves)
        return self._stretched[halves]

    def _stretch(self, halves: Halves) -> float:
        """The stretch with which the work lasts as long as it does alone and the host is late.

        Kernels that take longer hide more of the communication beside them, so that a stretch by
        the host's part alone would fall short. The duration grows with the stretch, by at most what
        the kernels take beside communication for each whole, so steps of that length come ever
        closer and never go beyond.
        """
        pieces, seconds = self._pieces_of(halves)
        late_s = self._host_s(halves)
        if not _computed_s(pieces, seconds) or not late_s:
            return 1.0
        wanted_s = walk_unit(pieces, seconds).total + late_s
        stretch = 1.0
        steepest_s = sum(its.beside_s for p, its in zip(pieces, seconds) if p.action == COMPUTE)
        for _ in range(MOST_STRETCHES):
            short_s = wanted_s - walk_unit(pieces, _stretched(pieces, seconds, stretch)).total
            if short_s <= 1e-12 * wanted_s:
                break
            stretch += short_s / steepest_s
        return stretch

    def _priced(self, halves: Halves) -> tuple[list[Piece], list[Seconds], float]:
        """(pieces, seconds of each, seconds of waiting for the host among them)"""
        pieces, compute_s = self._pieces_of(halves)
        stretch = self.stretch(halves)
        seconds = _stretched(pieces, compute_s, stretch)
        return pieces, seconds, _computed_s(pieces, compute_s) * (stretch - 1)

    def _pieces_of(self, halves: Halves) -> tuple[list[Piece], list[Seconds]]:
        """(pieces, seconds of each without the host)"""
        if halves not in self._pieces:
            each = [
                unit_pieces(self.kernels[unit], kind, self.plan, self.plan.cp - 1)
                for unit, kind in halves
            ]
            pieces = each[0] if len(each) == 1 else [its for _, its in alternating(*each)]
            self._pieces[halves] = pieces, list(map(self._piece_s, pieces))
        return self._pieces[halves]

    def _recompute_s(self, unit: UnitKind) -> float:
        """Seconds of the recomputation in a backward, without the host."""
        if unit not in self._recomputed_s:
            pieces = recompute_pieces(self.kernels[unit], self.plan, self.plan.cp - 1)
            self._recomputed_s[unit] = walk_unit(pieces, map(self._piece_s, pieces)).total
        return self._recomputed_s[unit]

    def _piece_s(self, piece: Piece) -> Seconds:
        """`Seconds` of a `Piece`."""
        if piece.action == COMPUTE:
            return self.computing(piece.kernels)
        whole = piece.size_bytes / piece.part
        seconds = piece.part * self.communication_s(piece.kind, whole, piece.dimension)
        return Seconds(seconds, seconds * slows(piece.dimension, piece.kind, self.plan))

    def _host_s(self, halves: Halves) -> float:
        """The seconds in which the kernels of `halves` wait for the host.

        Recomputation, input gradients and weight gradients are launched one after the other, and
        none of them lasts less than the host needs for it. Two ops side by side are launched as one.
        A core launches a kernel and then computes it, so all of what it needs is added; the launch
        that a kernel's own time has is left out. A CUDA graph of the whole step is one launch.
        """
        if self.plan.cuda_graphs == "whole":
            return 0.0
        if len(halves) == 1 or self._gpu.is_core:
            its = [part for half in halves for part in self._launches(*half)]
            return sum(max(0.0, host_s - meanwhile_s) for host_s, meanwhile_s in its)
        launched_s = sum(host_s for half in halves for host_s, _ in self._launches(*half))
        return max(0.0, launched_s - walk_unit(*self._pieces_of(halves)).total)

    def _launches(self, unit: UnitKind, kind: str) -> list[tuple[float, float]]:
        """[(what the host needs to launch it, what of that passes while it computes)] of the parts of
        an op in a unit, s."""
        kernels = self.kernels[unit]
        total_s = walk_unit(*self._pieces_of(((unit, kind),))).total
        forward_ops, input_ops, weight_ops = (
            runtime_ops(self.model.of_kind(unit), self.plan)
            if is_layer(unit)
            else (len(kernels.forward), len(kernels.input_grad), len(kernels.weight_grad))
        )
        if kind == "F":
            return [self._launch(forward_ops, kernels.forward, total_s)]
        weight_s = walk_unit(*self._pieces_of(((unit, "W"),))).total
        parts = []
        if kind in "BW":
            parts.append(self._launch(weight_ops, kernels.weight_grad, weight_s))
        if kind in "BI":
            again_s = self._recompute_s(unit)
            if is_layer(unit) and self.plan.recompute == "full":
                parts.append(self._launch(forward_ops, kernels.recompute, again_s))
            elif kernels.recompute:
                ops = len(kernels.recompute)
                parts.append(self._launch(ops, kernels.recompute, again_s))
            input_s = total_s - again_s - (weight_s if kind == "B" else 0.0)
            parts.append(self._launch(input_ops, kernels.input_grad, input_s))
        return parts

    def _launch(self, ops: float, kernels: Sequence[Launched], its_s: float) -> tuple[float, float]:
        """See `_launches`, of `kernels` that take `its_s`."""
        launched_s = len(kernels) * efficiencies_of(self._gpu).kernel_s
        return self._launch_s(ops, kernels), launched_s if self._gpu.is_core else its_s

    def _launch_s(self, ops: float, kernels: Sequence[Launched]) -> float:
        """What the host needs to launch `kernels`, which are so many `ops` to it."""
        calls = [kernel for kernel in kernels if isinstance(kernel, Communication)]
        calls_s = HOST_COLLECTIVE_OPS * self.host_op_s * len(calls)
        checked = [kernel for kernel in calls if kernel.kind != "ring"]  # it is made of messages
        checks_s = sum(self.check_s(self.group(kernel.dimension).size) for kernel in checked)
        return self.host_op_s * ops + calls_s + checks_s

    # one layer
    # ----------------------------------------------------------------------------------------------

    def computing(self, kernels: Sequence[Kernel | Slice]) -> Seconds:
        """`Seconds` of `kernels`, one after the other."""
        return Seconds(
            *(sum(self.kernel_s(each, beside) for each in kernels) for beside in (False, True))
        )

    def kernel_s(self, kernel: Kernel | Communication | Slice, beside: bool = False) -> float:
        """Seconds of `kernel`, alone or `beside` a collective."""
        key = kernel, beside
        if key not in self._kernel_s:
            if isinstance(kernel, Slice):
                self._kernel_s[key] = kernel.part * self.kernel_s(kernel.kernel, beside)
            elif isinstance(kernel, Communication):
                self._kernel_s[key] = self._steps_s(kernel)
            else:
                self._kernel_s[key] = self._own_s(kernel, beside)
        return self._kernel_s[key]

    def _own_s(self, kernel: Kernel, beside: bool) -> float:
        precision = self.plan.precision
        in_eight_bits = isinstance(kernel, Matmul) and self.plan.has_narrow_products
        if in_eight_bits and kernel.operation == OperationKind.HEAD and not self.plan.fp8_head:
            precision, in_eight_bits = "bf16", False
        gpu = self._gpu
        taken = self.collective_bytes_per_s if beside else None
        seconds = kernel_s(kernel, gpu, precision, beside_bytes_per_s=taken)
        if in_eight_bits and isinstance(kernel, Matmul):
            made = self.plan.fused_experts and (kernel.operation, kernel.role) in MADE_IN_8_BITS
            torchs = self.plan.habits.searches_largest_values
            seconds += casts_s(
                kernel,
                gpu,
                precision,
                kept_for=0 if torchs else self.plan.microbatches,
                gathered=self.plan.fp8_param_gather,
                made=made and isinstance(kernel, GroupedMatmul),
                beside_bytes_per_s=taken,
            )
        return seconds / self.faster.get(kernel.operation, 1)

    def _steps_s(self, kernel: Communication) -> float:
        return kernel.steps * self.communication_s(kernel.kind, kernel.size_bytes, kernel.dimension)


def _stretched(
    pieces: Sequence[Piece], seconds: Sequence[Seconds], stretch: float
) -> list[Seconds]:
    """`seconds` of `pieces`, with those that compute `stretch` times as long."""
    return [s.times(stretch) if p.action == COMPUTE else s for p, s in zip(pieces, seconds)]


def _computed_s(pieces: Sequence[Piece], seconds: Sequence[Seconds]) -> float:
    """What is computed in `pieces`, alone."""
    return sum(s.alone_s for p, s in zip(pieces, seconds) if p.action == COMPUTE)
