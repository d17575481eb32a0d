"""Schedule objects of torch.distributed.pipelining, read as programs. It needs no torch: it looks
only at the object's lists."""

from typing import Any

from simlab.errors import InputError
from simlab.program import Op, Program

COMPUTE = ("F", "B", "I", "W")
PAIR = "OVERLAP_F_B"
# no part of a program
DERIVED = ("SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD")


def program_from_schedule(schedule: Any) -> Program:
    """The `Program` that `schedule`, a schedule object of torch.distributed.pipelining, stands for.
    It is named after the object's class.

    Any rank's object will do, because each holds the order of all ranks. `GPipe`, `1F1B` and the
    multi-stage schedules have it from the start, a `_PipelineScheduleRuntime` once a CSV is loaded.
    Where there are two lists, compute only and with communication, the one with communication is
    read, because that is what torch executes.

    An overlapped pair becomes its two ops, one after the other. Left out: idle steps; sends and
    receives, which are derived from a program; UNSHARD, RESHARD and REDUCE_GRAD, which belong to
    data parallelism. Nothing is checked here: `simlab.validate` does.

    One mistake is corrected. `Schedule1F1B.pipeline_order` (seen in torch 2.13.0) numbers the last
    rank's forwards 1 to m instead of 0 to m - 1; its executor does not use that list and runs 0 to
    m - 1. Exactly that list is taken for what torch runs, and any other is read as it stands.

    `InputError` for an object that has no order, which may be a version or a schedule that makes it
    later or never, or a runtime before its CSV is loaded; and for an action of an unknown kind,
    which is named with its rank.
    """
    name = type(schedule).__name__
    order = getattr(schedule, "pipeline_order_with_comms", None) or getattr(
        schedule, "pipeline_order", None
    )
    if not order:
        raise InputError(
            f"{name} has no pipeline_order to read: give a schedule object of torch.distributed.pipelining that has one "
            "(a _PipelineScheduleRuntime has it after _load_csv)"
        )
    ranks = [[op for action in order[rank] for op in _ops(action, rank)] for rank in sorted(order)]
    if not any(ranks):
        raise InputError(f"{name}: no F, B, I or W in its pipeline_order")
    if any(made.__name__ == "Schedule1F1B" for made in type(schedule).__mro__):
        ranks[-1] = _corrected(ranks[-1], len(ranks) - 1)
    return Program(ranks, name)


def _ops(action: Any, rank: int) -> list[Op]:
    """The ops in `action`: one; none where it is idle or is no compute op; two where it is an
    overlapped pair."""
    if action is None:
        return []
    stage, kind, microbatch = action[:3]
    kind = getattr(kind, "value", kind)
    if kind == PAIR:
        return [op for part in action.sub_actions or () for op in _ops(part, rank)]
    if kind in COMPUTE:
        return [Op(stage, kind, microbatch)]
    if kind in DERIVED:
        return []
    raise InputError(
        f"rank {rank}: {action!s}: no op of kind {kind} is known; there is {', '.join((*COMPUTE, PAIR, *DERIVED))}"
    )


def _corrected(ops: list[Op], stage: int) -> list[Op]:
    """`ops` of 1F1B's last rank. Where they are F1 B0 F2 B1 ... Fm Bm-1, the forwards count from 0
    instead."""
    mistaken = [
        op for at in range(len(ops) // 2) for op in (Op(stage, "F", at + 1), Op(stage, "B", at))
    ]
    if ops != mistaken:
        return ops
    return [op._replace(microbatch=op.microbatch - 1) if op.kind == "F" else op for op in ops]
