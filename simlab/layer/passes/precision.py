"""In which form tensors are made and kept."""

from collections.abc import Sequence

from simlab.layer.operation import Cut, Operation, OperationKind, Tensor

UNCAST = (OperationKind.Q_UP, OperationKind.KV_UP, OperationKind.ROUTER, OperationKind.HEAD)
"""The products that save no cast of their input: those up from latents, and a router and the head, which are
computed in 16 bits."""


def cast(operations: Sequence[Operation], number_bytes: float, *, copies: bool) -> list[Operation]:
    """Products that save their inputs in 8 or 4 bits, `number_bytes` of each number. What others save of the same tensors, such as
    attention of its result, they save in 16 bits besides. copies: whether the products up of routed
    experts do so, too."""
    found = []
    for its in operations:
        narrow = its.is_product and its.kind not in UNCAST
        if narrow and (copies or its.reads[0].cut is not Cut.COPIES):
            casts = tuple(saved._replace(number_bytes=number_bytes) for saved in its.saves)
            its = its._replace(saves=casts)
        found.append(its)
    return found


def under_autocast(operations: Sequence[Operation], *, norms: bool) -> list[Operation]:
    """Operations of a unit whose skipped path is in fp32, as torch's autocast leaves it: a sum adds
    the 16 bits of a branch to it. norms: whether norms between them are in fp32, too, and make a copy
    in 16 bits for the product that follows; where a norm is several operations of torch's, these
    cast."""
    found, begins = [], True
    for its in operations:
        if its.kind is OperationKind.RESIDUAL:
            (skipped, *branches), (summed, *masks) = its.reads, its.makes
            its = its._replace(reads=(_fp32(skipped), *branches), makes=(_fp32(summed), *masks))
        elif norms and begins and its.kind in (OperationKind.NORM, OperationKind.LAST_NORM):
            (read,), (made,) = its.reads, its.makes
            its = its._replace(reads=(_fp32(read),), makes=(_fp32(made), made))
        begins = its.kind is OperationKind.RESIDUAL
        found.append(its)
    return found


def _fp32(tensor: Tensor) -> Tensor:
    return tensor._replace(number_bytes=4)
