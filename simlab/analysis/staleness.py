"""What training without a flush costs: versions of the weights."""

from typing import NamedTuple


class Staleness(NamedTuple):
    """Per rank, where every backward is followed by an update of its stage's weights.

    weight_versions: the most versions kept at once, so that a microbatch's backward sees the weights of its forward
                     ("weight stashing"): p - rank for PipeDream.
    staleness:       the most updates between a microbatch's forward and the update with its gradient: p - 1 - rank.
    """

    weight_versions: list[int]
    staleness: list[int]


def staleness(program):
    """`Staleness` of `program`, as if weights changed after each B (or W). (Narayanan et al. 2019, PipeDream, SOSP.)"""
    ranks = [_rank(ops) for ops in program.ranks]
    return Staleness([versions for versions, _ in ranks], [late for _, late in ranks])


def _rank(ops):
    updates, version_of, most, late = {}, {}, 0, 0
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
