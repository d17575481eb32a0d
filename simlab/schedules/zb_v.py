"""V-shaped placement: rank r of p holds the stages r and 2p - 1 - r, so the last stage is where the first one is."""

from simlab.program import Program
from simlab.schedules.ordering import numbered


def zb_v(ranks, microbatches):
    """ZB-V (Qi et al. 2023, arXiv 2401.10241): no bubble if F = I = W, and 1F1B's memory on every rank.

    The loss is computed on rank 0, which can begin a microbatch's backward at once. Below 2p - 1 microbatches the
    pattern for 2p - 1 is used with those left out that are not there: valid, but with a bubble.
    """
    return Program([_zb_v_rank(rank, ranks, microbatches) for rank in range(ranks)], name="zb-v")


def _zb_v_rank(rank, ranks, microbatches):
    pattern = max(microbatches, 2 * ranks - 1)
    down, up = rank, 2 * ranks - 1 - rank
    f0, i0, w0, f1, i1, w1 = [(stage, kind) for stage in (down, up) for kind in "FIW"]
    later = ranks - 1 - rank  # ranks below this one
    warmup = [f0] * (2 * later + 1) + [f1, f0] * rank + [f1, i1, w1] * (later + 1)
    steady = [f0, i0, w0, f1, i1, w1] * (pattern - 2 * ranks + rank + 1) + [i0, w0, f1, i1, w1] * later
    return numbered(warmup + steady + [i0, i1] * rank + [i0, w0] * (later + 1) + [w1] * rank + [w0] * rank, microbatches)
