"""It makes hangs of two to four processes on gloo, and each rank leaves the dumps of torch's own flight
recorder: as JSON, which simlab reads, and as the pickle that torch's own analyser reads.

    python tests/support/gloo_hangs.py FOLDER [NAME ...]

writes FOLDER/NAME/dump_rank_N.json and FOLDER/NAME/pickles/rank_N of each hang of `HANGS`, or of those
that are named. tests/simlab/diagnosis/dumps has those of 'left out'.
"""

import ctypes
import json
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

LIMIT_S = 600
"""No process of a hang lives longer."""


def left_out(rank):
    """Three all-reduces, then one that rank 1 leaves out."""
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if rank != 1:
        dist.all_reduce(torch.ones(8))


def another_collective(rank):
    """Rank 2 gathers where the others reduce."""
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        dist.all_gather([torch.ones(8) for _ in range(3)], torch.ones(8))
    dist.all_reduce(torch.ones(8))


def another_size(rank):
    """Rank 1 has nothing to reduce, as one without tokens."""
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(0 if rank == 1 else 8))


def larger_size(rank):
    """Rank 1 sends more than its neighbour takes, at which gloo ends the neighbour's process."""
    dist.all_reduce(torch.ones(4))
    try:
        dist.all_reduce(torch.ones(1000 if rank == 1 else 8))
    except RuntimeError as error:
        assert "peer" in str(error), error


def never_sent(rank):
    """Rank 0 waits for what rank 1 does not send, and the others wait in an all-reduce."""
    dist.all_reduce(torch.ones(4))
    if rank == 0:
        dist.recv(torch.ones(8), 1)
    dist.all_reduce(torch.ones(8))


def both_receive(rank):
    """Each of two ranks receives first."""
    dist.all_reduce(torch.ones(4))
    dist.recv(torch.ones(8), 1 - rank)
    dist.send(torch.ones(8), 1 - rank)


def computing(rank):
    """Rank 1 computes and does not come to an end."""
    dist.all_reduce(torch.ones(4))
    x = torch.eye(64)
    while rank == 1:
        x = x @ x
    dist.barrier()


def grid(rank, *stuck):
    """Four ranks, two by two: those of the first dimension and those of the second one reduce. `stuck`
    ones come only to the first two of them."""
    groups = [dist.new_group(ranks) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))]
    tensor, data = groups[rank // 2], groups[2 + rank % 2]
    for group in (tensor, data):
        dist.all_reduce(torch.ones(4), group=group)
    if rank not in stuck:
        for group in (tensor, data, tensor):
            dist.all_reduce(torch.ones(8), group=group)


def stuck_in_a_grid(rank):
    """Rank 3 sleeps: rank 2 waits for it, rank 1 too, and rank 0 for both."""
    grid(rank, 3)


def two_stuck_in_a_grid(rank):
    """Ranks 0 and 3 sleep."""
    grid(rank, 0, 3)


def another_order(rank):
    """Of two groups of all ranks, rank 0 takes the second one first."""
    groups = [dist.new_group((0, 1, 2)) for _ in range(2)]
    for group in groups:
        dist.all_reduce(torch.ones(4), group=group)
    for group in groups if rank else groups[::-1]:
        dist.all_reduce(torch.ones(8), group=group)


class Hang(NamedTuple):
    """work: what each rank does. seen: {rank that leaves a dump: (calls that the recorder sees, how many
    of them do not end)}. groups: {name: ranks}, which gloo's dumps do not say."""

    work: Callable[[int], Any]
    seen: dict[int, tuple[int, int]]
    groups: dict[str, tuple[int, ...]]


WORLD = {"0": (0, 1, 2)}
GRID = {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}
HANGS = {
    "left out": Hang(left_out, {0: (4, 1), 1: (3, 0), 2: (4, 1)}, WORLD),
    "another collective": Hang(another_collective, dict.fromkeys(range(3), (2, 1)), WORLD),
    "another size": Hang(another_size, {0: (2, 1), 1: (2, 0), 2: (2, 1)}, WORLD),
    "larger size": Hang(larger_size, {1: (2, 0), 2: (2, 1), 3: (2, 0)}, {"0": (0, 1, 2, 3)}),
    "never sent": Hang(never_sent, {0: (1, 0), 1: (2, 1), 2: (2, 1)}, WORLD),
    "both receive": Hang(both_receive, dict.fromkeys(range(2), (1, 0)), {"0": (0, 1)}),
    "computing": Hang(computing, {0: (2, 1), 1: (1, 0), 2: (2, 1)}, WORLD),
    "stuck in a grid": Hang(stuck_in_a_grid, {0: (4, 1), 1: (4, 1), 2: (3, 1), 3: (2, 0)}, GRID),
    "two stuck in a grid": Hang(
        two_stuck_in_a_grid, {0: (2, 0), 1: (3, 1), 2: (3, 1), 3: (2, 0)}, GRID
    ),
    "another order": Hang(
        another_order, dict.fromkeys(range(3), (3, 1)), WORLD | {"1": (0, 1, 2), "2": (0, 1, 2)}
    ),
}


def recorded():
    """The entries of this process's flight recorder."""
    dump = torch._C._distributed_c10d._dump_fr_trace_json()
    return json.loads(dump).get("entries", [])


def rank_of(rank, hang, folder):
    """One rank: it works until as many calls have been made and have ended as ever will, and leaves its
    dumps when all have come so far."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # With its parent, it ends, too.
    signal.alarm(LIMIT_S)
    store = dist.FileStore(str(folder / "store"), len(hang.groups["0"]))
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=len(hang.groups["0"]),
        timeout=timedelta(seconds=LIMIT_S),
    )  # fmt: skip
    threading.Thread(target=hang.work, args=(rank,), daemon=True).start()
    calls, open_ = hang.seen.get(rank, (-1, 0))
    while (len(its := recorded()), sum(not one["retired"] for one in its)) != (calls, open_):
        time.sleep(0.02)
    store.add("come", 1)
    while store.add("come", 0) < len(hang.seen):
        time.sleep(0.02)
    recorder = torch._C._distributed_c10d
    dump = recorder._dump_fr_trace_json()
    (folder / f"dump_rank_{rank}.json").write_bytes(
        dump if isinstance(dump, bytes) else dump.encode()
    )
    # Frames take ten seconds to find.
    named = pickle.loads(recorder._dump_fr_trace(includeStackTraces=False))
    named["pg_config"] = {
        name: {"name": name, "desc": name, "ranks": str(list(ranks))}
        for name, ranks in hang.groups.items()
        if rank in ranks
    }
    (folder / "pickles" / f"rank_{rank}").write_bytes(pickle.dumps(named))
    store.add("left", 1)
    while store.add("left", 0) < len(hang.seen):
        time.sleep(0.02)
    os._exit(0)  # Nobody waits for what can never end.


def make(name, folder):
    """Make one hang, of whose processes none is left."""
    hang = HANGS[name]
    (folder / "pickles").mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=rank_of, args=(rank, hang, folder)) for rank in hang.groups["0"]
    ]
    try:
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(LIMIT_S)
    finally:
        for process in ranks:
            process.kill()
            process.join()


if __name__ == "__main__":
    os.environ.update(TORCH_FR_BUFFER_SIZE="200", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    for one in sys.argv[2:] or HANGS:
        make(one, Path(sys.argv[1]) / one)
