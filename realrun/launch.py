"""Where the ranks come from: processes of our own on this machine, or those that torchrun has started."""

import os
from datetime import timedelta

from simlab.errors import InputError

from realrun.pool import Pool, RunError
from realrun.worker import Rank, use_loopback


def under_torchrun():
    """Whether this process is one of several ranks that somebody else started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def choose_device(asked, ranks):
    """'cuda' or 'cpu': CUDA where there is a device for every rank of this machine; `InputError` if asked for and not."""
    import torch

    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) if under_torchrun() else ranks
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "cuda" and devices < local_ranks:
        raise InputError(f"--device cuda: {local_ranks} ranks need {local_ranks} CUDA devices, this machine has {devices}")
    return "cuda" if asked != "cpu" and 0 < local_ranks <= devices else "cpu"


def run(job, device, *, port=0, say):
    """Run `job`: rank 0's result, or None on another rank of torchrun's."""
    if under_torchrun():
        return _run_as_rank(job, device, say)
    say(f"starting {job.ranks} processes")
    with Pool(job.ranks, device=device, port=port, say=say) as pool:
        return pool.run(job)


def _run_as_rank(job, device, say):
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_world = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if world != job.ranks:
        raise InputError(f"torchrun started {world} ranks, the program has {job.ranks}: start as many as --pp")
    if local_world == world:
        use_loopback()
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))
        member = Rank(rank, world, local_rank, store, device, timeout_s=job.timeout_s)
        result = member.run(job, say)
        member.leave()
        return result
    except (dist.DistError, RuntimeError, ValueError) as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        if "EADDRINUSE" in str(error):
            raise InputError(f"rendezvous on {where}: the port is in use; give another MASTER_PORT") from error
        raise RunError(f"rank {rank}: {' '.join(str(error).split())}") from error
