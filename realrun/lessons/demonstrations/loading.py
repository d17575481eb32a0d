"""An experiment on loading data: what ranks wait for their batches, and what loading ahead hides."""

import queue
import threading
import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from realrun.comm.mesh import Mesh


def loaded(
    mesh: Mesh, load_s: Sequence[float], compute_s: float, readers: int = 0, steps: int = 8
) -> dict[str, float]:
    """Mean seconds of a step that this rank waits for its batch ("data"), computes ("computed"),
    waits for the other ranks' gradients ("others"), and in all ("step").

    load_s:  how long one batch takes to load, for each rank. Loading and computing are padded: the
             process sleeps, as it does while a disk reads or a GPU computes.
    readers: threads that load ahead of the training, each one batch; 0: none is loaded ahead.
    """
    ready: queue.Queue[None] = queue.Queue(maxsize=max(1, readers))
    over, skipped = threading.Event(), 2  # the first steps fill the queue and are not counted

    def read() -> None:
        while not over.is_set():
            time.sleep(load_s[mesh.rank])
            ready.put(None)

    for _ in range(readers):
        threading.Thread(target=read, daemon=True).start()
    sums = {"data": 0.0, "computed": 0.0, "others": 0.0, "step": 0.0}
    for step in range(steps + skipped):
        times = [time.perf_counter()]
        if readers:
            ready.get()
        else:
            time.sleep(load_s[mesh.rank])
        times.append(time.perf_counter())
        time.sleep(compute_s)
        times.append(time.perf_counter())
        mesh["dp"].all_reduce(torch.zeros(1)).wait()
        times.append(time.perf_counter())
        parts = [b - a for a, b in pairwise(times)]
        if step >= skipped:
            sums = {name: sums[name] + part for name, part in zip(sums, (*parts, sum(parts)))}
    over.set()
    while not ready.empty():  # lets readers go that wait for room
        ready.get()
    return {name: total / steps for name, total in sums.items()}
