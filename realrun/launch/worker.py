"""One rank: joins the process group, then runs jobs until told to stop."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from importlib import import_module
from typing import Any

from realrun.measure.cores import shared_gpus
from realrun.run.job import Job
from realrun.run.life import PHASE_LIMIT_S, Doing, Ended, Stop, end_with_parent

# gloo and NCCL pick the interface that the host name resolves to; ours is loopback unless the user
# says otherwise
LOOPBACK = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
# of torch's own waiting, which names nobody: every phase has a limit of its own, which is shorter
WAIT_TIMEOUT_S = 24 * 3600
SILENCE_S = 8.0
"""A rank answers within this time even on a busy machine, for a thread of its own does; so a
shorter timeout is not taken for silence."""
ANSWERS_S = SILENCE_S / 2
"""Ranks that wait for each other have nothing else to do, and answer within this time."""


def use_loopback() -> None:
    """Keep all sockets of this process group on loopback, unless the environment names an
    interface."""
    if LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", LOOPBACK)


def use_own_host_name(local_rank: int) -> None:
    """Let NCCL take this process for a host of its own. It refuses two ranks of one host on one GPU, and
    tells hosts apart by this name; hosts are connected by sockets."""
    os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{local_rank}"


class Rank:
    """A member of the process group. gloo carries control messages always, and the program's where
    there is no CUDA."""

    def __init__(
        self,
        rank: int,
        world: int,
        local_rank: int,
        store: Any,
        device_kind: str,
        doing: Doing | None = None,
        stop: Stop | None = None,
        message_timeout_s: float = WAIT_TIMEOUT_S,
    ) -> None:
        import torch
        import torch.distributed as dist

        from realrun.backends.choice import Backends

        torch.set_num_threads(1)
        self.rank, self.doing, self.stop = rank, doing or Doing(), stop or Stop()
        self.device = torch.device("cpu")
        if device_kind == "cuda":
            self.device = torch.device("cuda", local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
            if shared_gpus(world):
                use_own_host_name(local_rank)
        dist.init_process_group(
            "gloo",
            store=store,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=WAIT_TIMEOUT_S),
        )
        backend, timeout = (
            "nccl" if device_kind == "cuda" else "gloo",
            timedelta(seconds=message_timeout_s),
        )
        self.groups = {
            direction: dist.new_group(backend=backend, timeout=timeout) for direction in (1, -1)
        }
        self.backends = Backends(rank, self.device, self.groups)

    def run(self, job: Job, say: Callable[..., Any]) -> dict[str, Any] | None:
        """Run `job` together with all other ranks; the result on rank 0, None elsewhere. `Ended` if
        any rank was asked to end."""
        from realrun.report.facts import answer
        from realrun.run.session import Session

        # a run that writes no checkpoint has nothing to save: a signal ends it
        with self.stop.listening() if job.checkpoint_every else nullcontext():
            self.doing.enter("starting")
            backend = self.backends.of(job, say)
            session = Session(job, self.rank, self.device, backend, say, self.doing, self.stop)
            measured = session.run()
            self.doing.enter("reporting")
            return None if measured is None else answer(job, measured)

    def links(
        self, sizes: list[int], budget_s: float, say: Callable[..., Any]
    ) -> list[dict[str, Any]] | None:
        """[samples of every collective and of messages] on rank 0, None elsewhere, see
        `realrun.measure.links`."""
        from realrun.measure.links import link_samples

        say("timing messages and collectives")
        return link_samples(self.rank, self.device, self.groups, sizes, budget_s)

    def call(
        self, functions: str, name: str, plan: dict[str, Any], arguments: dict[str, Any]
    ) -> Any:
        """What the function `name` of `listed_functions` answers on this rank; see `Pool.call`."""
        from realrun.comm.mesh import Mesh
        from simlab.spec.plan import Plan

        mesh = Mesh(Plan(**plan).layout, self.rank)
        try:
            return listed_functions(functions)[name](mesh, **arguments)
        finally:
            mesh.close()

    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


def listed_functions(place: str) -> Mapping[str, Callable[..., Any]]:
    """The mapping {name: function} at `place`, 'package.module:MAPPING'."""
    module, _, mapping = place.partition(":")
    return getattr(import_module(module), mapping)


def serve(
    rank: int,
    world: int,
    port: int,
    device_kind: str,
    pipe: Any,
    listener: socket.socket | None,
) -> None:
    """The main function of a local process that `Pool` starts: jobs come in and answers go out
    through `pipe`.

    listener: on rank 0, what listens at `port`: its store, at which the ranks find each other.

    Ends when the pipe does, so a launcher that dies, however it dies, leaves no process behind.
    """
    end_with_parent()  # the fork server, which ends with its launcher
    # ^C is the launcher's to handle, whoever started the fork server
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    tell, stop = Answers(pipe), Stop()
    doing = Doing(lambda text: tell(doing=text))
    os.umask(os.umask(0o077) | 0o002)  # nothing that it writes is everybody's to write
    threading.Thread(target=_read, args=(pipe, jobs, tell, doing, stop), daemon=True).start()
    use_loopback()
    try:
        from torch.distributed import TCPStore

        store = TCPStore(
            "127.0.0.1",
            port,
            world,
            is_master=listener is not None,
            timeout=timedelta(seconds=PHASE_LIMIT_S),
            wait_for_workers=False,
            master_listen_fd=listener.detach() if listener else None,
        )
        member = Rank(rank, world, rank, store, device_kind, doing, stop)
        tell(ready=True)
        while (job := jobs.get()) is not None:
            say = (
                (lambda text, now=None: tell(say=text, now=now)) if rank == 0 else (lambda *_: None)
            )
            tell(result=_result(member, job, say), done=True)
        member.leave()
    except BaseException as error:  # whatever happens here must be told: nobody else sees it
        text = " ".join(str(error).split()) or type(error).__name__
        try:
            tell(error=text)
        except OSError:
            pass  # nobody is left to tell
        os._exit(1)


def _result(member: Rank, job: dict[str, Any], say: Callable[..., Any]) -> Any:
    """Of one message that came in."""
    if "links" in job:
        return member.links(**job["links"], say=say)
    if "call" in job:
        return member.call(**job["call"])
    os.chdir(job["folder"])  # the launcher's: it may have moved since this process was started
    member.stop.number = 0
    try:
        return member.run(Job(**job["run"]), say)
    except Ended as ended:
        return {"ended": str(ended), "number": ended.number}


def _read(pipe: Any, jobs: queue.SimpleQueue[Any], tell: Answers, doing: Doing, stop: Stop) -> None:
    try:
        while True:
            message = json.loads(pipe.recv_bytes())
            asked = message or {}
            if "where" in asked:
                tell(where=_place(), doing=doing(), over=doing.over())
            elif "stop" in asked:
                stop.ask(asked["stop"])
            else:
                jobs.put(message)  # None: it ends once it is done with the others
    except (EOFError, OSError):
        os._exit(1)


def _place() -> str:
    """The line at which the main thread is: the deepest one that is not of an installed package."""
    stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])
    own = [frame for frame in stack if "site-packages" not in frame.filename]
    frame = (own or stack)[-1]
    return f"line {frame.lineno} of {frame.name} ({frame.line})"


class Answers:
    """What a rank tells its launcher, from any thread."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._lock = pipe, threading.Lock()

    def __call__(self, **message: Any) -> None:
        with self._lock:
            self._pipe.send_bytes(json.dumps(message).encode())
