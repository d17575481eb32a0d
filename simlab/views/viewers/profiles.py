"""It writes a trace as profiles, one for each rank, in the form that torch.profiler gives them on GPUs.

Perfetto opens them, `simlab why` reads them, and they have what Holistic Trace Analysis asks of a file:
the rank in `distributedInfo`, a `ProfilerStep`, and for each kernel its stream and the launch with the
same `correlation`. A launch is not in our traces: it is written at the start of its kernel.
"""

import json
from typing import Any, NamedTuple

from simlab.trace import COMPUTE, OPTIMIZER, SEND, Span, Trace

US = 1e6
GPU, HOST_THREAD, STEP = 0, 1, "ProfilerStep#0"
NCCL = "ncclDevKernel_{kind}"
"""How NCCL's kernels are called, by which readers know communication."""
CAMEL = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "message": "SendRecv",
}
Event = dict[str, Any]


class Work(NamedTuple):
    """A span, the number of its stream on the GPU, and the ranks that take part in it."""

    span: Span
    stream: int
    group: list[int]


def profiles(trace: Trace) -> list[str]:
    """[of each rank, the JSON text of its profile].

    Times are those of the spans in microseconds. Each stream of a rank is a stream of its GPU; compute
    is stream 7, as PyTorch's usual one. A message is a kernel of its sender and of its receiver, from
    when it is sent until it has arrived.
    """
    names = sorted({span.stream for span in trace.spans} - {COMPUTE, OPTIMIZER, SEND})
    streams = {COMPUTE: 7, OPTIMIZER: 7} | {name: 20 + at for at, name in enumerate(names)}
    members: dict[tuple[str, str, float], list[int]] = {}
    for span in trace.spans:
        members.setdefault((span.stream, span.op, span.start_s), []).append(span.rank)
    of_rank: list[list[Work]] = [[] for _ in range(trace.ranks)]
    for span in trace.spans:
        if span.stream == SEND:
            pair = [span.rank, span.peer]
            of_rank[span.rank].append(Work(span, 100 + span.peer, pair))
            of_rank[span.peer].append(Work(span, 100 + trace.ranks + span.rank, pair))
        else:
            group = members[span.stream, span.op, span.start_s]
            of_rank[span.rank].append(Work(span, streams[span.stream], group))
    start_s = min((span.start_s for span in trace.spans), default=0.0)
    end_s = max((span.end_s for span in trace.spans), default=0.0)
    return [
        _profile(rank, trace.ranks, works, start_s, end_s) for rank, works in enumerate(of_rank)
    ]


def _profile(rank: int, ranks: int, works: list[Work], start_s: float, end_s: float) -> str:
    host = {"pid": 1000 + rank, "tid": HOST_THREAD}
    step = {"ph": "X", "cat": "user_annotation", "name": STEP, **host, **_times(start_s, end_s)}
    events = [
        {"ph": "M", "name": "process_name", "pid": GPU, "args": {"name": f"GPU of rank {rank}"}},
        {"ph": "M", "name": "process_name", "pid": 1000 + rank, "args": {"name": f"rank {rank}"}},
        step,
    ]
    ordered = sorted(works, key=lambda work: work.span.start_s)
    for correlation, work in enumerate(ordered, start=1):
        events += _kernel(work, correlation, host)
    info = {"backend": "nccl", "rank": rank, "world_size": ranks}
    return json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events})


def _kernel(work: Work, correlation: int, host: Event) -> list[Event]:
    """The launch of a kernel, and the kernel."""
    span = work.span
    arguments: Event = {"stream": work.stream, "correlation": correlation, "device": GPU}
    name = span.op
    if span.stream not in (COMPUTE, OPTIMIZER):
        name = NCCL.format(kind=CAMEL.get(span.kind, span.kind))
        part = "pp" if span.stream == SEND else span.stream
        arguments |= {"Collective name": span.kind, "Process Group Description": part}
        arguments |= {"Process Group Ranks": str(work.group), "bytes": span.bytes}
    times = _times(span.start_s, span.end_s)
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host}
    launch |= {"ts": times["ts"], "dur": 0, "args": {"correlation": correlation}}
    kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": GPU, "tid": work.stream, **times}
    return [launch, kernel | {"args": arguments}]


def _times(start_s: float, end_s: float) -> Event:
    """Microseconds, rounded to nanoseconds so that slices that follow each other do not overlap."""
    start_us = round(start_s * US, 3)
    return {"ts": start_us, "dur": round(round(end_s * US, 3) - start_us, 3)}
