"""What processes need besides the time that they are told to take: a padded computation and a paced
round always end somewhat late."""

import json
import time
from statistics import mean

import torch
import torch.distributed as dist

from realrun.comm.clock import now
from realrun.comm.control import gather_bytes
from realrun.comm.group import Mark, Observer
from realrun.comm.mesh import Mesh
from realrun.measure.pings import typical

ROUNDS, EACH_S = 30, 4e-3
"""How often, and of how long a computation and a round, it is measured."""


def mean_overhead(mesh: Mesh) -> tuple[float, float]:
    """(seconds of a padded computation, seconds of a round of a communication) by which they are
    late, the mean of all ranks. All ranks call it together. It is (0, 0) on other ranks than 0."""
    own = _overhead(mesh)
    parts = [json.loads(data) for data in gather_bytes(json.dumps(own).encode())]
    if not parts:
        return 0.0, 0.0
    rounds = [part["round_s"] for part in parts if part["round_s"] is not None]
    return mean(part["compute_s"] for part in parts), mean(rounds) if rounds else 0.0


def _overhead(mesh: Mesh) -> dict[str, float | None]:
    """{"compute_s", "round_s"} of this rank: by how much a padded computation, and each round of a
    paced all-reduce, is late. round_s is None where there is no group to measure."""
    group = next((group for group in mesh.groups.values() if group.size > 1), None)
    rounds = 2 * (group.size - 1) if group else 1
    before = group.observer if group else Observer()
    if group:
        group.observer = _Paced(rounds * EACH_S)
    late: list[float] = []
    slow: list[float] = []
    dist.barrier()
    for _ in range(ROUNDS):
        start_s = now()
        time.sleep(max(0.0, start_s + EACH_S - now()))
        late.append(now() - start_s - EACH_S)
        if group:
            pending = group.all_reduce(torch.zeros(64))
            start_s = now()
            pending.wait()
            slow.append(now() - start_s - rounds * EACH_S)
    if group:
        group.observer = before
        mesh.traffic.clear()
    return {"compute_s": typical(late), "round_s": typical(slow) / rounds if slow else None}


class _Paced(Observer):
    """Every communication shall take `seconds_each`."""

    def __init__(self, seconds_each: float) -> None:
        self.seconds_each = seconds_each

    def seconds(self, begun: Mark) -> float:
        return self.seconds_each
