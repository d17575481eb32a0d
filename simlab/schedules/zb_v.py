"""It orders ZB-V, which places stages in a V: rank r of p holds the stages r and 2p - 1 - r.

So the last stage is on the rank of the first stage.
"""

from simlab.program import Op, Program
from simlab.schedules.ordering import numbered
from simlab.schedules.schedule import Schedule


def zb_v(ranks: int, microbatches: int) -> Program:
    """ZB-V: there is no bubble if F = I = W, and every rank holds as much as the first one in 1F1B.

    The loss is computed on rank 0, which can begin the backward of a microbatch at once. With fewer
    than 2p - 1 microbatches, the order is the pattern for 2p - 1 without the ops of the missing
    ones. It is valid, but it has a bubble.

    Source: Qi et al. 2023, arXiv 2401.10241.
    """
    return Program([_zb_v_rank(rank, ranks, microbatches) for rank in range(ranks)], name="zb-v")


def _zb_v_rank(rank: int, ranks: int, microbatches: int) -> list[Op]:
    pattern = max(microbatches, 2 * ranks - 1)
    down, up = rank, 2 * ranks - 1 - rank
    f0, i0, w0, f1, i1, w1 = [(stage, kind) for stage in (down, up) for kind in "FIW"]
    later = ranks - 1 - rank  # ranks below this one
    warmup = [f0] * (2 * later + 1) + [f1, f0] * rank + [f1, i1, w1] * (later + 1)
    steady = [f0, i0, w0, f1, i1, w1] * (pattern - 2 * ranks + rank + 1) + [
        i0,
        w0,
        f1,
        i1,
        w1,
    ] * later
    return numbered(
        warmup + steady + [i0, i1] * rank + [i0, w0] * (later + 1) + [w1] * rank + [w0] * rank,
        microbatches,
    )


ZB_V = Schedule("zb-v", zb_v, lambda c: 0.0 if c.f == c.i == c.w and c.m >= 2 * c.p - 1 else None)
