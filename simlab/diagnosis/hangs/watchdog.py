"""It reads what torch's watchdog writes into the logs of a job that hangs.

One line says in which collective a rank waited for too long, and in newer versions of torch another one
how many the rank has begun and ended. Their forms, from torch 1.9 to 2.13
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: checkTimeout, and what follows a failure):

    [rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout:
        WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for ...
    [rank3]:[E ...] [Rank 3] Work WorkNCCL(SeqNum=7, ...) timed out in blocking wait.
    [PG 1 Rank 3] Exception (...) detected by watchdog at work: 7, last enqueued NCCL work: 9, ...
    [PG ID 1 PG GUID 1(tp) Rank 3]  failure detected by watchdog at work sequence id: 7 PG status:
        last enqueued work: 9, last completed work: 6
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simlab.diagnosis.hangs.calls import COUNTED_IN, RECV, SEND, Call, Calls, Group, squeezed
from simlab.diagnosis.hangs.causes import hang_in
from simlab.diagnosis.hangs.hang import Hang, ranks_text
from simlab.diagnosis.hangs.waits import STUCK
from simlab.errors import InputError

CAUGHT = "Watchdog caught collective operation timeout"
TIMEOUT = re.compile(
    rf"\[Rank (?P<rank>\d+)\]\s*(?:{CAUGHT}:|Work) Work\w*\((?:SeqNum=(?P<number>\d+), ?)?OpType=(?P<name>\w+)"
    r"(?:, ?NumelIn=(?P<numel>\d+))?"
)
STATUS = re.compile(
    r"\[PG (?:ID \d+ PG GUID )?(?P<group>\w+)\s?(?:\((?P<about>[^)]*)\))? Rank (?P<rank>\d+)\].*"
    r"(?:at (?:NCCL )?work(?: sequence id)?: ?(?P<number>\d+)).*?last enqueued (?:NCCL )?work: ?"
    r"(?P<last>-?\d+)"
)
OF_ALL = re.compile(r"\[rank ?(\d+)\]|\[PG[^\]]* Rank (\d+)\]", re.IGNORECASE)
"""The rank of the training, which torch 2.2 and newer write before each line; else that of the group."""
ERROR = re.compile(r"\b\w*(?:Error|Exception)\b: .+")
MOST_RANKS = 2**17
"""Ranks of a training, at most."""
WORLD = "0"
"""The name of the group of all ranks."""


class _Timeout(NamedTuple):
    rank: int
    own: int
    number: int
    name: str
    numel: str


def hang_in_logs(logs: Sequence[tuple[int | None, str]]) -> Hang:
    """The `Hang` that the lines of some logs show.

    logs: (the rank whose log it is, None if of several or unknown; its text). A rank that others show
    to exist and that has no such line has not come to the collective, or has died before. `InputError`
    where no line is of the watchdog.
    """
    timeouts: dict[tuple[int, int, str], _Timeout] = {}
    status: dict[tuple[int, int], tuple[str, int]] = {}  # {(rank, number): (group, last begun)}
    errors: dict[int, str] = {}
    heard: set[int] = set()
    for of_file, text in logs:
        for line in text.splitlines():
            named = OF_ALL.search(line)
            if named is None:
                continue
            rank = int(named[1] or named[2]) if of_file is None else of_file
            heard.add(rank)
            if found := TIMEOUT.search(line):
                number = int(found["number"] or 0)
                one = _Timeout(
                    rank, int(found["rank"]), number, found["name"], found["numel"] or ""
                )
                timeouts.setdefault((rank, number, one.name), one)
            if found := STATUS.search(line):
                group = found["group"] + (f" ({found['about']})" if found["about"] else "")
                status[rank, int(found["number"])] = group, int(found["last"])
            elif (found := ERROR.search(line)) and CAUGHT not in line:
                errors.setdefault(rank, found[0][:200])
    if not timeouts:
        said = "".join(f"; the log of rank {rank} says: {its}" for rank, its in errors.items())
        raise InputError(
            f"no log has a line of torch's watchdog, such as '[Rank 3] {CAUGHT}: WorkNCCL(SeqNum=7, "
            f"OpType=ALLREDUCE, ...)' or '[Rank 3] Work WorkNCCL(...) timed out in blocking wait'{said}"
        )
    return _told(timeouts.values(), status, errors, heard)


def _told(
    timeouts: Iterable[_Timeout],
    status: dict[tuple[int, int], tuple[str, int]],
    errors: dict[int, str],
    heard: set[int],
) -> Hang:
    """The `Hang` of what was read."""
    of_group: dict[str, list[tuple[_Timeout, int]]] = defaultdict(list)
    names = {group for group, _ in status.values()}
    unnamed = names.pop() if len(names) == 1 else ""
    for one in timeouts:
        name = "" if one.name.lower() in (SEND, RECV) else unnamed
        in_group, last = status.get((one.rank, one.number), (name, one.number))
        of_group[in_group].append((one, last))
    calls: list[Call] = []
    for name, its in of_group.items():
        ranks = {one.rank for one, _ in its}
        if all(one.rank == one.own for one, _ in its) and name.split()[:1] in ([], [WORLD]):
            ranks |= {*range(min(max(heard) + 1, MOST_RANKS))}
        group = Group(name or WORLD, tuple(sorted(ranks)))
        for one, last in its:
            size = one.numel if squeezed(one.name) in COUNTED_IN else ""
            told = Call(one.rank, group, one.name.lower(), one.number, size=size, sizes=one.numel)
            calls.append(told)
            if last > one.number and not told.is_message:
                calls.append(told._replace(name="", number=last, size=""))
    hang = hang_in(Calls(calls, heard, ()))
    silent = [rank for rank in hang.culprit if rank in errors]
    details = [f"The log of rank {rank} says: {errors[rank]}" for rank in silent]
    if any(call.is_message for call in calls):
        details.append(
            "A log does not say from whom to whom a message is: dumps of the flight recorder do."
        )
    if hang.reason == STUCK:
        seen = sorted({call.rank for call in calls})
        details.append(
            f"The logs have such lines of {ranks_text(seen)}: if there are more ranks, one of the others "
            "has not come. Give the logs of all ranks."
        )
    return hang._replace(logs=tuple(details))
