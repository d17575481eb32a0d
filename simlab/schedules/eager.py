"""Eager 1F1B: more forwards ahead, to hide the time that messages take."""

from simlab.program import Program
from simlab.schedules.ordering import numbered


def eager_1f1b(ranks, microbatches):
    """1F1B with twice the warm-up, 2 (p - 1 - r) forwards (Zhuang et al. 2022, arXiv 2211.05322).

    With free communication it takes as long as 1F1B. With slow links a rank still has forwards to run while a
    gradient is on its way. It holds min(m, 2 (p - r) - 1) microbatches for that.
    """
    return Program([_rank(rank, ranks, microbatches) for rank in range(ranks)], name="eager-1f1b")


def _rank(rank, ranks, microbatches):
    warmup = min(microbatches, 2 * (ranks - 1 - rank))
    forward, backward = (rank, "F"), (rank, "B")
    return numbered([forward] * warmup + [forward, backward] * (microbatches - warmup) + [backward] * warmup, microbatches)
