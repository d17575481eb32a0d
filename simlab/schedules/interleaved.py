"""Several stages per rank, dealt out in turn: rank r of p holds the stages r, r + p, r + 2p, ... ("chunks")."""

from simlab.errors import InputError
from simlab.program import Op, Program


def interleaved_1f1b(ranks, microbatches, chunks=2):
    """1F1B over `chunks` stages per rank (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2).

    Microbatches go in groups of g: the group's forwards through the rank's first chunk, then through its second, and
    so on; its backwards through the chunks from the last. A rank warms up with (v - 1) g + 2 (p - 1 - r) forwards.
    Each chunk takes 1/v of the time, so with equal stages, free communication and g = p the bubble is
    (p - 1)(F + B) / v, for v times the messages and (p v + p - 1) / v microbatches held on rank 0.

    g is p where m is a multiple of it (Megatron); else m / (m // p), if that is whole (torch's relaxation, the same
    order). Any other m is an `InputError`: a ragged last group would make ranks wait for each other in a circle.
    """
    groups = max(1, microbatches // ranks)
    if microbatches % groups:
        fitting = [m for m in range(max(1, microbatches - ranks), microbatches + ranks) if m % max(1, m // ranks) == 0]
        near = sorted(fitting, key=lambda m: abs(m - microbatches))[:2]
        raise InputError(
            f"{microbatches} microbatches do not fall into {groups} equal groups of at least {ranks} (the stages per chunk): "
            f"interleaved-1f1b takes e.g. {' or '.join(map(str, sorted(near)))}"
        )
    group = microbatches // groups
    return Program([_rank(rank, ranks, microbatches, chunks, group) for rank in range(ranks)], name="interleaved-1f1b")


def _rank(rank, ranks, microbatches, chunks, group):
    def grouped(chunk_order, kind):
        return [
            Op(chunk * ranks + rank, kind, microbatch)
            for first in range(0, microbatches, group)
            for chunk in chunk_order
            for microbatch in range(first, first + group)
        ]

    forwards, backwards = grouped(range(chunks), "F"), grouped(range(chunks)[::-1], "B")
    warmup = min(len(forwards), (chunks - 1) * group + 2 * (ranks - 1 - rank))
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
    return Program([ops + [op._replace(kind="B") for op in reversed(ops)] for ops in program], name="looped-bfs")
