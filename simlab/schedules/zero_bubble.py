"""It orders ZB-H1 and ZB-H2, which split the backward into I and W.

Other stages wait for I, the gradient of the input. No other stage waits for W, the gradient of the
weights, so W fills what would be bubble. Source: Qi, Wan, Huang and Lin 2023, arXiv 2401.10241,
which calls our I "B".
"""

from simlab.program import Op, Program
from simlab.schedules.ordering import numbered
from simlab.schedules.schedule import Schedule


def zb_h1(ranks: int, microbatches: int) -> Program:
    """ZB-H1: 1F1B in which rank r runs each W r microbatches later; the bubble is
    (p - 1)(F + I - W).

    The peak memory is 1F1B's. Later ranks hold fewer microbatches, but they also hold what their
    delayed W need: rank r holds (p - r) M_B + r M_W.
    """
    return Program([_rank(rank, ranks, microbatches, 1) for rank in range(ranks)], name="zb-h1")


def zb_h2(ranks: int, microbatches: int) -> Program:
    """ZB-H2: the warm-up and the delay of W are twice those of ZB-H1; the bubble is
    (p - 1)(F + I - 2W).

    If F = I = W, no rank waits between its first and its last op. In return rank 0 holds 2p - 1
    microbatches, nearly twice as many as in 1F1B. The ranks still start one after the other, so the
    makespan contains (p - 1) F. This time is saved only if the optimizer's step does not wait for
    all ranks, which is left out here.
    """
    return Program([_rank(rank, ranks, microbatches, 2) for rank in range(ranks)], name="zb-h2")


def _rank(rank: int, ranks: int, microbatches: int, factor: int) -> list[Op]:
    """The ops of one rank: `factor` x (p - 1 - r) warm-up forwards, then each W `factor` x r
    backwards after its I, and the W that are left at the end."""
    warmup, put_off = min(microbatches, factor * (ranks - 1 - rank)), factor * rank
    phases = [(rank, "F")] * warmup
    for backward in range(microbatches):
        phases += (
            [(rank, "F")] * (backward < microbatches - warmup)
            + [(rank, "I")]
            + [(rank, "W")] * (backward >= put_off)
        )
    return numbered(phases + [(rank, "W")] * min(put_off, microbatches), microbatches)


ZB_H1 = Schedule(
    "zb-h1", zb_h1, lambda c: (c.p - 1) * (c.f + c.i - c.w) if c.fills else None, steady=True
)
ZB_H2 = Schedule(
    "zb-h2", zb_h2, lambda c: (c.p - 1) * (c.f + c.i - 2 * c.w) if c.fills and c.f == c.i else None
)
