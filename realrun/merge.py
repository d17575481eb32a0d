"""Recordings of all ranks → one measured `Trace` per step, on rank 0's clock."""

from realrun.recorder import Recording
from simlab.trace import ACTIVATIONS, COMPUTE, LIVE, SEND, MemoryPoint, Span, Trace


def step_trace(program, recordings, step, message_bytes, extra):
    """The `Trace` of training step `step`, starting at 0 s. Ranks without a recording (None) are left out.

    Times are as measured, shifted by each rank's measured clock offset. A message's span begins at the end of the
    op that made it and ends at the start of the op that used it, where both are recorded.
    """
    spans, memory, at = [], [], {}
    for rank, recording in enumerate(recordings):
        if recording is None:
            continue
        for record in recording.records:
            if record.step == step:
                op = program.ranks[rank][record.position]
                start_s, end_s = record.start_s + recording.clock_offset_s, record.end_s + recording.clock_offset_s
                at[op] = start_s, end_s
                spans.append(Span(rank, COMPUTE, str(op), start_s, end_s))
                when_s = start_s if op.kind == "F" else end_s  # a forward takes memory, the others give it back
                memory.append(MemoryPoint(rank, LIVE, when_s, record.live))
                memory.append(MemoryPoint(rank, ACTIVATIONS, when_s, record.bytes))
    for rank, steps in enumerate(program.lowered):
        for item in steps:
            user = program.user(item.op)
            if item.destination is not None and item.op in at and user in at:
                span = Span(rank, SEND, str(item.op), at[item.op][1], at[user][0], message_bytes, item.destination)
                spans.append(span)
    zero_s = min((span.start_s for span in spans), default=0.0)
    metadata = {"name": program.name, "source": "measured", "ranks": len(program.ranks), "stages": program.stages,
                "microbatches": program.microbatches, "step": step,
                "units": {LIVE: "microbatches", ACTIVATIONS: "bytes"}, **extra}  # fmt: skip
    return Trace(
        [span._replace(start_s=span.start_s - zero_s, end_s=span.end_s - zero_s) for span in spans],
        [point._replace(time_s=point.time_s - zero_s) for point in memory],
        metadata,
    )


def recordings_in(folder, ranks):
    """[Recording or None of each rank] as far as they were written in `folder`."""
    return [Recording.load(folder / f"rank{rank}.records") for rank in range(ranks)]
