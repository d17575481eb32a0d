"""All-gather, reduce-scatter, broadcast, all-to-all. S is the whole buffer: what each rank has in
the end, or had at first."""

from collections.abc import Sequence

from simlab.collectives.transfer import Rounds, Transfer


def ring_reduce_scatter(ranks: Sequence[int], size_bytes: float) -> Rounds:
    """n - 1 rounds: in each, every rank passes one n-th of the buffer on to the next rank, which
    adds its own part to it.

    Rank r ends up with the sum of part (r + 1) mod n. (Thakur, Rabenseifner, Gropp 2005; "bandwidth
    optimal": S (n-1)/n per link.)
    """
    n = len(ranks)
    return [
        [
            Transfer(ranks[r], ranks[(r + 1) % n], size_bytes / n, ((r - k) % n,), True)
            for r in range(n)
        ]
        for k in range(n - 1)
    ]


def ring_all_gather(ranks: Sequence[int], size_bytes: float, *, shift: int = 0) -> Rounds:
    """n - 1 rounds: in each, every rank passes on the part that it got in the round before, at
    first its own, (r + shift) mod n."""
    n = len(ranks)
    return [
        [
            Transfer(ranks[r], ranks[(r + 1) % n], size_bytes / n, ((r + shift - k) % n,))
            for r in range(n)
        ]
        for k in range(n - 1)
    ]


def broadcast(ranks: Sequence[int], size_bytes: float) -> Rounds:
    """From the first of `ranks` along a binomial tree: ceil(log2 n) rounds, in each of which those
    who have it double."""
    n, rounds, have = len(ranks), [], 1
    while have < n:
        rounds.append(
            [
                Transfer(ranks[r], ranks[r + have], size_bytes, (0,))
                for r in range(min(have, n - have))
            ]
        )
        have *= 2
    return rounds


def all_to_all(ranks: Sequence[int], size_bytes: float) -> Rounds:
    """n - 1 rounds: in round k every rank sends the part for the rank k places on. S / n each, to
    each other rank."""
    n = len(ranks)
    return [
        [Transfer(ranks[r], ranks[(r + k) % n], size_bytes / n, ((r + k) % n,)) for r in range(n)]
        for k in range(1, n)
    ]
