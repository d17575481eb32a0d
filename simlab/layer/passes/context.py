"""What context parallelism makes of attention."""

from collections.abc import Sequence

from simlab.layer.operation import Operation, OperationKind


def gathering(operations: Sequence[Operation], cp: int) -> list[Operation]:
    """Attention that also saves the keys and values of all context-parallel ranks, which it has
    gathered, beside a rank's own."""
    found = []
    for its in operations:
        if its.kind is OperationKind.ATTENTION:
            _, k, v = its.reads
            numbers, least = cp * (k.numbers + v.numbers), cp * (k.least + v.least)
            of_all = k._replace(name="gathered keys and values", numbers=numbers, least=least)
            its = its._replace(makes=(*its.makes, of_all), saves=(*its.saves, of_all))
        found.append(its)
    return found
