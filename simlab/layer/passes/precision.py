"""In which form the inputs of products are kept."""

from collections.abc import Sequence

from simlab.layer.operation import Cut, Operation, OperationKind

PRODUCTS = (
    OperationKind.QKV,
    OperationKind.Q_DOWN,
    OperationKind.KV_DOWN,
    OperationKind.OUTPUT,
    OperationKind.UP,
    OperationKind.DOWN,
    OperationKind.SHARED_UP,
    OperationKind.SHARED_DOWN,
)
"""The products that save a cast of their input. Leaves out those up from latents, and a router, which
is computed in 16 bits."""


def in_eight_bits(operations: Sequence[Operation], *, copies: bool) -> list[Operation]:
    """Products that save their inputs in 8 bits. What others save of the same tensors, such as
    attention of its result, they save in 16 bits besides. copies: whether the products up of routed
    experts do so, too."""
    found = []
    for its in operations:
        if its.kind in PRODUCTS and (copies or its.reads[0].cut is not Cut.COPIES):
            casts = tuple(saved._replace(number_bytes=1) for saved in its.saves)
            its = its._replace(saves=casts)
        found.append(its)
    return found
