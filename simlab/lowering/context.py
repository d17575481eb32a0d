"""Context parallelism over c ranks: which part of a sequence a rank holds, and what of causal
attention it computes at which step.

A causal mask leaves the scores of query i against keys 0 to i: a triangle of s^2 / 2 of s^2. Cut
the sequence into equal chunks: queries of chunk a see all of chunk b < a, half of b = a, nothing of
b > a.

contiguous   rank r holds chunk r of c: r + 1/2 blocks of (s/c)^2. Its share of the triangle, c^2 /
             2 blocks, is (2r + 1) / c^2, and
             over the mean, 1 / c, that is (2r + 1) / c: from 1/c on the first rank to (2c - 1) / c,
             nearly 2, on the last.
zigzag       rank r holds chunks r and 2c - 1 - r of 2c: (r + 1/2) + (2c - 1 - r + 1/2) = 2c blocks
             of (s/2c)^2, the same on every
             rank (Llama 3, Dubey et al. 2024, arXiv 2407.21783, section 3.3.2; zhuzilin's
             ring-flash-attention).

In a ring (Liu et al. 2023, arXiv 2310.01889) rank r has at step i the keys and values of rank r - i
(mod c). Contiguous, that is half a block at step 0, then a whole one or none; somebody has a whole
one at every step, so to go in step saves nothing. Zigzag, it is two blocks of (s/2c)^2 at every
step: two halves and a whole one at step 0, then all queries against the other's early chunk, or the
late queries against both.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from simlab.errors import InputError, require_index, require_whole
from simlab.spec.plan_checks import CP_LAYOUTS


def context_chunks(rank: int, cp: int, layout: str = "zigzag") -> tuple[int, ...]:
    """The chunks of the sequence that `rank` of `cp` holds: of 2 cp with 'zigzag', of cp with
    'contiguous'."""
    if layout not in CP_LAYOUTS:
        raise InputError(f"layout {layout!r}: give one of {', '.join(CP_LAYOUTS)}")
    require_whole("cp", cp)
    require_index("rank", rank, cp)
    return (rank, 2 * cp - 1 - rank) if layout == "zigzag" else (rank,)


def ring_work(cp: int, layout: str = "zigzag") -> list[list[Fraction]]:
    """[[of all unmasked scores, the fraction that rank r computes at step i of the ring] for r], as
    `Fraction`s; all add up to 1."""
    require_whole("cp", cp)
    return [[*its] for its in _ring_work(cp, layout)]


@lru_cache(64)  # every layer of every plan asks for it
def _ring_work(cp: int, layout: str) -> list[list[Fraction]]:
    held = [context_chunks(rank, cp, layout) for rank in range(cp)]
    chunks = cp * len(held[0])
    return [
        [
            Fraction(_half_blocks(held[rank], held[(rank - step) % cp]), chunks**2)
            for step in range(cp)
        ]
        for rank in range(cp)
    ]


def _half_blocks(queries: Sequence[int], keys: Sequence[int]) -> int:
    """How much the mask leaves of the scores of chunks `queries` against chunks `keys`, in halves
    of a block. The whole triangle has as many as there are blocks without a mask."""
    return sum(2 * (b < a) + (b == a) for a in queries for b in keys)


def window_shares(cp: int, layout: str, seq: int, window: int) -> tuple[float, ...]:
    """[of each rank: the pairs of its queries and their keys, over the half of queries x `window` that a
    causal kernel computes] where each query of a sequence meets its own key and those before it, at most
    `window`. The first n queries meet n^2 / 2, and from the window on `window` each. So the middle of the
    sequence meets most, and with it the last rank."""
    size = seq // cp // len(context_chunks(0, cp, layout))

    def pairs(queries: int) -> float:
        return queries**2 / 2 if queries < window else queries * window - window**2 / 2

    return tuple(
        sum(
            pairs(size * (chunk + 1)) - pairs(size * chunk)
            for chunk in context_chunks(rank, cp, layout)
        )
        / (seq // cp * window / 2)
        for rank in range(cp)
    )


def busiest_share(cp: int, layout: str = "zigzag") -> float:
    """What the busiest rank computes of causal attention, over the mean: (2 cp - 1) / cp with
    'contiguous', else 1 (see above)."""
    return (2 * cp - 1) / cp if layout == "contiguous" else 1.0
