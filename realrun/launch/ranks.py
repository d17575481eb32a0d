"""Where the ranks come from: processes of our own on this machine, or those that torchrun has
started."""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

from realrun.backends.choice import watch_of
from realrun.checkpoint.errors import NothingLeft
from realrun.checkpoint.resuming import look
from realrun.launch import lock
from realrun.launch.folder import prepare
from realrun.launch.heartbeat import LEAVES_S, Heartbeat
from realrun.launch.pool import Pool, RunError
from realrun.launch.worker import Rank, use_loopback
from realrun.measure.cores import shared_gpus
from realrun.measure.local_memory import check_memory
from realrun.run.job import Job
from realrun.run.life import ASKS, SAVE_LIMIT_S, Ended
from realrun.run.watch import is_consequence
from simlab.errors import InputError, SimlabError, shortened

REFUSAL, HEARD = "what rank 0 refuses", "how many ranks have heard it"
REFUSALS: dict[str, type[SimlabError]] = {"nothing left": NothingLeft, "input": InputError}
"""{name: kind of error} of what a rank is told that rank 0 refuses."""

DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg", "/dev/kfd")
"""Of NVIDIA's driver, its driver for Jetson, Windows' for Linux and AMD's."""


def under_torchrun() -> bool:
    """Whether this process is one of several ranks that somebody else started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def world() -> int:
    """How many ranks torchrun has started; `InputError` if it has not."""
    if not under_torchrun():
        raise InputError(
            "--elastic without torchrun, which says how many ranks there are: start with torchrun, or leave --elastic out"
        )
    return _environment("WORLD_SIZE")


def choose_device(
    asked: str,
    ranks: int,
    *,
    only_cpu: bool = False,
    may_share: bool = False,
    say: Callable[[str], Any] = lambda text: None,
) -> str:
    """'cuda' or 'cpu': CUDA where there is a device for every rank of this machine; `InputError` if
    asked for and not.

    only_cpu: what else was asked for exists on the CPU alone, so 'auto' stays there.
    may_share: several ranks may share a device, if 'cuda' is asked for.
    say:      called with why 'auto' stays on the CPU of a machine that has a GPU's driver.
    """
    if asked == "cpu":
        return "cpu"
    if asked == "auto" and (only_cpu or not has_driver()):
        if has_driver():
            say("on the CPU: boxes, op times and links are kept to there alone")
        return "cpu"
    import torch  # here: it takes two seconds, and what was typed wrongly shall be told before

    local_ranks = _environment("LOCAL_WORLD_SIZE", ranks) if under_torchrun() else ranks
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "cuda" and devices < local_ranks:
        if may_share and (why := shared_gpus(ranks)):
            say(why)
            return "cuda"
        raise InputError(
            f"--device cuda: {local_ranks} ranks need {local_ranks} CUDA devices, this machine has {devices}"
        )
    if 0 < local_ranks <= devices:
        return "cuda"
    say(f"on the CPU: {local_ranks} ranks need as many CUDA devices, this machine has {devices}")
    return "cpu"


def has_driver() -> bool:
    """Whether this machine may have a device, which is seen at once, without torch: on Linux a
    driver has one of `DEVICE_FILES`."""
    return sys.platform != "linux" or any(map(os.path.exists, DEVICE_FILES))


def held(jobs: Sequence[Job]) -> AbstractContextManager[None]:
    """See `realrun.launch.lock`. Of torchrun's ranks, rank 0 holds the folders for all."""
    others = under_torchrun() and _environment("RANK") > 0
    return nullcontext() if others else lock.held(jobs)


def run(
    jobs: Sequence[Job], device: str, *, port: int = 0, say: Callable[..., Any]
) -> list[dict[str, Any]] | None:
    """Run `jobs`, which take the same number of ranks, one after the other: [rank 0's answer to
    each], or None on another rank of torchrun's. The caller has `held` them."""
    if under_torchrun():
        return _run_as_rank(jobs, device, say)
    for job in jobs:
        check_memory(job.ranks, job.model_bytes())
        look(job, say)
    for job in jobs:
        prepare(job)
    with Pool(jobs[0].ranks, device=device, port=port, say=say) as pool:
        return [pool.run_held(job) for job in jobs]


class _Place(NamedTuple):
    """Which of torchrun's ranks this process is."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    where: str
    """The address at which the ranks meet."""

    @property
    def is_alone(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.local_world == self.world


def _place(ranks: int) -> _Place:
    """What the environment says; `InputError` if it contradicts itself, or a job of `ranks`."""
    rank, world = _environment("RANK"), _environment("WORLD_SIZE")
    local_rank, local_world = (
        _environment("LOCAL_RANK", rank),
        _environment("LOCAL_WORLD_SIZE", world),
    )
    if world != ranks:
        raise InputError(
            f"torchrun started {world} ranks, the program has {ranks}: start as many as --pp"
        )
    if rank >= world:
        raise InputError(f"RANK is {rank}, but WORLD_SIZE {world}: ranks go from 0 to {world - 1}")
    if "MASTER_ADDR" not in os.environ:
        raise InputError(
            "RANK and WORLD_SIZE are set in the environment, but MASTER_ADDR is not: start with torchrun, or set all of them"
        )
    where = f"{os.environ['MASTER_ADDR']}:{_environment('MASTER_PORT')}"
    return _Place(rank, world, local_rank, local_world, where)


def _run_as_rank(
    jobs: Sequence[Job], device: str, say: Callable[..., Any]
) -> list[dict[str, Any]] | None:
    timeout_s, place = jobs[0].timeout_s, _place(jobs[0].ranks)
    rank, world = place.rank, place.world
    if place.is_alone:
        use_loopback()
    import torch.distributed as dist

    heart, refusal = None, None
    try:
        store = _store()
        heart = Heartbeat(_another_client(store), rank, world, timeout_s)
        if rank == 0:
            heart.doing.enter("looking at checkpoints and folders", SAVE_LIMIT_S)
            refusal = _look_and_prepare(jobs, say)
            heart.doing.enter("starting")
        if (refusal := _refusal_of_rank_0(store, rank, world, refusal)) is not None:
            raise refusal
        member = Rank(
            rank, world, place.local_rank, store, device, heart.doing, message_timeout_s=timeout_s
        )
        answers = []
        for one in jobs:
            if rank == 0 and place.is_alone:
                heart.watch = watch_of(one)
            answers.append(member.run(one, say) or {})
        member.leave()
        with _heedless():
            heart.leave()
        return None if rank else answers
    except Ended:
        assert heart is not None  # it ran a job
        with _heedless():
            heart.leave()
        if rank:
            return None  # rank 0 says it, and has the exit status
        raise
    except (dist.DistError, RuntimeError, ValueError, SimlabError) as error:
        if error is refusal or (told := _told(error, heart, place)) is error:
            raise
        raise told from error
    finally:
        if heart is not None:
            heart.stop()


def _store() -> Any:
    """The store at which the ranks meet."""
    import torch.distributed as dist

    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))
    # the agent's outlives a restart: addresses of dead ranks are in it
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
        store = dist.PrefixStore(f"attempt {attempt}", store)
    return store


def _told(error: Exception, heart: Heartbeat | None, place: _Place) -> Exception:
    """The error that this rank ends with: which rank is lost, where `error` only follows from that."""
    if heart is not None and is_consequence(str(error)):
        with _heedless():
            text = heart.blame()
        if text is not None:
            return RunError(text)
    if isinstance(error, SimlabError):
        return error
    if "EADDRINUSE" in str(error):
        return InputError(
            f"rendezvous on {place.where}: the port is in use; give another MASTER_PORT"
        )
    return RunError(f"rank {place.rank}: {' '.join(str(error).split())}")


@contextmanager
def _heedless() -> Iterator[None]:
    """Inside, no signal that asks keeps this rank from saying which one is lost. torchrun sends one as
    soon as it has seen that a rank has ended, and this takes no longer than a rank may be silent."""
    main = threading.current_thread() is threading.main_thread()  # others hear no signal
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ASKS if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _look_and_prepare(jobs: Sequence[Job], say: Callable[..., Any]) -> SimlabError | None:
    """What rank 0 refuses while the others wait for it; None: the folders are made."""
    try:
        for job in jobs:
            look(job, say)
        for job in jobs:
            prepare(job)
    except SimlabError as error:
        return error
    return None


def _refusal_of_rank_0(
    store: Any, rank: int, world: int, refusal: SimlabError | None
) -> SimlabError | None:
    """`refusal` of rank 0, on all ranks."""
    if rank == 0:
        kind = next((name for name, its in REFUSALS.items() if type(refusal) is its), "failed")
        store.set(REFUSAL, json.dumps(refusal and [kind, str(refusal)]))
        deadline_s = time.monotonic() + LEAVES_S
        # who holds the store does not leave before the others have read it
        while refusal is not None and store.add(HEARD, 0) < world - 1:
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.05)
        return refusal
    store.wait([REFUSAL], timedelta(seconds=SAVE_LIMIT_S))  # it looks at checkpoints
    said = json.loads(store.get(REFUSAL))
    store.add(HEARD, 1)
    return said and REFUSALS.get(said[0], SimlabError)(said[1])


def _another_client(store: Any) -> Any:
    """A client of its own of the store that `store` is one of: two threads must not share one."""
    clone = getattr(store, "clone", None)
    return store if clone is None else clone()


def _environment(name: str, default: int | None = None) -> int:
    """The whole number in the environment variable `name`; `InputError` if there is none and no
    default either."""
    text = os.environ.get(name, default)
    if text is None or not re.fullmatch("[0-9]{1,9}", str(text)):
        raise InputError(
            f"{name} is {shortened(text)} in the environment: a whole number is needed, as torchrun sets it"
        )
    return int(text)
