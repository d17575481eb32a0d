"""It counts the versions of the weights that training without a flush needs."""

from collections.abc import Sequence
from typing import NamedTuple

from simlab.program import Op, Program


class Staleness(NamedTuple):
    """How old the weights of each rank are if every backward is followed by an update of them.

    weight_versions: [per rank] the most versions of the weights that it keeps at once, so that the
                     backward of a microbatch sees the weights of its forward ("weight stashing").
                     It is p - rank for PipeDream.
    staleness:       [per rank] the most updates between the forward of a microbatch and the update
                     with its gradient. It is p - 1 - rank for PipeDream.
    """

    weight_versions: list[int]
    staleness: list[int]


def staleness(program: Program) -> Staleness:
    """The `Staleness` of `program` if the weights of a stage change after each of its B or W.

    Source: Narayanan et al. 2019, PipeDream, SOSP.
    """
    ranks = [_rank(ops) for ops in program.ranks]
    return Staleness([versions for versions, _ in ranks], [late for _, late in ranks])


def _rank(ops: Sequence[Op]) -> tuple[int, int]:
    """(the most versions kept, the greatest staleness) of a rank that runs `ops`."""
    updates: dict[int, int] = {}
    version_of: dict[tuple[int, int], int] = {}
    most = late = 0
    for stage, kind, microbatch in ops:
        if kind == "F":
            version_of[stage, microbatch] = updates.get(stage, 0)
        elif kind in "BW":
            used = version_of.pop((stage, microbatch))
            late = max(late, updates.get(stage, 0) - used)
            updates[stage] = updates.get(stage, 0) + 1
        kept = {*((stage, version) for (stage, _), version in version_of.items()), *updates.items()}
        most = max(most, len(kept))
    return most, late
