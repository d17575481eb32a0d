"""The short names of what a rank computes inside of a unit, for labels of pictures."""

from collections.abc import Sequence

from simlab.layer.operation import OperationKind
from simlab.lowering.kernels.kernel import Attention, Kernel
from simlab.lowering.pieces import Slice

_ATTENTION = (
    OperationKind.ATTENTION, OperationKind.SCORES, OperationKind.MASK, OperationKind.SOFTMAX, OperationKind.VALUES,
)  # fmt: skip
NAMES = {
    OperationKind.EMBEDDING: "embedding",
    OperationKind.QKV: "QKV",
    **dict.fromkeys(_ATTENTION, "attention"),
    OperationKind.IN_PROJECTION: "scan",
    OperationKind.SCAN: "scan",
    OperationKind.OUTPUT: "output",
    OperationKind.ROUTER: "router",
    OperationKind.UP: "MLP",
    OperationKind.DOWN: "MLP",
    OperationKind.HEAD: "head",
    OperationKind.LOSS: "loss",
}
"""{operation: what a label calls it}. Smaller operations are named where nothing else is there."""


def sub_operations(kernels: Sequence[Kernel | Slice]) -> str:
    """What `kernels` compute, each operation once and in their order: 'QKV, attention'; 'scores 0←3'
    where rank 0 of a ring attends to the keys of rank 3; '' for no kernels."""
    whole = [item.kernel if isinstance(item, Slice) else item for item in kernels]
    named = dict.fromkeys(_name(kernel) for kernel in whole if kernel.operation in NAMES)
    return ", ".join(named or [str(kernel.operation) for kernel in whole[:1]])


def _name(kernel: Kernel) -> str:
    if isinstance(kernel, Attention) and kernel.between is not None:
        return "scores {}←{}".format(*kernel.between)
    return NAMES[kernel.operation]
