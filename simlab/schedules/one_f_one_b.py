"""It orders 1F1B with a flush at the end of the step ("PipeDream-Flush").

It is Megatron's default without interleaving.
"""

from simlab.program import Op, Program


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
