"""All-reduce, five ways. S is each rank's buffer, in bytes; n the ranks."""

from collections.abc import Sequence
from itertools import product

from simlab.collectives.others import ring_all_gather, ring_reduce_scatter
from simlab.collectives.transfer import Part, Rounds, Transfer
from simlab.errors import InputError, require_amount, require_whole


def ring_all_reduce(ranks: Sequence[int], size_bytes: float) -> Rounds:
    """Reduce-scatter round the ring, then all-gather: 2 (n-1) rounds of S / n. The best for large
    buffers, and for any n."""
    return ring_reduce_scatter(ranks, size_bytes) + ring_all_gather(ranks, size_bytes, shift=1)


def tree_all_reduce(ranks: Sequence[int], size_bytes: float) -> Rounds:
    """Up a binomial tree, adding, and down again: 2 ceil(log2 n) rounds of the whole buffer. For
    small buffers.

    (NCCL's tree is two interleaved binary trees, pipelined in chunks; this is the textbook's, each
    round of which carries all of S.)
    """
    n, up, have = len(ranks), [], 1
    while have < n:
        up.append(
            [
                Transfer(ranks[r + have], ranks[r], size_bytes, (0,), True)
                for r in range(min(have, n - have))
            ]
        )
        have *= 2
    down = [
        [Transfer(t.destination, t.source, t.size_bytes, t.parts) for t in transfers]
        for transfers in up
    ]
    return up[::-1] + down


def halving_doubling_all_reduce(ranks: Sequence[int], size_bytes: float) -> Rounds:
    """Recursive halving, then doubling: 2 log2 n rounds; S (n-1)/n each way, as the ring's, in
    fewer rounds. n a power of 2.

    In round k of the halving, counted from 0, ranks n / 2^(k+1) apart in `ranks` exchange the halves
    of what they have; the doubling goes back. So the largest pieces go to the farthest rank. MPI and
    Gloo begin with the nearest rank instead (vector halving and distance doubling: Rabenseifner 2004;
    Thakur et al. 2005); `ranks` in bit-reversed order give that.
    """
    n = len(ranks)
    if n & (n - 1):
        lower = 1 << (n.bit_length() - 1)
        raise InputError(
            f"halving-doubling on {n} ranks: it pairs them off, so give a power of 2, such as {lower} or {2 * lower}"
        )
    halving: Rounds = []
    parts_of: list[tuple[Part, ...]] = [tuple(range(n)) for _ in range(n)]
    distance = n // 2
    while distance:
        transfers: list[Transfer] = []
        kept: list[tuple[Part, ...]] = []
        for r in range(n):
            middle = len(parts_of[r]) // 2
            halves = parts_of[r][:middle], parts_of[r][middle:]
            mine, theirs = halves if not r & distance else halves[::-1]
            transfers.append(
                Transfer(ranks[r], ranks[r ^ distance], size_bytes * len(theirs) / n, theirs, True)
            )
            kept.append(mine)
        halving.append(transfers)
        parts_of, distance = kept, distance // 2
    doubling = []
    for transfers in reversed(halving):  # each gives back the sums of what it was sent
        doubling.append(
            [Transfer(t.destination, t.source, t.size_bytes, t.parts) for t in transfers]
        )
    return halving + doubling


def hierarchical_all_reduce(nodes: Sequence[Sequence[int]], size_bytes: float) -> Rounds:
    """Within each node a reduce-scatter, between the nodes an all-reduce of each part, within each
    node an all-gather.

    nodes: [[ranks of a node]], all of the same size g. 2 (g-1) rounds of S / g inside, 2 (N-1)
    rounds of S / (g N) between.
    """
    sizes = {len(node) for node in nodes}
    if len(sizes) != 1:
        raise InputError(
            f"nodes of {sorted(sizes)} ranks: a hierarchical all-reduce needs as many in each"
        )
    (g,), count = sizes, len(nodes)

    def inside(rounds_of_nodes: Sequence[Rounds]) -> Rounds:
        # in pieces as the rounds between have them: (part, piece)
        together = [[t for rounds in rounds_of_nodes for t in rounds[k]] for k in range(g - 1)]
        return [
            [t._replace(parts=tuple(product(t.parts, range(count)))) for t in transfers]
            for transfers in together
        ]

    between = []
    for k in range(2 * (count - 1)):
        transfers = []
        for place in range(g):
            part = (place + 1) % g  # what the reduce-scatter left on this place
            column = [node[place] for node in nodes]
            for t in ring_all_reduce(column, size_bytes / g)[k]:
                transfers.append(t._replace(parts=tuple((part, piece) for piece in t.parts)))
        between.append(transfers)
    first = inside([ring_reduce_scatter(node, size_bytes) for node in nodes])
    last = inside([ring_all_gather(node, size_bytes, shift=1) for node in nodes])
    return first + between + last


def star_all_reduce(ranks: Sequence[int], size_bytes: float) -> Rounds:
    """All send their buffer to the first rank, which adds them up and sends the sum to all: 2
    rounds, (n-1) S through one port each way.

    The way that "gather, then broadcast" describes. (torch's DataParallel does it on GPUs without
    NCCL; with it, the root's reduce and broadcast are pipelined along a ring.)
    """
    root, *others = ranks
    up = [Transfer(rank, root, size_bytes, (0,), True) for rank in others]
    down = [Transfer(root, rank, size_bytes, (0,)) for rank in others]
    return [up, down] if others else []


def all_reduce_rounds(
    algorithm: str, ranks: Sequence[int], size_bytes: float, *, nodes: int = 2
) -> Rounds:
    """The rounds of the all-reduce `algorithm`: a key of `ALL_REDUCE`, or 'hierarchical', with
    `ranks` divided into `nodes` nodes."""
    require_amount("size_bytes", size_bytes)
    require_whole("nodes", nodes)
    if algorithm == "hierarchical":
        each, rest = divmod(len(ranks), nodes)
        if rest or not each:
            raise InputError(
                f"{len(ranks)} ranks on {nodes} nodes: a hierarchical all-reduce needs as many in each, so give a multiple"
            )
        return hierarchical_all_reduce(
            [list(ranks[at * each : (at + 1) * each]) for at in range(nodes)], size_bytes
        )
    if not isinstance(algorithm, str) or algorithm not in ALL_REDUCE:
        raise InputError(
            f"no all-reduce {algorithm!r}; there is {', '.join((*ALL_REDUCE, 'hierarchical'))}"
        )
    return ALL_REDUCE[algorithm](ranks, size_bytes)


ALL_REDUCE = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
    "star": star_all_reduce,
}
