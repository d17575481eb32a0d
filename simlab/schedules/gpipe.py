"""It orders GPipe, which is also called AFAB (all forward, all backward)."""

from simlab.program import Op, Program
from simlab.schedules.schedule import Schedule


def gpipe(stages: int, microbatches: int) -> Program:
    """GPipe: every rank runs all its forwards, then all its backwards.

    With equal stages and free communication the step takes (m + p - 1)(F + B), because the last
    rank starts after p - 1 forwards and the first rank ends p - 1 backwards after the last one. So
    the bubble is (p - 1)(F + B). Each rank holds the activations of all m microbatches when its
    backwards begin. The backwards run in the order of the forwards, as in torch and Megatron; the
    paper's figure draws them in reverse order, which takes as long. GPipe's re-materialisation is
    left out, because it is an option of the plan (recompute) and not of the order.

    Source: Huang et al. 2019, arXiv 1811.06965, section 2.3.
    """
    return Program(
        [
            [Op(rank, kind, microbatch) for kind in "FB" for microbatch in range(microbatches)]
            for rank in range(stages)
        ],
        name="gpipe",
    )


GPIPE = Schedule(
    "gpipe", gpipe, lambda c: (c.p - 1) * (c.f + c.b), ("afab",), in_flight=lambda p, m, v: m
)
