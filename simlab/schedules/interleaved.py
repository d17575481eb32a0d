"""It orders interleaved 1F1B and looped BFS, which put several stages ("chunks") on each rank.

Rank r of p holds the stages r, r + p, r + 2p, ...
"""

from collections.abc import Sequence
from itertools import accumulate
from math import inf

from simlab.errors import InputError
from simlab.program import Op, Program
from simlab.schedules.schedule import Case, Schedule


def interleaved_1f1b(
    ranks: int, microbatches: int, chunks: int = 2, group: int | None = None
) -> Program:
    """Interleaved 1F1B: 1F1B over `chunks` stages per rank.

    Microbatches go in groups of g. A rank runs the forwards of a group through its first chunk, then
    through its second, and so on; it runs the backwards through the chunks from the last to the
    first. A rank warms up with (v - 1) g + 2 (p - 1 - r) forwards, where v is the number of chunks.
    Each chunk takes 1/v of the time. So with equal stages, free communication and g = p the bubble
    is (p - 1)(F + B) / v. In return there are v times as many messages, and rank 0 holds
    (p v + p - 1) / v microbatches.

    chunks: the number of stages per rank, v.
    group:  the number of microbatches of a group, g, which is at least p. It is Megatron's
            microbatch_group_size_per_vp_stage. Microbatches that are left over form a last, smaller
            group, which must have at least p, too. None makes m // p groups that are as equal as
            possible, the larger ones first. These are groups of p if m is a multiple of p, as in
            Megatron, and of m / (m // p) if that is a whole number, as in torch.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2. Raises `InputError` if a group
    has fewer than p microbatches.
    """
    sizes = _group_sizes(ranks, microbatches, group)
    return Program(
        [_rank(rank, ranks, chunks, sizes) for rank in range(ranks)], name="interleaved-1f1b"
    )


def _group_sizes(ranks: int, microbatches: int, group: int | None) -> list[int]:
    """The number of microbatches of each group."""
    if group is None:
        groups = max(1, microbatches // ranks)
        size, larger = divmod(microbatches, groups)
        return [size + 1] * larger + [size] * (groups - larger)
    if group < ranks:
        raise InputError(
            f"groups of {group} microbatches on {ranks} ranks: ranks would wait within a group; give at least {ranks}"
        )
    left_over = microbatches % group
    if microbatches > group and 0 < left_over < ranks:
        fewer, more = microbatches - left_over, microbatches - left_over + ranks
        raise InputError(
            f"{microbatches} microbatches in groups of {group} leave a last group of {left_over}, fewer than the {ranks} ranks: "
            f"give {fewer} or {more} microbatches, or another group size"
        )
    return [group] * (microbatches // group) + [left_over] * (left_over > 0)


def _rank(rank: int, ranks: int, chunks: int, sizes: Sequence[int]) -> list[Op]:
    firsts = [0, *accumulate(sizes)]

    def grouped(chunk_order: Sequence[int], kind: str) -> list[Op]:
        return [
            Op(chunk * ranks + rank, kind, microbatch)
            for first, size in zip(firsts, sizes)
            for chunk in chunk_order
            for microbatch in range(first, first + size)
        ]

    forwards, backwards = grouped(range(chunks), "F"), grouped(range(chunks)[::-1], "B")
    warmup = min(len(forwards), (chunks - 1) * max(sizes) + 2 * (ranks - 1 - rank))
    steady = [op for pair in zip(forwards[warmup:], backwards) for op in pair]
    return forwards[:warmup] + steady + backwards[len(forwards) - warmup :]


def looped_bfs(ranks: int, microbatches: int, chunks: int = 2) -> Program:
    """Looped breadth first: all microbatches go through one chunk before the next one, and all
    backwards follow in reverse order.

    This is GPipe over `chunks` stages per rank. The bubble is (p - 1)(F + B) / v, where v is the
    number of chunks, and a rank holds the activations of all m microbatches in all v chunks. In
    return the parameters of each chunk are needed in only one stretch of the forwards and one of the
    backwards, and its gradients become complete once.

    Source: Lamy-Poirier 2023, arXiv 2211.05953.
    """
    program = [
        [
            Op(chunk * ranks + rank, "F", microbatch)
            for chunk in range(chunks)
            for microbatch in range(microbatches)
        ]
        for rank in range(ranks)
    ]
    return Program(
        [ops + [Op(op.stage, "B", op.microbatch) for op in reversed(ops)] for ops in program],
        name="looped-bfs",
    )


def _bubble_s(c: Case) -> float | None:
    """With groups of p microbatches, that of GPipe with ranks as small as stages."""
    return (c.p - 1) * (c.f + c.b) / c.v if c.m >= c.p and c.m % c.p == 0 else None


INTERLEAVED_1F1B = Schedule(
    "interleaved-1f1b",
    interleaved_1f1b,
    _bubble_s,
    in_flight=lambda p, m, v: min(m * v, 2 * (p - 1) + (v - 1) * p + 1),
    beside=inf,
    steady=True,
    searched=True,
)
LOOPED_BFS = Schedule("looped-bfs", looped_bfs, _bubble_s, in_flight=lambda p, m, v: m * v)
