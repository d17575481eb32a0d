"""Where the ranks come from: processes of our own on this machine, or those that torchrun has started."""

import os
from datetime import timedelta

from realrun.folder import prepare
from realrun.pool import Pool, RunError, check_memory
from realrun.worker import Rank, use_loopback
from simlab.errors import InputError


def under_torchrun():
    """Whether this process is one of several ranks that somebody else started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def world():
    """How many ranks torchrun has started; `InputError` if it has not."""
    if not under_torchrun():
        raise InputError("--elastic without torchrun, which says how many ranks there are: start with torchrun, or leave --elastic out")
    return _environment("WORLD_SIZE")


def choose_device(asked, ranks, *, only_cpu=False):
    """'cuda' or 'cpu': CUDA where there is a device for every rank of this machine; `InputError` if asked for and not.

    only_cpu: what else was asked for exists on the CPU alone, so 'auto' stays there.
    """
    if asked == "cpu" or (asked == "auto" and only_cpu):
        return "cpu"
    import torch  # here: it takes two seconds, and what was typed wrongly shall be told before

    local_ranks = _environment("LOCAL_WORLD_SIZE", ranks) if under_torchrun() else ranks
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "cuda" and devices < local_ranks:
        raise InputError(f"--device cuda: {local_ranks} ranks need {local_ranks} CUDA devices, this machine has {devices}")
    return "cuda" if 0 < local_ranks <= devices else "cpu"


def run(job, device, *, port=0, say):
    """Run `job`: rank 0's result, or None on another rank of torchrun's."""
    if under_torchrun():
        return _run_as_rank(job, device, say)
    check_memory(job.ranks, job.model_bytes())
    prepare(job)
    with Pool(job.ranks, device=device, port=port, say=say) as pool:
        return pool.run(job)


def _run_as_rank(job, device, say):
    rank, world = _environment("RANK"), _environment("WORLD_SIZE")
    local_rank, local_world = _environment("LOCAL_RANK", rank), _environment("LOCAL_WORLD_SIZE", world)
    if world != job.ranks:
        raise InputError(f"torchrun started {world} ranks, the program has {job.ranks}: start as many as --pp")
    if rank >= world:
        raise InputError(f"RANK is {rank}, but WORLD_SIZE {world}: ranks go from 0 to {world - 1}")
    if "MASTER_ADDR" not in os.environ:
        raise InputError("RANK and WORLD_SIZE are set in the environment, but MASTER_ADDR is not: start with torchrun, or set all of them")
    where = f"{os.environ['MASTER_ADDR']}:{_environment('MASTER_PORT')}"
    if local_world == world:
        use_loopback()
    if rank == 0:
        prepare(job)
    import torch.distributed as dist

    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # the agent's outlives a restart: addresses of dead ranks are in it
            store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        member = Rank(rank, world, local_rank, store, device, message_timeout_s=job.timeout_s)
        result = member.run(job, say)
        member.leave()
        return result
    except (dist.DistError, RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error):
            raise InputError(f"rendezvous on {where}: the port is in use; give another MASTER_PORT") from error
        raise RunError(f"rank {rank}: {' '.join(str(error).split())}") from error


def _environment(name, default=None):
    """The whole number in the environment variable `name`; `InputError` if there is none and no default either."""
    text = os.environ.get(name, default)
    if not str(text).isdecimal():
        raise InputError(f"{name} is {text!r} in the environment: a whole number is needed, as torchrun sets it")
    return int(text)
