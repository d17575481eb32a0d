"""DualPipe and its V-shaped half: a forward of one stage beside a backward of another.

DeepSeek-AI 2024, DeepSeek-V3 technical report (arXiv 2412.19437), section 3.2.1. A rank always has two microbatches in its
hands that come from opposite ends of the pipeline. While it computes for the one, it communicates for the other (the
all-to-all of mixture-of-experts layers, above all). Such a pair takes F&B, less than F + B; `Program.paired` marks it.
"""

from simlab.errors import InputError
from simlab.program import Program
from simlab.schedules.ordering import numbered


def dualpipe(ranks, microbatches):
    """Both directions: half of the microbatches enter at rank 0, the others at the last rank.

    Every stage therefore stands on two ranks, r and p - 1 - r: parameters twice, and the gradients of the two copies are added
    up at the end of the step. Microbatches 0 to m/2 - 1 go down, the rest up. With equal stages, free communication
    and m >= 2p the bubble is (p/2 - 1)(F&B + B - 3W), with p + 1 microbatches held. Needs p and m even.
    """
    if ranks % 2 or microbatches % 2 or microbatches < 2 * ranks:
        even = ranks + ranks % 2
        raise InputError(
            f"dualpipe on {ranks} ranks with {microbatches} microbatches: both directions need an even number of ranks, and an "
            f"even number of microbatches, at least 2 per rank, e.g. {even} ranks and {max(2 * even, microbatches + microbatches % 2)}"
        )
    half, programs = microbatches // 2, []
    for rank in range(ranks):
        near = min(rank, ranks - 1 - rank)  # how far from the end at which its first microbatch enters
        first_of = {rank: 0, ranks - 1 - rank: half}  # by stage: the first microbatch that is for this rank's copy
        programs.append(_numbered(near, ranks // 2, half, (near, ranks - 1 - near), first_of))
    return _program(programs, "dualpipe")


def dualpipe_v(ranks, microbatches):
    """One direction, folded: rank r holds the stages r and 2p - 1 - r, of half the size; parameters once.

    What DualPipe does on the ranks r and p - 1 - r together, one rank does here (Sea AI Lab's "cut-in-half"). Needs at
    least as many microbatches as stages, 2p.
    """
    if microbatches < 2 * ranks:
        raise InputError(f"{microbatches} microbatches: dualpipe-v on {ranks} ranks has {2 * ranks} stages and needs at least as many")
    stages = [(rank, 2 * ranks - 1 - rank) for rank in range(ranks)]
    return _program([_numbered(rank, ranks, microbatches, stages[rank], {}) for rank in range(ranks)], "dualpipe-v")


def _program(numbered_ranks, name):
    return Program([ops for ops, _ in numbered_ranks], name, frozenset().union(*(paired for _, paired in numbered_ranks)))


def _numbered(rank, ranks, microbatches, stages, first_of):
    """(ops, the forwards among them that are paired) of one rank; `first_of`: {stage: its first microbatch}, 0 unless given."""
    phases, pairs_at = _phases(rank, ranks, microbatches, *stages)
    ops = [op._replace(microbatch=op.microbatch + first_of.get(op.stage, 0)) for op in numbered(phases, microbatches)]
    return ops, {ops[at] for at in pairs_at}


def _phases(rank, ranks, microbatches, near, far):
    """([(stage, kind)], [where a pair begins]): the eight steps of DualPipe's code, `near` the stage that begins.

    `rank` of `ranks` counts from the end where its first microbatch enters, to the middle where the two directions meet.
    """
    f0, b0, i0, f1, b1, i1 = [(stage, kind) for stage in (near, far) for kind in "FBI"]
    oldest_w = (None, "W")
    later = ranks - 1 - rank
    warmup = [f0] * (2 * later) + [f0, f1] * (rank + 1) + [i1, oldest_w, f1] * later
    steady = [f0, b1, f1, b0] * (microbatches - 2 * ranks + rank + 1) + [b1, f1, b0] * later
    cooldown = ([b1, b0] * (rank + 1))[: rank + 1] + ([i1, i0] * (rank + 1))[rank + 1 :]  # its second half is split
    phases = warmup + steady + cooldown + [oldest_w, i0] * later + [oldest_w] * (rank + 1)
    begin, end = len(warmup), len(warmup) + len(steady)
    pairs_at = [at for at in range(begin, end) if phases[at][1] == "F"]
    return phases, pairs_at[1:] if later == 0 else pairs_at  # the middle rank's first F and B are the same microbatch's
