"""What tensor-parallel ranks gather before an operation, and sum up after it.

The matrices of a layer come in pairs (Shoeybi et al. 2019, section 3): the first is cut by columns,
so that its product needs no communication, and the second by rows, whose partial products are
summed over the group. With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) the input
of the first is gathered, and the sum of the second is scattered.
"""

from collections.abc import Sequence

from simlab.layer.operation import Cut, Operation, OperationKind, Tensor


def gathers(operation: Operation, *, spreads_experts: bool) -> bool:
    """Whether an operation computes all tokens and not a rank's own ones only: a product whose outputs
    are cut, the copy of latent attention's keys, and a router of experts that ranks cut.
    spreads_experts: whether tensor-parallel ranks have experts of their own."""
    if operation.kind is OperationKind.ROUTER:
        return not spreads_experts
    if operation.kind is OperationKind.COPY:
        return True
    return cuts_outputs(operation) and operation.weights[0].cut is not Cut.EXPERTS


def cuts_outputs(operation: Operation) -> bool:
    """Whether tensor-parallel ranks have some of a product's outputs each, so that each makes a part of the
    sum that is its input's gradient."""
    matrices = [its for its in operation.weights[:1] if its.columns > 1]
    cuts = (Cut.HEADS, Cut.COLUMNS, Cut.EXPERTS)
    return any(its.cut in cuts and not its.by_columns for its in matrices)


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


def exchanged(operations: Sequence[Operation]) -> list[list[Tensor]]:
    """[what ranks exchange before each operation]: tensors that one makes with a rank's heads of all tokens
    and another reads with all heads of a rank's tokens, or the other way round."""
    found, made = [], dict[str, Tensor]()
    cuts = {Cut.HEADS, Cut.TOKENS}
    for its in operations:
        recut = (n.name for n in its.reads if n.name in made and {n.cut, made[n.name].cut} == cuts)
        found.append([made[name] for name in recut])
        made.update((n.name, n) for n in its.makes)
    return found


def is_partial(operation: Operation, *, spreads_experts: bool) -> bool:
    """Whether each tensor-parallel rank makes a part of a sum, as in an embedding, of which each has some
    rows, and in a product whose inputs are cut."""
    if operation.kind is OperationKind.EMBEDDING:
        return True
    return any(
        its.by_columns and not (its.cut is Cut.EXPERTS and spreads_experts)
        for its in operation.weights
    )


def sums(operations: Sequence[Operation], *, spreads_experts: bool) -> list[Operation | None]:
    """[the operation whose parts of a sum the ranks sum up before each one, None where they do not]. The
    sum is read by the addition of a skipped path, by a norm before that, and by the addition of shared
    experts to routed ones that are whole. Behind it, where no operation reads it, comes that of the last operation."""
    found: list[Operation | None] = []
    partial: Operation | None = None
    for its in operations:
        adds_shared = its.kind is OperationKind.SHARED_DOWN and not its.weights
        sum_is_read = its.kind in (OperationKind.RESIDUAL, OperationKind.NORM)
        needed = spreads_experts if adds_shared else sum_is_read
        found.append(partial if needed else None)
        if needed:
            partial = None
        if is_partial(its, spreads_experts=spreads_experts):
            partial = partial or its
    return [*found, partial]
