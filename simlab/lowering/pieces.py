"""What one unit computes and communicates in one op, in order: tensor, context and expert
parallelism and recomputation.

A unit is the embedding, a layer or the head. Its pieces have no names of ranks, layers or
microbatches, so all layers of a stage share them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from simlab.layer.operation import OperationKind
from simlab.lowering.context import ring_work
from simlab.lowering.kernels.kernel import (
    Attention,
    Carries,
    Communication,
    Kernel,
    Launched,
    LayerKernels,
    Matmul,
)
from simlab.spec.plan import Plan

Action = Literal["compute", "begin", "wait"]
COMPUTE: Action = "compute"
BEGIN: Action = "begin"
WAIT: Action = "wait"


class Slice(NamedTuple):
    """A part of a kernel, where a matrix product is computed in pieces between communications."""

    kernel: Matmul
    part: float
    """The fraction of the kernel's work, and so of its time."""


class Piece(NamedTuple):
    """One thing that a rank does for a unit."""

    action: Action
    name: str = ""
    """The name of the communication, 'output reduce'."""
    kernels: tuple[Kernel | Slice, ...] = ()
    """What is computed, one kernel after the other."""
    dimension: str = ""
    """The group that communicates: 'tp', 'cp' or 'ep'."""
    kind: str = ""
    """'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all' or 'ring'."""
    size_bytes: float = 0.0
    part: float = 1.0
    """The fraction of a whole communication that this one is, and so of its time."""


def unit_pieces(kernels: LayerKernels, kind: str, plan: Plan, context_rank: int = 0) -> list[Piece]:
    """The `Piece`s of a unit's op of `kind`: F, B, I or W. B and I begin with the recomputation.

    The order is that of Megatron-LM's layers. A column-parallel matrix gathers its input once more
    while it computes the input's gradient, and sums or scatters that gradient while it computes the
    weight's. An I has no weight gradient: there the sum waits alone. `Plan.tp_overlap` 'none' lets
    nothing run beside these communications. 'pipelined' cuts those that have only their own matrix
    product to run beside into tp pieces, of which the first (of a gathered input) or the last (of a
    result) has nothing beside it.
    """
    writer = _Writer(plan, context_rank)
    if kind == "F":
        writer.forward(kernels.forward)
    elif kind == "W":
        writer.compute(*kernels.weight_grad)
    else:
        writer.forward(kernels.recompute, "again ")
        writer.backward(kernels, with_weights=kind == "B")
    return writer.list


def recompute_pieces(kernels: LayerKernels, plan: Plan, context_rank: int = 0) -> list[Piece]:
    """The `Piece`s of the recomputation with which a B or an I of a unit begins."""
    writer = _Writer(plan, context_rank)
    writer.forward(kernels.recompute, "again ")
    return writer.list


class _Writer:
    def __init__(self, plan: Plan, context_rank: int) -> None:
        self.plan, self.context_rank = plan, context_rank
        self.list: list[Piece] = []
        self.pipelined = plan.tp_overlap == "pipelined"
        self.share = (
            [float(part) * plan.cp for part in ring_work(plan.cp, plan.cp_layout)[context_rank]]
            if plan.cp > 1
            else [1.0]
        )

    def compute(self, *kernels: Kernel | Slice) -> None:
        if kernels and self.list and self.list[-1].action == COMPUTE:
            kernels = self.list.pop().kernels + kernels
        if kernels:
            self.list.append(Piece(COMPUTE, kernels=kernels))

    def begin(
        self,
        kernel: Communication,
        name: str | None = None,
        part: float = 1.0,
        size_bytes: float | None = None,
    ) -> Piece:
        """Begin a communication. The result is what `wait` is to be given."""
        size_bytes = part * kernel.size_bytes if size_bytes is None else size_bytes
        begun = Piece(
            BEGIN, name or kernel.name, (), kernel.dimension, kernel.kind, size_bytes, part
        )
        self.list.append(begun)
        return begun

    def wait(self, begun: Piece) -> None:
        self.list.append(begun._replace(action=WAIT))

    def communicate(
        self, kernel: Communication, name: str | None = None, part: float = 1.0
    ) -> None:
        self.wait(self.begin(kernel, name, part))

    def after_gather(self, product: Matmul, gather: Communication, prefix: str = "") -> None:
        """Compute `product` in pieces, each while the next one's input is gathered."""
        name, first = prefix + gather.name, 1 / self.plan.tp
        self.communicate(gather, f"{name}, first piece", first)
        rest = self.begin(gather, name, 1 - first)
        self.compute(Slice(product, 1 - first))
        self.wait(rest)
        self.compute(Slice(product, first))

    def before_sum(self, product: Matmul, total: Communication, prefix: str = "") -> None:
        """Compute `product` in pieces; all but the last are summed while the next is computed."""
        name, last = prefix + total.name, 1 / self.plan.tp
        self.compute(Slice(product, last))
        begun = self.begin(total, name, 1 - last)
        self.compute(Slice(product, 1 - last))
        self.wait(begun)
        self.communicate(total, f"{name}, last piece", last)

    def forward(self, kernels: Sequence[Launched], prefix: str = "") -> None:
        """Write a forward, or the part of it that is computed again."""
        products = {kernel.place for kernel in kernels if isinstance(kernel, Matmul)}
        in_pieces = {
            (kernel.beside, kernel.carries): kernel
            for kernel in kernels
            if isinstance(kernel, Communication)
            and self.pipelined
            and kernel.dimension == "tp"
            and kernel.beside in products
        }
        ring = next((k for k in kernels if isinstance(k, Communication) and k.kind == "ring"), None)
        for kernel in kernels:
            if isinstance(kernel, Communication):
                if kernel is not ring and (kernel.beside, kernel.carries) not in in_pieces:
                    self.communicate(kernel, prefix + kernel.name)
            elif isinstance(kernel, Matmul):
                gather = in_pieces.get((kernel.place, "input"))
                total = in_pieces.get((kernel.place, "result"))
                if gather is not None:
                    self.after_gather(kernel, gather, prefix)
                elif total is not None:
                    self.before_sum(kernel, total, prefix)
                else:
                    self.compute(kernel)
            elif isinstance(kernel, Attention) and ring is not None:
                self.ring_forward(ring, kernel, prefix)
            elif isinstance(kernel, Attention):
                self.attend(kernel)
            else:
                self.compute(kernel)

    def attend(self, attention: Attention) -> None:
        """Attention without a ring computes all of this rank's scores at once."""
        gathered = self.plan.cp > 1 and self.plan.cp_kind == "all-gather"
        shares = attention.shares
        share = shares[self.context_rank] if shares else sum(self.share)
        self.compute(replace(attention, share=share) if gathered else attention)

    def attend_piece(self, attention: Attention, step: int, share: float) -> None:
        """A step of a ring: a kernel over the keys that are here, a cp-th of all."""
        cp, rank = self.plan.cp, self.context_rank
        between = rank, (rank - step) % cp
        piece = replace(attention, keys=attention.keys // cp, share=cp * share, between=between)
        self.compute(piece)

    def ring_forward(self, ring: Communication, attention: Attention, prefix: str) -> None:
        """Keys and values travel to the next rank while those that are here are computed with."""
        for step, share in enumerate(self.share):
            begun = self.begin(ring, f"{prefix}{ring.name} {step}") if step < ring.steps else None
            self.attend_piece(attention, step, share)
            if begun is not None:
                self.wait(begun)

    def backward(self, kernels: LayerKernels, with_weights: bool) -> None:
        """Write `kernels.input_grad`, and with_weights `kernels.weight_grad`, of which each product
        comes after that of its input's gradient."""
        steps = _Backward(kernels, with_weights)
        for kernel in kernels.input_grad:
            if isinstance(kernel, Communication):
                self.backward_communication(kernel, steps)
            elif isinstance(kernel, Attention) and steps.ring is not None:
                self.ring_backward(steps.ring, kernel)
            elif isinstance(kernel, Attention):
                self.attend(kernel)
            elif isinstance(kernel, Matmul):
                self.input_gradient(kernel, steps)
                if kernel.operation in steps.weights and not steps.is_summed(kernel.operation):
                    self.compute(steps.weights.pop(kernel.operation))
            else:
                self.compute(kernel)
        self.compute(*steps.weights.values(), *steps.others)

    def input_gradient(self, kernel: Matmul, steps: "_Backward") -> None:
        """A product of a backward with what is gathered for it or for its weight's gradient.

        It goes in pieces with the sum of its result where no weight gradient is there to run beside
        that sum.
        """
        again = steps.found.get((kernel.operation, "input again"))
        gather = steps.found.get((kernel.operation, "result gradient"))
        total = None
        if self.pipelined and kernel.operation not in steps.weights:
            total = steps.found.get((kernel.operation, "input gradient"))
        begun = None
        if again is not None:
            begun = self.begin(again)
            if self.plan.tp_overlap == "none":
                self.wait(begun)
                begun = None
        if gather is not None and self.pipelined:
            self.after_gather(kernel, gather)
        elif total is not None:
            self.before_sum(kernel, total)
        else:
            self.compute(kernel)
        if begun is not None:
            self.wait(begun)

    def backward_communication(self, kernel: Communication, steps: "_Backward") -> None:
        if kernel.carries == "input again" or kernel is steps.ring:
            return  # written with its product, or with its attention
        in_pieces = (
            self.pipelined and kernel.dimension == "tp" and kernel.operation in steps.products
        )
        if in_pieces and kernel.carries == "result gradient":
            return  # written in pieces with its product
        if kernel.carries == "input gradient" and kernel.operation in steps.weights:
            begun = self.begin(kernel)
            if self.plan.tp_overlap == "none":
                self.wait(begun)
            self.compute(steps.weights.pop(kernel.operation))
            if self.plan.tp_overlap != "none":
                self.wait(begun)
        elif not (in_pieces and kernel.beside is not None):
            self.communicate(kernel)

    def ring_backward(self, ring: Communication, attention: Attention) -> None:
        """Keys and values go round once more, and their gradients after them, home with the last
        message."""
        travelling, half = None, ring.size_bytes / 2
        for step, share in enumerate(self.share):
            keys = (
                self.begin(ring, f"{ring.name} {step}", size_bytes=half)
                if step < ring.steps
                else None
            )
            self.attend_piece(attention, step, share)
            if travelling is not None:
                self.wait(travelling)
            if step:
                travelling = self.begin(ring, f"{ring.name} gradients {step}", size_bytes=half)
            if keys is not None:
                self.wait(keys)
        if travelling is not None:
            self.wait(travelling)


class _Backward:
    """The kernels of a unit's backward by what they do, while its pieces are written."""

    def __init__(self, kernels: LayerKernels, with_weights: bool) -> None:
        communications = [k for k in kernels.input_grad if isinstance(k, Communication)]
        self.found: dict[tuple[OperationKind, Carries], Communication] = {
            (kernel.operation, kernel.carries): kernel for kernel in communications
        }
        self.ring = next((kernel for kernel in communications if kernel.kind == "ring"), None)
        self.products = {k.operation for k in kernels.input_grad if isinstance(k, Matmul)}
        made = kernels.weight_grad if with_weights else []
        # the products that make weight gradients and are still to be written, and all other kernels
        self.weights = {kernel.operation: kernel for kernel in made if isinstance(kernel, Matmul)}
        self.others = [kernel for kernel in made if not isinstance(kernel, Matmul)]

    def is_summed(self, product: OperationKind) -> bool:
        """Whether the gradient of the product's input is summed or scattered."""
        return (product, "input gradient") in self.found
