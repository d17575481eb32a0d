"""Orders written as phases: lists of (stage, kind), to which the microbatches are then dealt out in turn."""

from collections import deque

from simlab.program import Op


def numbered(phases, microbatches):
    """The ops of one rank: each (stage, kind) of `phases` with the next microbatch of that stage and direction.

    B and I are both "the backward" and share a count per stage. W takes the oldest microbatch of its stage whose I has
    run and whose W has not; with the stage None, the oldest of any stage. Ops of microbatches beyond the last one
    are left out: a pattern made for more microbatches serves fewer.
    """
    counts, pending, ops = {}, deque(), []
    for stage, kind in phases:
        if kind == "W":
            op = next(op for op in pending if stage in (None, op.stage))
            pending.remove(op)
        else:
            direction = (stage, "F" if kind == "F" else "B")
            op = Op(stage, kind, counts.get(direction, 0))
            counts[direction] = op.microbatch + 1
            if kind == "I":
                pending.append(Op(stage, "W", op.microbatch))
        if op.microbatch < microbatches:
            ops.append(op)
    return ops
