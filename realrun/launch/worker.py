"""One rank: joins the process group, then runs jobs until told to stop."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

from realrun.run.job import Job

# gloo and NCCL pick the interface that the host name resolves to; ours is loopback unless the user
# says otherwise
LOOPBACK = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
# a rank that waits this long gives up by itself; a launcher that watches is quicker
WAIT_TIMEOUT_S = 600


def use_loopback() -> None:
    """Keep all sockets of this process group on loopback, unless the environment names an
    interface."""
    if LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", LOOPBACK)


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
        message_timeout_s: float = WAIT_TIMEOUT_S,
    ) -> None:
        import torch
        import torch.distributed as dist

        from realrun.backends.choice import Backends

        torch.set_num_threads(1)
        self.rank = rank
        self.device = (
            torch.device("cuda", local_rank) if device_kind == "cuda" else torch.device("cpu")
        )
        if device_kind == "cuda":
            torch.cuda.set_device(self.device)
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
        """Run `job` together with all other ranks; the result on rank 0, None elsewhere."""
        from realrun.report.facts import answer
        from realrun.run.session import Session

        backend = self.backends.of(job, say)
        measured = Session(job, self.rank, self.device, backend, say).run()
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


def serve(rank: int, world: int, port: int, device_kind: str, pipe: Any) -> None:
    """The main function of a local process that `Pool` starts: jobs come in and answers go out
    through `pipe`.

    Ends when the pipe does, so a launcher that dies, however it dies, leaves no process behind.
    """
    # ^C is the launcher's to handle, whoever started the fork server
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(pipe, jobs), daemon=True).start()
    use_loopback()
    try:
        from torch.distributed import TCPStore

        store = TCPStore(
            "127.0.0.1",
            port,
            world,
            is_master=False,
            timeout=timedelta(seconds=60),
            wait_for_workers=False,
        )
        member = Rank(rank, world, rank, store, device_kind)
        _answer(pipe, ready=True)
        while (job := jobs.get()) is not None:
            say = (
                (lambda text, now=None: _answer(pipe, say=text, now=now))
                if rank == 0
                else (lambda *_: None)
            )
            _answer(pipe, result=_result(member, job, say), done=True)
        member.leave()
    except BaseException as error:  # whatever happens here must be told: nobody else sees it
        text = " ".join(str(error).split()) or type(error).__name__
        try:
            _answer(pipe, error=text)
        except OSError:
            pass  # nobody is left to tell
        os._exit(1)


def _result(member: Rank, job: dict[str, Any], say: Callable[..., Any]) -> Any:
    """Of one message that came in."""
    if "links" in job:
        return member.links(**job["links"], say=say)
    if "call" in job:
        return member.call(**job["call"])
    return member.run(Job(**job), say)


def _read(pipe: Any, jobs: queue.SimpleQueue[Any]) -> None:
    try:
        while (message := json.loads(pipe.recv_bytes())) is not None:
            jobs.put(message)
        jobs.put(None)
    except (EOFError, OSError):
        os._exit(1)


def _answer(pipe: Any, **message: Any) -> None:
    pipe.send_bytes(json.dumps(message).encode())
