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
