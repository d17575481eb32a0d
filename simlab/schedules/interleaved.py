"""Several stages per rank, dealt out in turn: rank r of p holds the stages r, r + p, r + 2p, ... ("chunks")."""

from itertools import accumulate

from simlab.errors import InputError
from simlab.program import Op, Program


def interleaved_1f1b(ranks, microbatches, chunks=2, group=None):
    """1F1B over `chunks` stages per rank (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2).

    Microbatches go in groups of g: the group's forwards through the rank's first chunk, then through its second, and
    so on; its backwards through the chunks from the last. A rank warms up with (v - 1) g + 2 (p - 1 - r) forwards.
    Each chunk takes 1/v of the time, so with equal stages, free communication and g = p the bubble is
    (p - 1)(F + B) / v, for v times the messages and (p v + p - 1) / v microbatches held on rank 0.

    group: g, at least p (Megatron's microbatch_group_size_per_vp_stage); what is left over is a last, smaller group, which must
           not have fewer than p either. None: m // p groups as equal as can be, the larger ones first: p each where m is a
           multiple of it (Megatron), m / (m // p) where that is whole (torch).
    """
    sizes = _group_sizes(ranks, microbatches, group)
    return Program([_rank(rank, ranks, chunks, sizes) for rank in range(ranks)], name="interleaved-1f1b")


def _group_sizes(ranks, microbatches, group):
    """[microbatches in each group]"""
    if group is None:
        groups = max(1, microbatches // ranks)
        size, larger = divmod(microbatches, groups)
        return [size + 1] * larger + [size] * (groups - larger)
    if group < ranks:
        raise InputError(f"groups of {group} microbatches on {ranks} ranks: ranks would wait within a group; give at least {ranks}")
    left_over = microbatches % group
    if microbatches > group and 0 < left_over < ranks:
        fewer, more = microbatches - left_over, microbatches - left_over + ranks
        raise InputError(
            f"{microbatches} microbatches in groups of {group} leave a last group of {left_over}, fewer than the {ranks} ranks: "
            f"give {fewer} or {more} microbatches, or another group size"
        )
    return [group] * (microbatches // group) + [left_over] * (left_over > 0)


def _rank(rank, ranks, chunks, sizes):
    firsts = [0, *accumulate(sizes)]

    def grouped(chunk_order, kind):
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


def looped_bfs(ranks, microbatches, chunks=2):
    """Breadth first: all microbatches through one chunk before the next, then all backwards in the reverse of that order.

    (Lamy-Poirier 2023, arXiv 2211.05953.)  GPipe over `chunks` stages per rank: the bubble is (p - 1)(F + B) / v, a
    rank holds all m v activations, and each chunk's parameters are needed, and its gradients complete, only once.
    """
    program = [
        [Op(chunk * ranks + rank, "F", microbatch) for chunk in range(chunks) for microbatch in range(microbatches)]
        for rank in range(ranks)
    ]
    return Program([ops + [Op(op.stage, "B", op.microbatch) for op in reversed(ops)] for ops in program], name="looped-bfs")
