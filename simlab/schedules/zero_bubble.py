"""Zero-bubble schedules: the backward in two parts, I that the other stages wait for and W that nobody does.

Qi, Wan, Huang and Lin 2023, arXiv 2401.10241 (the paper calls our I "B"). W fills what would be bubble.
"""

from simlab.program import Program
from simlab.schedules.ordering import numbered


def zb_h1(ranks, microbatches):
    """1F1B with the W of rank r put off by r microbatches: bubble (p - 1)(F + I - W).

    Memory as 1F1B's: the later ranks, which hold fewer microbatches, hold the inputs of the W put off instead,
    (p - r) M_B + r M_W on rank r.
    """
    return Program([_rank(rank, ranks, microbatches, 1) for rank in range(ranks)], name="zb-h1")


def zb_h2(ranks, microbatches):
    """Twice the warm-up and W put off twice as far: bubble (p - 1)(F + I - 2W).

    No rank waits between its first and its last op if F = I = W, at the price of nearly twice the activations,
    2p - 1 microbatches on rank 0. Ranks do start one after the other, so the makespan still has (p - 1) F in it: the
    optimizer step must not wait for all ranks if that is to be saved, which is left out here.
    """
    return Program([_rank(rank, ranks, microbatches, 2) for rank in range(ranks)], name="zb-h2")


def _rank(rank, ranks, microbatches, factor):
    """`factor` x (p - 1 - r) warm-up forwards; each W `factor` x r backwards after its I, the rest at the end."""
    warmup, put_off = min(microbatches, factor * (ranks - 1 - rank)), factor * rank
    phases = [(rank, "F")] * warmup
    for backward in range(microbatches):
        phases += [(rank, "F")] * (backward < microbatches - warmup) + [(rank, "I")] + [(rank, "W")] * (backward >= put_off)
    return numbered(phases + [(rank, "W")] * min(put_off, microbatches), microbatches)
