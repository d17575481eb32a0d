"""How long messages and collectives take between the processes of this machine. All ranks of a
`Pool` call these functions together.

A collective is timed as nccl-tests time it: many in a row, the time of all of them by their number,
on the slowest rank. Sizes are of the whole buffer: what every rank has in the end (all-gather), or
has at first (reduce-scatter, all-to-all). gloo's reduce-scatter is an all-reduce and a copy, and is
timed as what it is. A message's time is half a ping-pong's.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from realrun.comm.channels import Channels
from realrun.comm.clock import now
from realrun.comm.control import greatest
from realrun.comm.group import ALL_GATHER, REDUCE_SCATTER
from realrun.measure.pings import ping_pong
from realrun.measure.stopwatch import lower_quartile

Run = Callable[[], Any]
BATCHES, MOST_ROUNDS = 5, 50
ITEM_BYTES = 4


def link_samples(
    rank: int,
    device: torch.device,
    groups: dict[int, dist.ProcessGroup],
    sizes: Iterable[int],
    budget_s: float,
) -> list[dict[str, Any]] | None:
    """The samples {"kind", "size_bytes", "seconds"} of p2p and each of `COLLECTIVES` at each of
    `sizes`, on rank 0; None elsewhere.

    groups: {1: to higher ranks, -1: to lower ranks}. Collectives run in the first, because both
    have all ranks.
    """
    channels, world = Channels(rank, device, groups), dist.get_world_size()
    samples: list[dict[str, Any]] = []
    channels.connect([(0, 1)])
    for size in sizes:
        samples.append(
            {
                "kind": "p2p",
                "size_bytes": size,
                "seconds": message_s(channels, size, 3 if size >= 2**22 else 20),
            }
        )
    for kind in COLLECTIVES:
        for size in sizes:
            part = max(1, size // ITEM_BYTES // world)
            run = COLLECTIVES[kind](part, world, device, groups[1])
            seconds = collective_s(run, device, budget_s)
            samples.append(
                {"kind": kind, "size_bytes": part * world * ITEM_BYTES, "seconds": seconds}
            )
    return samples if rank == 0 else None


def message_s(channels: Channels, size: int, rounds: int) -> float:
    """Seconds of a message of `size` bytes from rank 0 to rank 1, as rank 0 measures them; 0
    elsewhere. The other ranks wait for the two."""
    seconds = 0.0
    if channels.rank < 2:
        _, one_way, _ = ping_pong(
            channels, 0, 1, size // ITEM_BYTES, torch.float32, pause_s=0.0, rounds=rounds
        )
        seconds = lower_quartile(one_way) if one_way else 0.0  # the one that receives has none
    dist.barrier()
    return seconds


def collective_s(run: Run, device: torch.device, budget_s: float, batches: int = BATCHES) -> float:
    """Seconds of `run()`: the lower quartile of batches, each as long as on the slowest rank."""
    run()
    once_s = greatest(_timed(run, 1, device))
    # the same on all ranks, for all know the slowest
    rounds = max(1, min(MOST_ROUNDS, int(budget_s / batches / once_s)))
    return lower_quartile([greatest(_timed(run, rounds, device)) / rounds for _ in range(batches)])


def _timed(run: Run, rounds: int, device: torch.device) -> float:
    dist.barrier()
    _wait(device)
    start_s = now()
    for _ in range(rounds):
        run()
    _wait(device)
    return now() - start_s


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _all_reduce(part: int, world: int, device: torch.device, group: dist.ProcessGroup) -> Run:
    whole = torch.zeros(part * world, device=device)
    return lambda: dist.all_reduce(whole, group=group)


def _all_gather(part: int, world: int, device: torch.device, group: dist.ProcessGroup) -> Run:
    mine, whole = torch.zeros(part, device=device), torch.zeros(part * world, device=device)
    return lambda: ALL_GATHER(whole, mine, group=group)


def _reduce_scatter(part: int, world: int, device: torch.device, group: dist.ProcessGroup) -> Run:
    mine, whole = torch.zeros(part, device=device), torch.zeros(part * world, device=device)
    return lambda: REDUCE_SCATTER(mine, whole, group=group)


def _broadcast(part: int, world: int, device: torch.device, group: dist.ProcessGroup) -> Run:
    whole = torch.zeros(part * world, device=device)
    return lambda: dist.broadcast(whole, 0, group=group)


def _all_to_all(part: int, world: int, device: torch.device, group: dist.ProcessGroup) -> Run:
    given = torch.zeros(part * world, device=device)
    taken = torch.zeros_like(given)
    return lambda: dist.all_to_all_single(taken, given, group=group)


COLLECTIVES: dict[str, Callable[[int, int, torch.device, dist.ProcessGroup], Run]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
}
"""{kind: function of (elements of a rank's part, ranks, device, group): what does it once}"""
