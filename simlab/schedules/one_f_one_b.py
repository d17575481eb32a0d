"""1F1B with a flush at the end of the step: "PipeDream-Flush", Megatron's default without interleaving."""

from simlab.program import Op, Program


def one_f_one_b(stages, microbatches):
    """Warm-up forwards, then one forward and one backward in turn, then the backwards left over.

    (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1, figure 4 top.)  Rank r warms up with min(m, p - 1 - r)
    forwards: just enough that its first backward can start as soon as the last rank's gradient reaches it. So it
    never holds more than min(m, p - r) microbatches. The bubble is GPipe's: the order of ops changes, the first
    microbatch's way down and the last one's way back, (p - 1)(F + B), do not.
    """
    return Program([_rank(rank, stages, microbatches) for rank in range(stages)], name="1f1b")


def _rank(rank, stages, microbatches):
    warmup = min(microbatches, stages - 1 - rank)
    ops = [Op(rank, "F", microbatch) for microbatch in range(warmup)]
    for microbatch in range(warmup, microbatches):
        ops += [Op(rank, "F", microbatch), Op(rank, "B", microbatch - warmup)]
    return ops + [Op(rank, "B", microbatch) for microbatch in range(microbatches - warmup, microbatches)]
