"""It makes profiles of two ranks as torch.profiler writes them of a CPU with gloo, of a training with a
known fault in one rank: nothing is measured, all times are chosen.

Each rank does its items in order. A collective takes its time from when both have begun it, a message
from when it was sent; a rank that waits for one goes on when it is there, and the thread of gloo notes
its end a little later, as it does in reality.
"""

import json
from typing import NamedTuple

MS = 1000.0
"""Profiles are in microseconds."""
LATE = 0.03 * MS
FAULTS = (
    "sleep", "more ops", "slower ops", "larger batch", "longer input", "more launches", "host stall",
    "slow link",
)  # fmt: skip
HOW = ("ddp", "fsdp2", "pipeline")


class Item(NamedTuple):
    """What a rank does: an operator for `us` microseconds; nothing ('idle'); 'begin' or 'wait' of the
    communication `name`, which takes `us`."""

    what: str
    name: str = ""
    us: float = 0.0
    inside: str = ""
    dims: tuple = ()


def op(name, us, inside="", dims=(64, 64)):
    return Item("op", name, us, inside, dims)


def compute(fault, rank, us, layers=4):
    """The operators of a forward or a backward: rank 1 has the fault."""
    slow = rank == 1
    longer = 3 if slow and fault in ("slower ops", "larger batch", "longer input") else 1
    dims = (192, 64) if slow and fault in ("larger batch", "longer input") else (64, 64)
    for _ in range(layers):
        yield op("aten::mm", us * longer, "", dims)
        yield op("aten::relu", us * longer / 4, "", dims)
        if slow and fault == "more ops":
            yield from (op("aten::mm", us / 10, "my extra products") for _ in range(30))
        if slow and fault == "more launches":
            yield from (op("aten::add", 15) for _ in range(int(us / 20)))
        if slow and fault == "host stall":
            yield Item("idle", us=3 * us)


def step(how, fault, rank, number):
    """The items of one step of a rank."""
    wire = 12.0 if fault == "slow link" else 0.5
    if fault == "sleep" and rank == 1:
        yield Item("idle", us=100 * MS)
    if how == "pipeline":
        yield from _pipeline(fault, rank, number, wire)
    elif how == "ddp":
        yield from compute(fault, rank, 2 * MS)
        for bucket in range(2):
            yield from compute(fault, rank, 2 * MS)
            yield Item("begin", f"all_reduce {number}.{bucket}", 3 * wire * MS)
        for bucket in range(2):
            yield Item("wait", f"all_reduce {number}.{bucket}")
            yield op("aten::copy_", 100)
    else:
        for layer in range(4):
            yield Item("begin", f"all_gather {number}.{layer}", wire * MS)
            yield Item("wait", f"all_gather {number}.{layer}")
            yield from compute(fault, rank, 2 * MS, 1)
        for layer in range(4):
            yield from compute(fault, rank, 4 * MS, 1)
            yield Item("begin", f"reduce_scatter {number}.{layer}", wire * MS)
            yield Item("wait", f"reduce_scatter {number}.{layer}")
    yield op("aten::_foreach_add_", 1 * MS)


def _pipeline(fault, rank, number, wire):
    """1F1B of two stages and four microbatches."""
    forward = [compute(fault, rank, 1 * MS) for _ in range(4)]
    backward = [compute(fault, rank, 2 * MS) for _ in range(4)]
    ops = ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"]
    for one in ops if rank == 0 else sorted(ops, key=lambda it: it[1]):
        kind, microbatch = one
        message = f"{number}.{microbatch}"
        if (kind == "F") == (rank == 1):
            yield Item("begin", f"{kind} {message} recv", wire * MS)
            yield Item("wait", f"{kind} {message} recv")
        yield from (forward if kind == "F" else backward)[int(microbatch)]
        if (kind == "F") == (rank == 0):
            yield Item("begin", f"{kind} {message} send", wire * MS)


def profiles(how, fault, steps, *, shapes=True):
    """[the parsed JSON of each rank's profile]"""
    lists = [
        [one for number in range(steps) for one in (*step(how, fault, rank, number), Item("step"))]
        for rank in range(2)
    ]
    now, at, begun, ended = [0.0, 0.0], [0, 0], [{}, {}], {}
    events, steps_at = [[], []], [0.0, 0.0]
    for _ in range(2 * sum(map(len, lists))):
        rank = min(
            (one for one in range(2) if at[one] < len(lists[one])), key=lambda r: (at[r] > at[1 - r], r),
            default=None,
        )  # fmt: skip
        if rank is None:
            break
        for rank in range(2):
            while at[rank] < len(lists[rank]):
                item = lists[rank][at[rank]]
                if item.what == "wait" and not _ended(item.name, begun, ended):
                    break
                _do(rank, item, now, begun, ended, events, steps_at)
                at[rank] += 1
    return [
        {
            "traceEvents": _with_gloo(rank, events[rank], begun, ended, shapes),
            "distributedInfo": {"rank": rank, "world_size": 2},
            "baseTimeNanoseconds": 10**18,
        }
        for rank in range(2)
    ]


def _base(name):
    return name.removesuffix(" send").removesuffix(" recv")


def _ended(name, begun, ended):
    """Whether a communication's end is known; of a message, it is when it was sent."""
    name = _base(name)
    if name[0] in "FB":
        sender = next(
            (begun[rank].get(f"{name} send") for rank in range(2) if f"{name} send" in begun[rank]),
            None,
        )
        if sender is not None:
            receiver = next(
                begun[rank][f"{name} recv"] for rank in range(2) if f"{name} recv" in begun[rank]
            )
            ended[name] = max(sender[0], receiver[0]) + sender[1]
    elif all(name in its for its in begun):
        ended[name] = max(its[name][0] for its in begun) + begun[0][name][1]
    return name in ended


def _do(rank, item, now, begun, ended, events, steps_at):
    if item.what == "op":
        events[rank].append(_slice(item.name, now[rank], item.us, item.inside, item.dims))
        now[rank] += item.us + 2
    elif item.what == "idle":
        now[rank] += item.us
    elif item.what == "begin":
        begun[rank][item.name] = now[rank], item.us
    elif item.what == "wait":
        now[rank] = max(now[rank], ended[_base(item.name)])
    else:
        number = sum(event["name"].startswith("ProfilerStep#") for event in events[rank])
        event = _slice(f"ProfilerStep#{number}", steps_at[rank], now[rank] - steps_at[rank])
        events[rank].append(event | {"cat": "user_annotation"})
        steps_at[rank] = now[rank]


def _slice(name, start, us, inside="", dims=()):
    arguments = {"Input Dims": [list(dims)]} if dims else {}
    event = {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": us,
        "args": arguments,
    }  # fmt: skip
    return event | ({"inside": inside} if inside else {})


def _with_gloo(rank, events, begun, ended, shapes):
    """All events of a rank: with those of gloo's threads, and with annotations."""
    found = []
    for event in events:
        inside = event.pop("inside", "")
        if not shapes:
            event["args"] = {}
        if inside:
            found.append(_slice(inside, event["ts"], event["dur"]) | {"cat": "user_annotation"})
        found.append(event)
    for name, (start, us) in begun[rank].items():
        kind = name.split()[-1] if name[0] in "FB" else name.split()[0]
        end = start + us if kind == "send" else ended[_base(name)]
        gloo = _slice(f"gloo:{kind}", start, end - start + LATE)
        found.append(gloo | {"cat": "user_annotation", "tid": 2, "args": {}})
    return json.loads(json.dumps(found))
