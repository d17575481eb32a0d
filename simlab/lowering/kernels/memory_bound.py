"""Kernels that the memory bounds, as fused kernels or as torch's own ops move their bytes."""

from collections.abc import Sequence

from simlab.layer.operation import Operation, OperationKind, Tensor
from simlab.layer.saved import Share
from simlab.lowering.kernels.kernel import Memory
from simlab.spec.model import Model
from simlab.spec.plan import Plan

EAGER = {
    OperationKind.NORM: 9,
    OperationKind.LAST_NORM: 9,
    OperationKind.ROTARY: 5,
    OperationKind.ACTIVATION: 10 / 6,
}
"""{operation: how many times the bytes of a fused kernel torch's own ops move}, of a Llama layer.

RMSNorm casts to fp32, squares, takes the mean, scales twice and casts back: 36 bytes an element
instead of 4. Rotary embedding casts, multiplies complex numbers and casts back: 20 bytes instead of
4. The gated activation stores its first half: 10 bytes instead of 6.
"""


CHUNK = 128
"""The tokens of a chunk of a scan (`chunk_size` of `MambaMixer` in megatron/core/ssm/mamba_mixer.py)."""


def is_one_kernel(operation: OperationKind, model: Model, plan: Plan) -> bool:
    """Whether a norm, an activation or a rotary embedding is one kernel: where `plan` has fused
    kernels. The norm and the activation of a GPT are one op in torch, too. nanotron has kernels for
    norms and rotary embedding, but not for the gated activation (`GLUActivation` in
    nanotron/models/llama.py)."""
    if model.has_bias("norm"):
        return True
    return plan.fused and (operation != OperationKind.ACTIVATION or plan.habits.fuses_activation)


def memory_kernel(
    operation: Operation, tensors: Sequence[Tensor], model: Model, plan: Plan, share: Share
) -> Memory:
    """What reads and writes each number of some tensors once, or what torch's own ops move in its
    stead where an operation is not one kernel."""
    moved = sum(share.size_bytes(its, plan.element_bytes) for its in tensors)
    kind = operation.kind
    if kind in EAGER and not is_one_kernel(kind, model, plan):
        moved *= EAGER[kind]
    return Memory(operation.label, moved, kind)


def scan_kernels(operation: Operation, model: Model, plan: Plan, share: Share) -> list[Memory]:
    """The convolution, the scan over chunks of `CHUNK` tokens and the gated norm of a state space, as the
    kernels of mamba_ssm move bytes (`mamba_split_conv1d_scan_combined` in ops/triton/ssd_combined.py).

    The forward of the scan has four kernels. Each chunk's own state is made from x and B, in fp32; the
    states are passed from chunk to chunk, and then have 16 bits; the products of B and C within a chunk
    are made, in fp32; and the result is read from these and the states. The backward convolves anew and
    makes states and products once more. Then it makes the gradients of the states, passes them back, and
    makes, each by a kernel, those of x, of B, of C, of the products, twice those of these products' factors,
    and those of the decays. Where several heads have a B or C in common, its gradient is first made in fp32.
    Leaves out: numbers that there is one of for each token and head, what the second to last product of a
    chunk reads twice, and the products themselves, 2 n p + c (p + n / heads of a group) multiplications of a
    token and head in a chunk of c, which are taken to hide behind the bytes.
    """
    gate, mixed, _ = map(share.numbers, operation.reads)
    x, b, wide = gate, (mixed - gate) / 2, plan.element_bytes
    states, products = x * model.state_size / CHUNK, b * CHUNK / model.state_size
    forward = wide * (3 * x + 4 * b + 2 * states) + 4 * (2 * states + 2 * products)
    backward = wide * (11 * x + 11 * b + 5 * states) + 4 * (6 * states + 7 * products + 4 * b)
    return [
        Memory(name, moved, operation.kind, grad_bytes=grad)
        for name, moved, grad in (
            ("convolution", 2 * wide * mixed, 5 * wide * mixed),
            ("scan", forward, backward),
            ("gated norm", 3 * wide * x, 5 * wide * x),
        )
    ]
