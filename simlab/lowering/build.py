"""Plan → program."""

from simlab.errors import InputError
from simlab.program import Program
from simlab.schedules import CHUNKED, generate
from simlab.spec.plan import Plan


def program_of(plan: Plan) -> Program:
    """The `Program` of one pipeline of `plan`."""
    options = {"chunks": plan.chunks if plan.schedule in CHUNKED else None}
    if plan.schedule == "zb-auto":
        raise InputError(
            "zb-auto searches for given op times: take it with simlab's schedule command, or another schedule in a plan"
        )
    if plan.schedule == "dualpipe":
        raise InputError(
            "dualpipe holds each stage on two ranks, which a plan cannot say yet: take dualpipe-v"
        )
    return generate(plan.schedule, plan.pp, plan.microbatches, **options)
