"""A thread that ends what waits for an answer without a time limit: of the rendezvous store, whose host
may be stopped, or of the fork server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from realrun.run.life import OwnTime

LOOKS_S = 0.5
"""Between two looks of a guard."""


class Guard:
    """A thread that calls `end` once what is inside `asking` has lasted for `limit_s` of `own`, which
    leaves out the time in which this process was stopped itself."""

    def __init__(self, own: OwnTime, limit_s: float, end: Callable[[], None]) -> None:
        self._own, self._limit_s, self._end = own, limit_s, end
        self._asked_s: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Inside, one is asked. Any answer says that it lives."""
        if self._asked_s is None:
            self._asked_s = self._own.now_s()
        try:
            yield
        finally:
            self._asked_s = None

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOKS_S):
            now_s, asked_s = self._own.now_s(), self._asked_s
            if asked_s is not None and now_s - asked_s > self._limit_s:
                self._end()
