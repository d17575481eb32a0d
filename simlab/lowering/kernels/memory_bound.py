"""Kernels that the memory bounds, as fused kernels or as torch's own ops move their bytes."""

from simlab.layer.operation import OperationKind
from simlab.lowering.kernels.kernel import Memory
from simlab.lowering.kernels.microbatch import sizes
from simlab.lowering.zero import autocasts
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


def is_one_kernel(operation: OperationKind, model: Model, plan: Plan) -> bool:
    """Whether a norm, an activation or a rotary embedding is one kernel: where `plan` has fused
    kernels. The norm and the activation of a GPT are one op in torch, too. nanotron has kernels for
    norms and rotary embedding, but not for the gated activation (`GLUActivation` in
    nanotron/models/llama.py)."""
    if model.bias:
        return True
    return plan.fused and not (plan.library == "nanotron" and operation == OperationKind.ACTIVATION)


def eager(kernel: Memory, model: Model, plan: Plan) -> Memory:
    """`kernel` where it is one, else what torch's own ops move in its stead."""
    if is_one_kernel(kernel.operation, model, plan):
        return kernel
    size_bytes = kernel.size_bytes * EAGER[kernel.operation]
    return Memory(kernel.name, size_bytes, kernel.operation)


SUM_UNDER_AUTOCAST = 4 + 2 + 4
"""Bytes of an element: 16 bits are added to the fp32 of the skipped path."""


def norm_of(name: str, operation: OperationKind, model: Model, plan: Plan) -> list[Memory]:
    """A norm of all that lies outside of tensor parallelism: it reads and writes each element. Under
    autocast it does so in fp32, and the product after it casts that to 16 bits; where a norm is
    several ops, these cast."""
    s = sizes(model, plan)
    if autocasts(plan) and is_one_kernel(operation, model, plan):
        cast = Memory(f"copy of {name} in 16 bits", (4 + 2) * s.outside, OperationKind.COPY)
        return [Memory(name, 2 * 4 * s.outside, operation), cast]
    return [eager(Memory(name, 2 * s.width * s.outside, operation), model, plan)]


def residual(name: str, model: Model, plan: Plan) -> Memory:
    """The addition of a skipped path, with bias and dropout, after attention or the MLP.

    It reads two elements and writes one. Dropout also writes a byte of mask.
    """
    s = sizes(model, plan)
    added = SUM_UNDER_AUTOCAST if autocasts(plan) else 3 * s.width
    return Memory(name, (added + bool(plan.dropout)) * s.outside, OperationKind.RESIDUAL)
