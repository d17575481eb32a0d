"""Chrome trace JSON, for https://ui.perfetto.dev or chrome://tracing."""

import json

from simlab.program import Op, Program
from simlab.trace import COMPUTE, SEND

US = 1e6


def chrome_trace(trace):
    """`trace` in the Trace Event Format, as JSON text.

    One process per rank with a thread for compute and one per rank it sends to; durations are the spans' own, in
    microseconds. Messages are drawn as flow arrows from the op that made them to the op that used them, and memory as
    a counter per rank and category.
    """
    events, starts = [], {}
    for rank in range(trace.ranks):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "compute"}})
    for rank, peer in sorted({(span.rank, span.peer) for span in trace.messages()}):
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": _thread(peer), "args": {"name": f"send to rank {peer}"}})
    for span in trace.spans:
        if span.stream == COMPUTE:
            starts[span.rank, span.op] = span.start_s
        events.append(_slice(span))
    program = Program.from_trace(trace)
    for number, span in enumerate(trace.messages()):
        events.extend(_flow(number, span, str(program.user(Op.parse(span.op))), starts))
    for point in trace.memory:
        unit = trace.metadata.get("units", {}).get(point.category, "")
        events.append({"ph": "C", "name": f"{point.category} ({unit})", "pid": point.rank, "ts": point.time_s * US, "args": {point.category: point.amount}})  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"name": str(trace.metadata.get("name", ""))}})


def _thread(peer):
    return 1 + peer


def _slice(span):
    kind = Op.parse(span.op).kind
    common = {"ph": "X", "pid": span.rank, "ts": span.start_s * US, "dur": (span.end_s - span.start_s) * US}
    if span.stream == SEND:
        return {**common, "name": f"send {span.op}", "cat": SEND, "tid": _thread(span.peer), "args": {"bytes": span.bytes}}
    return {**common, "name": span.op, "cat": kind, "tid": 0, "args": {"op": span.op}}


def _flow(number, span, user, starts):
    """An arrow: from the end of the op that made the message, through the link's track, to the op that used it."""
    if (span.peer, user) not in starts:
        return  # a trace of a broken run: the message was sent, its user never ran
    common = {"cat": "message", "name": "message", "id": number}
    yield {**common, "ph": "s", "pid": span.rank, "tid": 0, "ts": starts[span.rank, span.op] * US}
    yield {**common, "ph": "t", "pid": span.rank, "tid": _thread(span.peer), "ts": span.start_s * US}
    yield {**common, "ph": "f", "bp": "e", "pid": span.peer, "tid": 0, "ts": starts[span.peer, user] * US}
