"""Local processes, one per rank: started once, kept warm between jobs, watched, and never left
behind."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from realrun.backends.choice import watch_of
from realrun.launch.folder import prepare
from realrun.launch.local_memory import check_memory
from realrun.launch.start import listening, process_context
from realrun.launch.worker import listed_functions, serve
from realrun.run.job import Job, plan_fields
from realrun.run.watch import Watch, exit_text
from simlab.errors import InputError, SimlabError, did_you_mean
from simlab.spec.plan import Plan

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

START_TIMEOUT_S = 120
LINKS_TIMEOUT_S = 900
CALL_TIMEOUT_S = 120
# from the first sign of trouble to the verdict: the rank to blame is often not the first to
# complain
GRACE_S = 1.0
POLL_S = 0.2
# what a rank says when it lost another one: a consequence, not a cause
CONSEQUENCES = (
    "connection closed",
    "connection reset",
    "connection refused",
    "broken pipe",
    "timed out",
    "socket",
)


class RunError(SimlabError):
    """The run ended before its time. `partial` lists the files with what was recorded until
    then."""

    def __init__(self, reason: str, partial: Iterable[Path] = ()) -> None:
        super().__init__(reason)
        self.partial = list(partial)


class Pool:
    """`ranks` local processes in one process group on loopback, ready for one job after another.

    device: 'cpu' (gloo) or 'cuda' (NCCL, one device per rank).
    port:   of the rendezvous store on 127.0.0.1; 0 takes a free one.
    say:    called with one line of progress at a time.
    show:   called instead with the figures of such a line (`realrun.run.progress.TrainingProgress.said`),
            where it has some; None: `say` is.

    Use it as a context manager, or call `close`. A pool whose run failed is closed. Raises
    `InputError` if the port is taken or the machine has not enough memory, `RunError` if a process
    fails.
    """

    def __init__(
        self,
        ranks: int,
        *,
        device: str = "cpu",
        port: int = 0,
        say: Callable[[str], Any] = lambda text: None,
        show: Callable[[Any], Any] | None = None,
    ) -> None:
        if ranks < 1:
            raise InputError(f"{ranks} ranks: give at least 1")
        check_memory(ranks, 0)
        self.ranks, self.device = ranks, device
        self.say, self.show = say, show
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._store: Any = None
        listener = listening(port)
        say(f"starting {ranks} process{'es' if ranks > 1 else ''}")
        try:
            self._start(listener, device)
        except BaseException:
            self.close(at_once=True)
            raise

    def _start(self, listener: socket.socket, device: str) -> None:
        context = process_context()
        port = listener.getsockname()[1]
        for rank in range(self.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(rank, self.ranks, port, device, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        from torch.distributed import TCPStore  # here, while the processes import theirs

        self._store = TCPStore(
            "127.0.0.1",
            port,
            self.ranks,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self._collect("ready", watch=None)

    def run(self, job: Job) -> dict[str, Any]:
        """Run `job` and return rank 0's result, see `Session.run`. `RunError` says which rank
        failed, at what, and why."""
        job.validate()
        if job.ranks != self.ranks:
            raise InputError(f"the job needs {job.ranks} ranks, this pool has {self.ranks}")
        if not self._processes:
            raise RunError("this pool is closed: start a new one")
        check_memory(self.ranks, job.model_bytes())
        prepare(job)
        watch = watch_of(job)
        try:
            self._tell(job.to_json())
            return self._collect("done", watch)[0]["result"]
        except BaseException as error:  # an interrupt too: what was recorded is kept
            self.close(at_once=True)
            error.partial = watch.save_partial()  # type: ignore[attr-defined]
            raise

    def call(self, functions: str, name: str, plan: Plan, **arguments: Any) -> list[Any]:
        """[per rank] what a function answers that each rank calls with its `Mesh` of `plan` and
        `arguments`.

        functions: where a mapping {name: function} is found, such as 'package.module:MAPPING'.
        Names and plain JSON values cross to the processes. No code does, so only functions that a
        module lists can be called.
        """
        known = listed_functions(functions)
        if name not in known:
            raise InputError(
                f"function {name!r}{did_you_mean(name, known)}: there is {', '.join(known)}"
            )
        if plan.gpus != self.ranks:
            raise InputError(f"the plan takes {plan.gpus} ranks, this pool has {self.ranks}")
        request = {"functions": functions, "name": name, "plan": plan_fields(plan)}
        message = {"call": request | {"arguments": arguments}}
        return self._ask(message, CALL_TIMEOUT_S, f"did not end {name!r}")

    def links(self, sizes: Iterable[int], budget_s: float) -> list[dict[str, Any]]:
        """[{"kind", "size_bytes", "seconds"}]: messages and collectives among this pool's
        processes, see `realrun.measure.links`."""
        message = {"links": {"sizes": list(sizes), "budget_s": budget_s}}
        return self._ask(message, LINKS_TIMEOUT_S, "did not end their messages and collectives")[0]

    def _ask(self, message: dict[str, Any], timeout_s: float, late: str) -> list[Any]:
        """[per rank] its result."""
        if not self._processes:
            raise RunError("this pool is closed: start a new one")
        try:
            self._tell(message)
            answers = self._collect("done", watch=None, timeout_s=timeout_s, late=late)
            return [answers[rank]["result"] for rank in range(self.ranks)]
        except BaseException:
            self.close(at_once=True)
            raise

    def _tell(self, message: dict[str, Any]) -> None:
        for pipe in self._pipes:
            try:
                pipe.send_bytes(json.dumps(message).encode())
            except OSError:
                pass  # its process died while the pool was idle: `_collect` will say so

    def _collect(
        self,
        key: str,
        watch: Watch | None,
        timeout_s: float = START_TIMEOUT_S,
        late: str = "did not find each other",
    ) -> dict[int, dict[str, Any]]:
        """[per rank] the message that has `key`; `RunError` at the first sign that one will not
        come."""
        from multiprocessing.connection import wait as wait_for_any  # see `process_context`

        answers: dict[int, dict[str, Any]] = {}
        started_s = time.monotonic()
        while len(answers) < self.ranks:
            wait_for_any([*self._pipes, *(process.sentinel for process in self._processes)], POLL_S)
            messages = self._read_messages()
            answers |= {rank: message for rank, message in messages if key in message}
            dead = any(process.exitcode is not None for process in self._processes)
            if dead or any("error" in message for _, message in messages):
                raise RunError(self._verdict(messages, watch))
            if watch is None and time.monotonic() - started_s > timeout_s:
                raise RunError(f"the {self.ranks} processes {late} within {timeout_s} s")
            if watch is not None and (stuck := watch.stuck()):
                raise RunError(stuck)
        return answers

    def _read_messages(self) -> list[tuple[int, dict[str, Any]]]:
        """[(rank, message)] that have come in; progress lines are passed on at once."""
        messages = []
        for rank, pipe in enumerate(self._pipes):
            try:
                while pipe.poll():
                    message = json.loads(pipe.recv_bytes())
                    if "say" in message:
                        if self.show and message.get("now"):
                            self.show(message["now"])
                        else:
                            self.say(message["say"])
                    else:
                        messages.append((rank, message))
            except (EOFError, OSError):
                pass  # its process is dead or dying: the exit code will tell
        return messages

    def _verdict(self, messages: list[tuple[int, dict[str, Any]]], watch: Watch | None) -> str:
        """One line: a rank killed from outside first, then an error of a rank's own, then what
        follows from those."""
        time.sleep(GRACE_S)
        messages += self._read_messages()
        for rank, process in enumerate(self._processes):
            if process.exitcode is not None and process.exitcode < 0:
                place = f" while {watch.place_of(rank)}" if watch else " at start"
                return f"rank {rank} (process {process.pid}) {exit_text(process.exitcode)}{place}; the others were ended"
        errors = [(rank, message) for rank, message in messages if "error" in message]
        errors.sort(key=lambda item: any(word in item[1]["error"].lower() for word in CONSEQUENCES))
        if errors:
            rank, message = errors[0]
            return (
                message["error"]
                if message["error"].startswith("rank ")
                else f"rank {rank}: {message['error']}"
            )
        ended = [
            f"rank {rank} (process {process.pid}) {exit_text(process.exitcode)}"
            for rank, process in enumerate(self._processes)
            if process.exitcode is not None
        ]
        hint = "; a script that starts a Pool does so under `if __name__ == '__main__':`"
        return "; ".join(ended) + ("" if watch else hint)

    def close(self, at_once: bool = False) -> None:
        """End all processes: asked first unless `at_once`, then killed."""
        for pipe in self._pipes:
            try:
                pipe.send_bytes(b"null")
            except OSError:
                pass
        deadline_s = time.monotonic() + (0 if at_once else 3)
        for process in self._processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes, self._store = [], [], None

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
