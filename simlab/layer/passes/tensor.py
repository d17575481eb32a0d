"""What tensor-parallel ranks gather before an operation, and sum up after it.

The matrices of a layer come in pairs (Shoeybi et al. 2019, section 3): the first is cut by columns,
so that its product needs no communication, and the second by rows, whose partial products are
summed over the group. With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) the input
of the first is gathered, and the sum of the second is scattered.
"""

from collections.abc import Sequence

from simlab.layer.operation import Cut, Operation, OperationKind


def gathers(operation: Operation, *, spreads_experts: bool) -> bool:
    """Whether an operation computes all tokens and not a rank's own ones only: a product whose outputs
    are cut, the copy of latent attention's keys, and a router of experts that ranks cut.
    spreads_experts: whether tensor-parallel ranks have experts of their own."""
    if operation.kind is OperationKind.ROUTER:
        return not spreads_experts
    if operation.kind is OperationKind.COPY:
        return True
    matrices = [its for its in operation.weights[:1] if its.columns > 1]
    return any(its.cut in (Cut.HEADS, Cut.COLUMNS) and not its.by_columns for its in matrices)


def keeping_gathered(operations: Sequence[Operation], *, spreads_experts: bool) -> list[Operation]:
    """Operations that save what was gathered for them, and not a rank's part of it."""
    found = []
    for its in operations:
        if gathers(its, spreads_experts=spreads_experts):
            whole = (
                saved._replace(cut=Cut.WHOLE) if saved.cut is Cut.TOKENS else saved
                for saved in its.saves
            )
            its = its._replace(saves=tuple(whole))
        found.append(its)
    return found
