"""It assigns microbatches to the ops of an order that is written as a list of (stage, kind)."""

from collections import deque
from collections.abc import Iterable

from simlab.program import Op


def numbered(phases: Iterable[tuple[int | None, str]], microbatches: int) -> list[Op]:
    """The ops of one rank: each (stage, kind) of `phases` gets the next microbatch of that stage and
    direction.

    B and I are both the backward, so they share one count per stage. A W gets the oldest microbatch
    of its stage whose I has run and whose W has not. If the stage is None, a W gets the oldest such
    microbatch of any stage. Ops of microbatches beyond the last one are left out, so a pattern that
    was made for more microbatches also serves for fewer.
    """
    counts: dict[tuple[int, str], int] = {}  # {(stage, direction): microbatches so far}
    pending: dict[int, deque[tuple[int, int]]] = {}  # {stage: (index of the I, microbatch)}
    ops = []
    for at, (stage, kind) in enumerate(phases):
        if stage is None or kind == "W":
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
