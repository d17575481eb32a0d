"""It orders Eager 1F1B, whose additional forwards overlap with the messages of slow links."""

from math import inf

from simlab.program import Op, Program
from simlab.schedules.ordering import numbered
from simlab.schedules.schedule import Schedule


def eager_1f1b(ranks: int, microbatches: int) -> Program:
    """Eager 1F1B: rank r warms up with 2 (p - 1 - r) forwards, which is twice as many as in 1F1B.

    With free communication it takes as long as 1F1B. With slow links a rank still has forwards to
    run while a gradient is on its way. In return it holds min(m, 2 (p - r) - 1) microbatches.

    Source: Zhuang et al. 2022, arXiv 2211.05322.
    """
    return Program([_rank(rank, ranks, microbatches) for rank in range(ranks)], name="eager-1f1b")


def _rank(rank: int, ranks: int, microbatches: int) -> list[Op]:
    warmup = min(microbatches, 2 * (ranks - 1 - rank))
    forward, backward = (rank, "F"), (rank, "B")
    return numbered(
        [forward] * warmup + [forward, backward] * (microbatches - warmup) + [backward] * warmup,
        microbatches,
    )


EAGER_1F1B = Schedule("eager-1f1b", eager_1f1b, lambda c: (c.p - 1) * (c.f + c.b), beside=inf)
