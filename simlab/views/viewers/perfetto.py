"""It writes a trace as Chrome trace JSON, for https://ui.perfetto.dev or chrome://tracing."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simlab.program import Op, Program
from simlab.trace import COMPUTE, SEND, Span, Trace

NS = 1e9
Event = dict[str, Any]


def chrome_trace(trace: Trace) -> str:
    """`trace` as JSON text in the Trace Event Format.

    Each rank is a process. It has a thread for compute, one for each rank to which it sends (more if
    messages to that rank overlap), and one for each other stream (tp, cp, dp, optimizer). Times are
    those of the spans in microseconds, rounded to the nanosecond. An arrow leads from the op that
    made a message through the message to the op that uses it. Memory is a counter for each rank and
    category.
    """
    threads, streams = _threads(trace), _stream_threads(trace)
    starts: dict[tuple[int, Op], float] = {}
    for span in trace.compute():
        starts.setdefault((span.rank, Op(span.stage, span.op_kind, span.microbatch)), span.start_s)
    events = [
        *_names(trace, threads, streams),
        *(_work(span, streams) for span in trace.spans if span.stream != SEND),
        *_messages(trace, threads, starts),
        *_counters(trace),
    ]
    about = {"name": str(trace.metadata.get("name", ""))}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about})


def _stream_threads(trace: Trace) -> dict[str, int]:
    """{stream: its thread on every rank}.

    Compute is thread 0. The other streams come after the threads of messages, of which there is at
    least one for each rank.
    """
    last_message = max(_threads(trace), default=0)
    first = 1 + trace.ranks * (1 + last_message // trace.ranks)
    others = sorted({span.stream for span in trace.spans} - {COMPUTE, SEND})
    return {COMPUTE: 0} | {stream: thread for thread, stream in enumerate(others, first)}


def _names(trace: Trace, threads: Sequence[int], streams: Mapping[str, int]) -> Iterator[Event]:
    """The events that name each rank's process and each of its threads."""
    for rank in range(trace.ranks):
        yield _metadata("process_name", rank, name=f"rank {rank}")
        yield _metadata("process_sort_index", rank, sort_index=rank)
    named = {(rank, 0): COMPUTE for rank in range(trace.ranks)}
    for span, thread in zip(trace.messages(), threads):
        named[span.rank, thread] = f"send to rank {span.peer}"
    for span in trace.spans:
        if span.stream != SEND:
            named[span.rank, streams[span.stream]] = span.stream
    for (rank, thread), name in sorted(named.items()):
        yield {**_metadata("thread_name", rank, name=name), "tid": thread}


def _metadata(what: str, rank: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "args": args}


def _work(span: Span, streams: Mapping[str, int]) -> Event:
    """The slice of a span that is not a message."""
    if span.stream != COMPUTE:
        size = {"bytes": span.bytes}
        return _slice(span, streams[span.stream], name=span.op, cat=span.stream, args=size)
    part = {"part": span.unit} if span.unit else {}
    args = {"op": span.op_text or span.op} | part
    return _slice(span, 0, name=span.op, cat=span.op_kind, args=args)


def _messages(
    trace: Trace, threads: Sequence[int], starts: Mapping[tuple[int, Op], float]
) -> Iterator[Event]:
    """The slice of each message, and the arrow through it.

    starts: {(rank, op): when the op started, in seconds}.
    """
    program = Program(
        [[op for of, op in starts if of == rank and op.kind] for rank in range(trace.ranks)]
    )
    for number, (span, thread) in enumerate(zip(trace.messages(), threads)):
        yield _slice(span, thread, name=f"send {span.op}", cat=SEND, args={"bytes": span.bytes})
        yield from _flow(number, span, thread, program, starts)


def _counters(trace: Trace) -> Iterator[Event]:
    """The events of the memory points, which form a counter for each rank and category."""
    units = trace.metadata.get("units", {})
    for point in trace.memory:
        name = f"{point.category} ({units.get(point.category, '')})"
        args = {point.category: point.amount}
        yield {"ph": "C", "name": name, "args": args, "pid": point.rank, "ts": _us(point.time_s)}


def _threads(trace: Trace) -> list[int]:
    """[per message] the number of its thread.

    Perfetto drops a slice that overlaps another one in the same thread, so messages that overlap are
    in different threads.
    """
    threads: dict[int, int] = {}
    free_at_s: dict[tuple[int, int], float] = {}
    for number, span in sorted(enumerate(trace.messages()), key=lambda item: item[1].start_s):
        thread = 1 + span.peer
        while free_at_s.get((span.rank, thread), span.start_s) > span.start_s:
            thread += trace.ranks
        threads[number], free_at_s[span.rank, thread] = thread, span.end_s
    return [threads[number] for number in range(len(threads))]


def _us(time_s: float) -> float:
    """`time_s` in microseconds, rounded to nanoseconds.

    Without rounding, a slice could overlap the next one by a rounding error.
    """
    return round(time_s * NS) / 1e3


def _slice(span: Span, thread: int, **rest: Any) -> Event:
    duration_ns = round(span.end_s * NS) - round(span.start_s * NS)
    return {
        "ph": "X",
        "pid": span.rank,
        "tid": thread,
        "ts": _us(span.start_s),
        "dur": duration_ns / 1e3,
        **rest,
    }


def _flow(
    number: int, span: Span, thread: int, program: Program, starts: Mapping[tuple[int, Op], float]
) -> Iterator[Event]:
    """The events of an arrow through three slices: the op that made the message, the message, and
    the op that uses it. A time within a slice binds the arrow to it."""
    made = Op(span.stage, span.op_kind, span.microbatch)
    user = program.user(made)
    if user is None or (span.peer, user) not in starts:
        return  # In the trace of a run that failed, the op that uses the message may be missing.
    common = {"cat": "message", "name": "message", "id": number}
    yield {**common, "ph": "s", "pid": span.rank, "tid": 0, "ts": _us(starts[span.rank, made])}
    yield {**common, "ph": "t", "pid": span.rank, "tid": thread, "ts": _us(span.start_s)}
    yield {
        **common,
        "ph": "f",
        "bp": "e",
        "pid": span.peer,
        "tid": 0,
        "ts": _us(starts[span.peer, user]),
    }
