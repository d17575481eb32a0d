"""Recordings of all ranks → one measured `Trace` per step, on rank 0's clock."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from realrun.record.recorder import Record, Recording
from simlab.program import Op, Program
from simlab.trace import ACTIVATIONS, LIVE, MESSAGE, SEND, MemoryPoint, Span, Trace


def step_trace(
    program: Program,
    recordings: Sequence[Recording | None],
    step: int,
    message_bytes: int,
    extra: dict[str, Any],
) -> Trace:
    """The `Trace` of training step `step`, which starts at 0 s. Ranks without a recording (None)
    are left out.

    Times are as measured, shifted by each rank's measured clock offset. The span of a message
    begins at the end of the op that made it, and ends at the start of the op that used it, where
    both are recorded. message_bytes: of each message. extra: what is added to the metadata.
    """
    at = _op_times(program, recordings, step)
    spans = [Span.of_op(op, rank, start_s, end_s) for op, (rank, _, start_s, end_s) in at.items()]
    memory = []
    for op, (rank, record, start_s, end_s) in at.items():
        # a forward takes memory, the others give it back
        when_s = start_s if op.kind == "F" else end_s
        memory.append(MemoryPoint(rank, LIVE, when_s, record.live))
        memory.append(MemoryPoint(rank, ACTIVATIONS, when_s, record.bytes))
    for rank, steps in enumerate(program.lowered):
        for item in steps:
            user = program.user(item.op)
            if item.destination is not None and item.op in at and user in at:
                stage, kind, microbatch = item.op
                span = Span(rank, SEND, str(item.op), at[item.op][3], at[user][2], message_bytes)
                span = span._replace(peer=item.destination, kind=MESSAGE, op_kind=kind)
                spans.append(span._replace(stage=stage, microbatch=microbatch))
    metadata = {
        "name": program.name,
        "source": "measured",
        "ranks": len(program.ranks),
        "stages": program.stages,
        "microbatches": program.microbatches,
        "step": step,
        "units": {LIVE: "microbatches", ACTIVATIONS: "bytes"},
        **extra,
    }
    zero_s = min((span.start_s for span in spans), default=0.0)
    return Trace(*from_zero(spans, memory, zero_s), metadata)


def _op_times(
    program: Program, recordings: Sequence[Recording | None], step: int
) -> dict[Op, tuple[int, Record, float, float]]:
    """{op: (its rank, its record, its start and end on rank 0's clock)} of `step`."""
    at = {}
    for rank, recording in enumerate(recordings):
        if recording is None:
            continue
        for record in recording.records:
            if record.step == step:
                offset_s = recording.clock_offset_s
                times = record.start_s + offset_s, record.end_s + offset_s
                at[program.ranks[rank][record.position]] = rank, record, *times
    return at


def from_zero(
    spans: Iterable[Span], memory: Iterable[MemoryPoint], zero_s: float
) -> tuple[list[Span], list[MemoryPoint]]:
    """`spans` and `memory` with all times less `zero_s`."""
    return (
        [span._replace(start_s=span.start_s - zero_s, end_s=span.end_s - zero_s) for span in spans],
        [point._replace(time_s=point.time_s - zero_s) for point in memory],
    )


def recordings_in(folder: Path, ranks: int) -> list[Recording | None]:
    """The recording of each rank as far as it was written in `folder`; None where there is none."""
    return [Recording.load(folder / f"rank{rank}.records") for rank in range(ranks)]
