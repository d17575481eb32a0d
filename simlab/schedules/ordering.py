"""Orders written as phases: lists of (stage, kind), to which the microbatches are then dealt out in turn."""

from collections import deque

from simlab.program import Op


def numbered(phases, microbatches):
    """The ops of one rank: each (stage, kind) of `phases` with the next microbatch of that stage and direction.

    B and I are both "the backward" and share a count per stage. W takes the oldest microbatch of its stage whose I has
    run and whose W has not; with the stage None, the oldest of any stage. Ops of microbatches beyond the last one
    are left out: a pattern made for more microbatches serves fewer.
    """
    counts, pending, ops = {}, {}, []  # the first by (stage, direction); the second by stage: (the place of its I, microbatch)
    for at, (stage, kind) in enumerate(phases):
        if kind == "W":
            if stage is None:
                stage = min((queue[0], stage) for stage, queue in pending.items() if queue)[1]
            _, microbatch = pending[stage].popleft()
        else:
            direction = (stage, "F" if kind == "F" else "B")
            microbatch = counts.get(direction, 0)
            counts[direction] = microbatch + 1
            if kind == "I":
                pending.setdefault(stage, deque()).append((at, microbatch))
        if microbatch < microbatches:
            ops.append(Op(stage, kind, microbatch))
    return ops
