"""A rendezvous store whose host is stopped answers nobody, and a question to it has no time limit."""

import threading
import time
from collections.abc import Callable

from realrun.run.watch import paused_s

LOOKS_S = 0.5
"""Between two looks of a guard."""


class Guard:
    """A thread that calls `end` once nobody has called `heard` for `limit_s`: who should have is
    still waiting for an answer. The time in which this process was stopped itself does not count."""

    def __init__(self, limit_s: float, end: Callable[[], None]) -> None:
        self._limit_s, self._end, self._over = limit_s, end, threading.Event()
        self._heard_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def heard(self) -> None:
        """There was an answer."""
        self._heard_s = time.monotonic()

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._over.wait(LOOKS_S):
            now_s = time.monotonic()
            self._heard_s += paused_s(before_s, now_s)
            before_s = now_s
            if now_s - self._heard_s > self._limit_s:
                self._end()
