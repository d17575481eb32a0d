"""The processes of a pool, one per rank, and their pipes: started, told, read and ended."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from realrun.launch.start import (
    fork_server_answers,
    fork_server_text,
    process_context,
)
from realrun.launch.worker import SILENCE_S, serve
from realrun.run.life import PHASE_LIMIT_S

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

POLL_S = 0.2


class Processes:
    """Local processes that wait for messages. None are started yet.

    pass_on: called with each message that has a line of progress.
    """

    def __init__(self, pass_on: Callable[[dict[str, Any]], None]) -> None:
        self._pass_on = pass_on
        self.started: list[BaseProcess] = []
        self.pipes: list[Connection] = []

    def start(self, ranks: int, listener: socket.socket, device: str) -> None:
        """Start one process for each rank. The store at which they find each other is rank 0's, so
        that this process needs no torch. `ChildProcessError` if the fork server does not answer or ends."""
        context = process_context()
        port = listener.getsockname()[1]
        with listener, fork_server_answers(PHASE_LIMIT_S) as killed:
            for rank in range(ranks):
                ours, theirs = context.Pipe()
                store = None if rank else listener
                process = context.Process(
                    target=serve, args=(rank, ranks, port, device, theirs, store), daemon=True
                )
                try:
                    process.start()
                except (EOFError, ConnectionError) as error:
                    what = (
                        f"has not answered for {SILENCE_S:g} s or more, and was killed"
                        if killed.is_set()
                        else "has ended"
                    )
                    raise ChildProcessError(f"{fork_server_text()} {what}") from error
                theirs.close()
                self.started.append(process)
                self.pipes.append(ours)

    def tell(self, message: dict[str, Any]) -> None:
        """Send `message` to all."""
        for pipe in self.pipes:
            try:
                pipe.send_bytes(json.dumps(message).encode())
            except OSError:
                pass  # its process died while the pool was idle: its exit code will say so

    def wait(self) -> None:
        """Wait until one of them says something or ends, or for `POLL_S`."""
        from multiprocessing.connection import wait as wait_for_any  # see `process_context`

        wait_for_any([*self.pipes, *(process.sentinel for process in self.started)], POLL_S)

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """[(rank, message)] that have come in; progress lines are passed on at once."""
        messages = []
        for rank, pipe in enumerate(self.pipes):
            try:
                while pipe.poll():
                    message = json.loads(pipe.recv_bytes())
                    if "say" in message:
                        self._pass_on(message)
                    else:
                        messages.append((rank, message))
            except (EOFError, OSError):
                pass  # its process is dead or dying: the exit code will tell
        return messages

    def where(self, within_s: float) -> dict[int, str]:
        """{rank: the line where it is} of those that answer within `within_s`."""
        self.tell({"where": True})
        said: dict[int, str] = {}
        ends_s = time.monotonic() + within_s
        while len(said) < len(self.started) and time.monotonic() < ends_s:
            time.sleep(POLL_S)
            said |= {rank: its["where"] for rank, its in self.read() if "where" in its}
        return said

    def end(self, at_once: bool) -> None:
        """End all processes: asked first unless `at_once`, then killed. Those of a fork server that has
        ended cannot be: they end with their pipes."""
        if not at_once:
            for pipe in self.pipes:
                try:
                    pipe.send_bytes(b"null")
                except OSError:
                    pass
            deadline_s = time.monotonic() + 3
            for process in self.started:
                process.join(max(0.0, deadline_s - time.monotonic()))
        for process in self.started:
            if process.is_alive():
                process.kill()
        with fork_server_answers(PHASE_LIMIT_S):
            for process in self.started:
                process.join()
        for pipe in self.pipes:
            pipe.close()
        self.pipes, self.started = [], []
