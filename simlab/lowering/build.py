"""Plan → program."""

from itertools import pairwise

from simlab.errors import InputError
from simlab.program import Program
from simlab.schedules import SCHEDULES, generate
from simlab.spec.plan import Plan


def program_of(plan: Plan) -> Program:
    """The `Program` of one pipeline of `plan`, with pairs if `Plan.ep_overlap` asks for them."""
    schedule = SCHEDULES[plan.schedule]
    if schedule.timed:
        raise InputError(
            f"{plan.schedule} searches for given op times: take it with simlab's schedule command, or another schedule in a plan"
        )
    chunks = plan.chunks if schedule.chunked else None
    program = generate(plan.schedule, plan.pp, plan.microbatches, chunks=chunks)
    if not plan.ep_overlap:
        return program.unpaired()
    return program if program.paired else side_by_side(program)


def side_by_side(program: Program) -> Program:
    """The same program, in which each forward that follows a backward on its rank, as all of 1F1B's
    steady phase do, runs beside it.

    The first backward of a rank then comes with the second forward after the warm-up (Megatron-LM schedules
    one extra forward, `overlap_moe_expert_parallel_comm` in megatron/core/pipeline_parallel/schedules.py).
    Of that forward and that backward, which go layer by layer, a rank holds one layer more than in 1F1B.
    """
    ranks, paired = [], set()
    for ops in program.ranks:
        its = list(ops)
        for at, (op, after) in enumerate(pairwise(ops)):
            if op.kind == "B" and after.kind == "F":
                its[at : at + 2] = after, op
                paired.add(after)
        ranks.append(its)
    return Program(ranks, program.name, paired)
