"""What messages and collectives take between the processes of this machine: called by all ranks of a `Pool` together.

A collective is timed as nccl-tests time it: many in a row, the time of all by their number, the slowest rank's. Sizes are of the whole
buffer: what every rank has in the end (all-gather), or has at first (reduce-scatter, all-to-all). gloo's reduce-scatter is an all-reduce
and a copy, and is timed as what it is. A message's time is half a ping-pong's.
"""

import torch
import torch.distributed as dist

from realrun.channels import Channels
from realrun.clock import now
from realrun.measure import ping_pong
from realrun.parallel.group import ALL_GATHER, REDUCE_SCATTER
from realrun.stopwatch import lower_quartile

BATCHES, MOST_ROUNDS = 5, 50
ITEM_BYTES = 4


def link_samples(rank, device, groups, sizes, budget_s):
    """[{"kind", "size_bytes", "seconds"}] of p2p and each of `COLLECTIVES` at each of `sizes`, on rank 0; None elsewhere.

    groups: {1: to higher ranks, -1: to lower ranks}; collectives run in the first, which has all ranks as both have.
    """
    channels, world, samples = Channels(rank, device, groups), dist.get_world_size(), []
    channels.connect([(0, 1)])
    for size in sizes:
        samples.append({"kind": "p2p", "size_bytes": size, "seconds": message_s(channels, size, 3 if size >= 2**22 else 20)})
    for kind in COLLECTIVES:
        for size in sizes:
            part = max(1, size // ITEM_BYTES // world)
            run = COLLECTIVES[kind](part, world, device, groups[1])
            seconds = collective_s(run, device, budget_s)
            samples.append({"kind": kind, "size_bytes": part * world * ITEM_BYTES, "seconds": seconds})
    return samples if rank == 0 else None


def message_s(channels, size, rounds):
    """From rank 0 to rank 1, s, as rank 0 has it; the others wait for the two."""
    seconds = 0.0
    if channels.rank < 2:
        _, one_way, _ = ping_pong(channels, 0, 1, size // ITEM_BYTES, torch.float32, pause_s=0.0, rounds=rounds)
        seconds = lower_quartile(one_way) if one_way else 0.0  # the one that receives has none
    dist.barrier()
    return seconds


def collective_s(run, device, budget_s, batches=BATCHES):
    """Seconds of `run()`: the lower quartile of batches, each the slowest rank's."""
    run()
    once_s = _slowest(_timed(run, 1, device))
    rounds = max(1, min(MOST_ROUNDS, int(budget_s / batches / once_s)))  # the same on all ranks, for all know the slowest
    return lower_quartile([_slowest(_timed(run, rounds, device)) / rounds for _ in range(batches)])


def _timed(run, rounds, device):
    dist.barrier()
    _wait(device)
    start_s = now()
    for _ in range(rounds):
        run()
    _wait(device)
    return now() - start_s


def _wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _slowest(seconds):
    """The greatest of all ranks' `seconds`, told over the control group."""
    worst = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.item()


# each: (elements of a rank's part, ranks, device, group) → a function that does it once ---------------------------------


def _all_reduce(part, world, device, group):
    whole = torch.zeros(part * world, device=device)
    return lambda: dist.all_reduce(whole, group=group)


def _all_gather(part, world, device, group):
    mine, whole = torch.zeros(part, device=device), torch.zeros(part * world, device=device)
    return lambda: ALL_GATHER(whole, mine, group=group)


def _reduce_scatter(part, world, device, group):
    mine, whole = torch.zeros(part, device=device), torch.zeros(part * world, device=device)
    return lambda: REDUCE_SCATTER(mine, whole, group=group)


def _broadcast(part, world, device, group):
    whole = torch.zeros(part * world, device=device)
    return lambda: dist.broadcast(whole, 0, group=group)


def _all_to_all(part, world, device, group):
    given, taken = torch.zeros(part * world, device=device), torch.zeros(part * world, device=device)
    return lambda: dist.all_to_all_single(taken, given, group=group)


COLLECTIVES = {
    "all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast, "all_to_all": _all_to_all,
}  # fmt: skip
