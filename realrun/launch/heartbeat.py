"""Whether the other ranks of a torchrun are still alive, whatever they do.

A rank that is stopped (SIGSTOP, a frozen host) answers nobody: the others wait in a collective until
its timeout, ten minutes by default, and then blame each other. So a thread of every rank writes into
the store that it lives, and reads whether the next rank does. It names the one that is silent and ends
the run; torchrun then ends the rest.
"""

import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from realrun.launch.error_file import note_error
from realrun.launch.worker import SILENCE_S
from realrun.run.life import Doing
from realrun.run.watch import Watch

BEATS = 4
"""In the time after which a silent rank is reported."""
LEFT = "left"
LEAVES_S = 5.0
"""Within this time ranks leave a run that is over."""


class Heartbeat:
    """A thread that beats for `rank` of `world` and listens to the next one.

    store:   its own client of the rendezvous store, for a thread that waits in one holds it.
    limit_s: of silence, in seconds; at least `SILENCE_S`.
    doing:   what the rank does now.
    watch:   on rank 0, where it sees what all ranks record: the `Watch` of what runs; else None.
    """

    def __init__(self, store: Any, rank: int, world: int, limit_s: float, doing: Doing) -> None:
        self._store, self._rank, self._doing = store, rank, doing
        self.watch: Watch | None = None
        self._limit_s, self._next = max(limit_s, SILENCE_S), (rank + 1) % world
        self._ended = threading.Event()
        self._seen, self._heard_s = "", time.monotonic()
        store.set_timeout(timedelta(seconds=self._limit_s))
        if world > 1:
            threading.Thread(target=self._run, daemon=True).start()

    def leave(self) -> None:
        """This rank has done its work: nobody is to miss it."""
        self._ended.set()
        try:
            self._store.set(_key(self._rank), LEFT)
        except RuntimeError:
            pass  # the store's host has left before

    def _run(self) -> None:
        own, number = f"{os.getpid()} {socket.gethostname()}", 0
        while not self._ended.is_set():
            number += 1
            self._look()
            try:
                self._store.set(_key(self._rank), f"{number} {own} {self._doing()}")
                if self._store.check([_key(self._next)]):
                    self._hear(self._store.get(_key(self._next)).decode())
            except RuntimeError:
                if not self._ended.wait(LEAVES_S):  # else rank 0 was only quicker to leave
                    self._end("rank 0, which holds the rendezvous store,", "", None)
                return
            self._ended.wait(self._limit_s / BEATS)

    def _look(self) -> None:
        """End the run where this rank is over its phase's limit, or where no rank moves."""
        if (limit_s := self._doing.over()) is not None:
            self._exit(
                f"rank {self._rank} has been {self._doing()} for {limit_s:g} s, which is too long"
            )
        if self.watch is not None and (stuck := self.watch.stuck()):
            self._exit(stuck)

    def _hear(self, beat: str) -> None:
        """End the run where the next rank says the same for too long."""
        now_s = time.monotonic()
        if beat != self._seen:
            self._seen, self._heard_s = beat, now_s
        elif beat != LEFT and now_s - self._heard_s > self._limit_s:
            _, pid, host, doing = beat.split(" ", 3)
            here = int(pid) if host == socket.gethostname() else None
            self._end(f"rank {self._next} (process {pid} on {host})", f" while {doing}", here)

    def _end(self, who: str, where: str, pid: int | None) -> None:
        text = f"{who} has not been heard of for {self._limit_s:g} s{where}; rank {self._rank} ends the run"
        self._exit(text, pid)

    def _exit(self, text: str, pid: int | None = None) -> None:
        """Say `text` and end this process, and another one that is stopped as it is."""
        note_error(text)
        print(f"error: {text}", file=sys.stderr, flush=True)
        if pid is not None:
            try:
                os.kill(pid, signal.SIGKILL)  # it takes no other signal
            except OSError:
                pass  # it has gone
        os._exit(1)


def _key(rank: int) -> str:
    return f"heartbeat of rank {rank}"
