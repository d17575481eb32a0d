"""Chrome trace JSON, for https://ui.perfetto.dev or chrome://tracing."""

import json

from simlab.errors import InputError
from simlab.program import Op, Program
from simlab.trace import COMPUTE, SEND

NS = 1e9


def chrome_trace(trace):
    """`trace` in the Trace Event Format, as JSON text.

    One process per rank with a thread for compute, one per rank it sends to (more where messages to it overlap), and one for each other
    stream (tp, cp, dp, optimizer);
    times are the spans' own to the nanosecond, in microseconds. Messages are drawn as flow arrows from the op that made
    them to the op that used them, and memory as a counter per rank and category.
    """
    messages, threads = trace.messages(), _threads(trace)
    events, starts = [], {}
    others = sorted({span.stream for span in trace.spans} - {COMPUTE, SEND})
    first = 1 + trace.ranks * (1 + max(threads, default=0) // trace.ranks)  # the threads of the other streams
    for rank in range(trace.ranks):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "compute"}})
    for rank, thread, peer in sorted({(span.rank, thread, span.peer) for span, thread in zip(messages, threads)}):
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": f"send to rank {peer}"}})
        for thread, stream in enumerate(others, first):
            events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": stream}})
    for span in trace.spans:
        op, _, part = span.op.partition(" ")  # layer by layer, the op and the part of it
        if span.stream == COMPUTE:
            starts.setdefault((span.rank, op), span.start_s)
            events.append(_slice(span, 0, name=span.op, cat=_kind(op), args={"op": op, "part": part} if part else {"op": op}))
        elif span.stream != SEND:
            events.append(_slice(span, first + others.index(span.stream), name=span.op, cat=span.stream, args={"bytes": span.bytes}))
    program = Program([list(dict.fromkeys(Op.parse(op) for of, op in starts if of == rank and _kind(op))) for rank in range(trace.ranks)])
    for number, (span, thread) in enumerate(zip(messages, threads)):
        events.append(_slice(span, thread, name=f"send {span.op}", cat=SEND, args={"bytes": span.bytes}))
        events.extend(_flow(number, span, thread, str(program.user(Op.parse(span.op))), starts))
    for point in trace.memory:
        unit = trace.metadata.get("units", {}).get(point.category, "")
        counter = {"ph": "C", "name": f"{point.category} ({unit})", "args": {point.category: point.amount}}
        events.append({**counter, "pid": point.rank, "ts": _us(point.time_s)})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"name": str(trace.metadata.get("name", ""))}})


def _kind(op):
    """F, B, I or W; "" of what belongs to the whole step."""
    try:
        return Op.parse(op).kind
    except InputError:
        return ""


def _threads(trace):
    """[per message] its thread. Perfetto drops a slice that overlaps another one of its thread, so it then gets one more."""
    threads, free_at_s = {}, {}
    for number, span in sorted(enumerate(trace.messages()), key=lambda item: item[1].start_s):
        thread = 1 + span.peer
        while free_at_s.get((span.rank, thread), span.start_s) > span.start_s:
            thread += trace.ranks
        threads[number], free_at_s[span.rank, thread] = thread, span.end_s
    return [threads[number] for number in range(len(threads))]


def _us(time_s):
    """Microseconds, in whole nanoseconds: then what ends when another begins does not overlap it by a rounding error."""
    return round(time_s * NS) / 1e3


def _slice(span, thread, **rest):
    duration_ns = round(span.end_s * NS) - round(span.start_s * NS)
    return {"ph": "X", "pid": span.rank, "tid": thread, "ts": _us(span.start_s), "dur": duration_ns / 1e3, **rest}


def _flow(number, span, thread, user, starts):
    """An arrow through three slices, each bound by a time in it: the op that made the message, the message, its user."""
    if (span.peer, user) not in starts:
        return  # a trace of a broken run: the message was sent, its user never ran
    common = {"cat": "message", "name": "message", "id": number}
    yield {**common, "ph": "s", "pid": span.rank, "tid": 0, "ts": _us(starts[span.rank, span.op])}
    yield {**common, "ph": "t", "pid": span.rank, "tid": thread, "ts": _us(span.start_s)}
    yield {**common, "ph": "f", "bp": "e", "pid": span.peer, "tid": 0, "ts": _us(starts[span.peer, user])}
