"""What each rank says of its machine before a training: versions, wall clock, and its link to rank 0."""

import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from realrun.comm.clock import now, offset_from_rank_0
from realrun.comm.mesh import Mesh
from simlab.display import plain
from simlab.operations.doctor import examined
from simlab.units import MIB

SENT_BYTES = 4 * MIB
ROUNDS = 5


def examine(mesh: Mesh, *, folder: str, port: int) -> dict[str, Any]:
    """The facts of this rank: {"machine": `simlab.operations.doctor.Machine` as plain values,
    "ahead_s": its wall clock less the time since rank 0's clock began, "bytes_per_s": to
    rank 0 by gloo, 0 on rank 0}. All ranks call it together."""
    rank, world = mesh.rank, dist.get_world_size()
    machine = plain(examined(folder, port=port)) | {"torch": torch_facts()}
    dist.barrier()
    offset_s, _ = offset_from_rank_0(rank, world)
    ahead_s = time.time() - (now() + offset_s)
    return {
        "machine": machine,
        "ahead_s": ahead_s,
        "bytes_per_s": _bytes_per_s_to_rank_0(rank, world),
    }


EXAMINE = {"examine": examine}
"""What `Pool.call` may call."""


def torch_facts() -> dict[str, Any]:
    """What only torch knows of a machine."""
    has_nccl, has_cuda = dist.is_nccl_available(), torch.cuda.is_available()
    return {
        "gloo": dist.is_gloo_available(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl and has_cuda else None,
        "cuda": torch.version.cuda if has_cuda else None,
        "tf32": torch.backends.cuda.matmul.allow_tf32 if has_cuda else None,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _bytes_per_s_to_rank_0(rank: int, world: int) -> float:
    """What this rank sends to rank 0 in a second, while no other does; a message and its empty answer
    are timed, and the median of several taken."""
    message, answer = torch.zeros(SENT_BYTES // 4), torch.zeros(1)
    found = 0.0
    for peer in range(1, world):
        times = []
        for _ in range(ROUNDS):
            begin_s = now()
            if rank == 0:
                dist.recv(message, peer)
                dist.send(answer, peer)
            elif rank == peer:
                dist.send(message, 0)
                dist.recv(answer, 0)
            times.append(now() - begin_s)
        if rank == peer:
            found = SENT_BYTES / median(times)
    return found
