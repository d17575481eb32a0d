"""It orders DualPipe and DualPipe-V, which run a forward of one stage beside a backward of another.

Source: DeepSeek-AI 2024, DeepSeek-V3 technical report (arXiv 2412.19437), section 3.2.1. A rank
always works on two microbatches, which come from opposite ends of the pipeline. While it computes
for one of them, it communicates for the other, above all in the all-to-all of mixture-of-experts
layers. Such a pair takes F&B, which is less than F + B. `Program.paired` marks it.
"""

from collections.abc import Mapping, Sequence
from math import inf

from simlab.errors import InputError
from simlab.program import Op, Program
from simlab.schedules.ordering import numbered
from simlab.schedules.schedule import Case, Schedule


def dualpipe(ranks: int, microbatches: int) -> Program:
    """DualPipe: half of the microbatches enter at rank 0, the other half at the last rank.

    Every stage is therefore on two ranks, r and p - 1 - r. Its parameters are stored twice, and the
    gradients of the two copies are summed at the end of the step. Microbatches 0 to m/2 - 1 go from
    rank 0 to the last rank, the others in the opposite direction. With equal stages and free
    communication the bubble is (p/2 - 1)(F&B + B - 3W), and a rank holds p + 1 microbatches.

    Raises `InputError` unless p and m are even and m is at least 2p.
    """
    if ranks % 2 or microbatches % 2 or microbatches < 2 * ranks:
        even = ranks + ranks % 2
        raise InputError(
            f"dualpipe on {ranks} ranks with {microbatches} microbatches: both directions need an even number of ranks, and an "
            f"even number of microbatches, at least 2 per rank, e.g. {even} ranks and {max(2 * even, microbatches + microbatches % 2)}"
        )
    half, programs = microbatches // 2, []
    for rank in range(ranks):
        # This is the distance to the end at which its first microbatch enters.
        near = min(rank, ranks - 1 - rank)
        # {stage: the first microbatch that runs on this rank's copy of it}
        first_of = {rank: 0, ranks - 1 - rank: half}
        programs.append(_numbered(near, ranks // 2, half, (near, ranks - 1 - near), first_of))
    return _program(programs, "dualpipe")


def dualpipe_v(ranks: int, microbatches: int) -> Program:
    """DualPipe-V: rank r holds the stages r and 2p - 1 - r, and the parameters are stored once.

    One rank does here what the ranks r and p - 1 - r of DualPipe do together, with stages of half
    the size (Sea AI Lab's "cut-in-half").

    Raises `InputError` unless there are at least as many microbatches as stages, 2p.
    """
    if microbatches < 2 * ranks:
        raise InputError(
            f"{microbatches} microbatches: dualpipe-v on {ranks} ranks has {2 * ranks} stages and needs at least as many"
        )
    stages = [(rank, 2 * ranks - 1 - rank) for rank in range(ranks)]
    return _program(
        [_numbered(rank, ranks, microbatches, stages[rank], {}) for rank in range(ranks)],
        "dualpipe-v",
    )


def _program(numbered_ranks: Sequence[tuple[list[Op], set[Op]]], name: str) -> Program:
    return Program(
        [ops for ops, _ in numbered_ranks],
        name,
        frozenset().union(*(paired for _, paired in numbered_ranks)),
    )


def _numbered(
    rank: int, ranks: int, microbatches: int, stages: Sequence[int], first_of: Mapping[int, int]
) -> tuple[list[Op], set[Op]]:
    """The ops of one rank, and the forwards among them that are paired.

    first_of: {stage: its first microbatch}; 0 unless given.
    """
    phases, pairs_at = _phases(rank, ranks, microbatches, *stages)
    ops = [
        op._replace(microbatch=op.microbatch + first_of.get(op.stage, 0))
        for op in numbered(phases, microbatches)
    ]
    return ops, {ops[at] for at in pairs_at}


def _phases(
    rank: int, ranks: int, microbatches: int, near: int, far: int
) -> tuple[list[tuple[int | None, str]], list[int]]:
    """The (stage, kind) of each op in order, and the indices at which a pair begins.

    These are the eight steps of DualPipe's published code. `near` is the stage that runs first.
    `rank` counts from the end at which its first microbatch enters to the middle, where the two
    directions meet; `ranks` is the number of ranks up to the middle.
    """
    phase: list[tuple[int | None, str]] = [(stage, kind) for stage in (near, far) for kind in "FBI"]
    f0, b0, i0, f1, b1, i1 = phase
    oldest_w: tuple[int | None, str] = (None, "W")
    later = ranks - 1 - rank
    warmup = [f0] * (2 * later) + [f0, f1] * (rank + 1) + [i1, oldest_w, f1] * later
    steady = [f0, b1, f1, b0] * (microbatches - 2 * ranks + rank + 1) + [b1, f1, b0] * later
    # The backwards of the second half are split into I and W.
    cooldown = ([b1, b0] * (rank + 1))[: rank + 1] + ([i1, i0] * (rank + 1))[rank + 1 :]
    phases = warmup + steady + cooldown + [oldest_w, i0] * later + [oldest_w] * (rank + 1)
    begin, end = len(warmup), len(warmup) + len(steady)
    pairs_at = [at for at in range(begin, end) if phases[at][1] == "F"]
    # On the middle rank the first F and the first B are of the same microbatch, so they are no pair.
    return phases, pairs_at[1:] if later == 0 else pairs_at


def _bubble_s(c: Case, ranks: int, size: float) -> float | None:
    """That of so many ranks in one direction, with stages of `size` of a rank's share.

    The paper's formula says how much longer the step is than the work of a rank with the most pairs.
    The first rank, whose span is the longest, has p/2 - 2 pairs fewer (DualPipe-V has p - 2 fewer, of
    half the size). Each pair that it lacks makes it work longer, and idle less, by F + B - F&B. So
    these times are subtracted here.
    """
    both = c.f + c.b
    if not (c.fills and c.f == c.i and c.b <= c.pair <= both):
        return None
    paper = (ranks - 1) * (c.pair + c.b - 3 * c.w)
    return size * (paper - max(0, ranks - 2) * (both - c.pair))


DUALPIPE = Schedule("dualpipe", dualpipe, lambda c: _bubble_s(c, c.p // 2, 1), beside=inf)
DUALPIPE_V = Schedule("dualpipe-v", dualpipe_v, lambda c: _bubble_s(c, c.p, 1 / 2), beside=inf)
