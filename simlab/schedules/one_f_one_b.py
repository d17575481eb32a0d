"""It orders 1F1B with a flush at the end of the step ("PipeDream-Flush"), Megatron's default without
interleaving, and PipeDream without one: weights change after every backward, so a microbatch meets
several versions of them.
"""

from simlab.program import Op, Program
from simlab.schedules.schedule import Schedule


def one_f_one_b(stages: int, microbatches: int) -> Program:
    """1F1B: a rank runs warm-up forwards, then one forward and one backward in turn, and then the
    backwards that are left.

    Rank r warms up with min(m, p - 1 - r) forwards. These are just enough that its first backward
    can start as soon as the gradient from the last rank reaches it. So it never holds more than
    min(m, p - r) microbatches. The bubble is GPipe's, (p - 1)(F + B): it consists of the way of the
    first microbatch down the pipeline and of the last one back, which the order does not change.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1, figure 4 (top).
    """
    return Program([_rank(rank, stages, microbatches) for rank in range(stages)], name="1f1b")


def _rank(rank: int, stages: int, microbatches: int) -> list[Op]:
    warmup = min(microbatches, stages - 1 - rank)
    ops = [Op(rank, "F", microbatch) for microbatch in range(warmup)]
    for microbatch in range(warmup, microbatches):
        ops += [Op(rank, "F", microbatch), Op(rank, "B", microbatch - warmup)]
    return ops + [
        Op(rank, "B", microbatch) for microbatch in range(microbatches - warmup, microbatches)
    ]


def pipedream(stages: int, microbatches: int) -> Program:
    """PipeDream: m microbatches out of an endless run.

    The order of ops is 1F1B's. The difference is that no rank waits for the others at the end of a
    batch: each rank updates its weights after each of its backwards and goes on. So there is a
    bubble only at the very beginning and the very end of training. In return the weights are stale,
    see `simlab.staleness`. simlab can simulate this schedule, but realrun refuses it, because
    realrun trains with a flush.

    Sources: Harlap et al. 2018, arXiv 1806.03377; Narayanan et al. 2019, SOSP.
    """
    return Program(one_f_one_b(stages, microbatches).ranks, name="pipedream")


ONE_F_ONE_B = Schedule(
    "1f1b",
    one_f_one_b,
    lambda c: (c.p - 1) * (c.f + c.b),
    in_flight=lambda p, m, v: min(m, p),
    beside=1,
    steady=True,
    searched=True,
)
PIPEDREAM = Schedule("pipedream", pipedream, flush=False)
