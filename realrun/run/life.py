"""A run's life: its phases, each with a name and a limit, and the signals that ask it to end.

A step has a watch of its own, which sees whether ranks move. Everything else that a run does has a
name and a time that it may take: a load or a save may take longer than a step, and still not for
ever.

SIGINT (^C), SIGTERM, SIGHUP and SIGUSR1 (which Slurm sends before a job's time is over) may reach the
launcher or any rank. Ranks that wait for each other in a step must not end one by one, so each notes that it was
asked, and before a step all of them learn whether any was.
"""

import ctypes
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from simlab.errors import SimlabError

PHASE_LIMIT_S = 600.0
"""Of a phase of its own: starting, calibrating, the check of gradients, a step of the reference."""
SAVE_LIMIT_S = 3600.0
"""Of a phase that reads or writes what is large: a checkpoint, all recordings."""
UNLIMITED_S = math.inf
"""Of a phase that somebody else watches."""
PAUSE_S = 2.0
"""The most that counts between two looks at an `OwnTime`: a thread that looks every half second or
second looks again sooner, on a busy machine too, unless its process was stopped."""

SELDOM_S = 60.0
"""The same of a phase's time, which is looked at a few times a minute."""


class OwnTime:
    """Seconds since this process began to count them, without the time in which it was stopped itself,
    such as by ^Z: who was stopped has heard nobody meanwhile, and that is nobody's silence.

    pause_s: the most that counts between two looks, so that whoever looks often loses no time, and
    after a stop this much is counted at most. Several threads may look at one.
    """

    def __init__(self, pause_s: float = PAUSE_S) -> None:
        self._pause_s, self._lock = pause_s, threading.Lock()
        self._looked_at_s, self._own_s = time.monotonic(), 0.0

    def now_s(self) -> float:
        """A look at it, in seconds."""
        with self._lock:
            clock_s = time.monotonic()
            self._own_s += min(clock_s - self._looked_at_s, self._pause_s)
            self._looked_at_s = clock_s
            return self._own_s


class Doing:
    """What a rank does now: at first it starts. tell: called with each text that it enters, at once,
    because a rank that is stopped cannot be asked any more."""

    def __init__(self, tell: Callable[[str], Any] = lambda text: None) -> None:
        self._tell, self._time = tell, OwnTime(SELDOM_S)
        self._now = "starting", PHASE_LIMIT_S, self._time.now_s()

    def enter(self, text: str, limit_s: float = PHASE_LIMIT_S) -> None:
        """Note what the rank does from now on, and for how long it may."""
        self._now = text, limit_s, self._time.now_s()
        self._tell(text)

    def __call__(self) -> str:
        return self._now[0]

    def over(self) -> float | None:
        """The limit, s, that the rank is over; None while it is not."""
        _, limit_s, since_s = self._now
        return limit_s if self._time.now_s() - since_s > limit_s else None


PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, also while this process
    is stopped. Only Linux can be asked to."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


ASKING = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT")
ASKS = [number for number in signal.Signals if number.name in ASKING]
"""The signals that ask; Windows knows two of them."""


class Ended(SimlabError):
    """The run was asked to end by the signal `number`, and did."""

    def __init__(self, reason: str, number: int) -> None:
        super().__init__(reason)
        self.number = number
        self.status = 128 + number
        """The exit status, as shells have it."""


class Stop:
    """Whether this process was asked to end. number: the signal that did, 0 for none."""

    def __init__(self) -> None:
        self.number = 0

    def ask(self, number: int) -> None:
        """Note that the signal `number` asks; the first one counts."""
        self.number = self.number or number

    @contextmanager
    def listening(self, again: Callable[[int], Any] | None = None) -> Iterator[None]:
        """Inside, signals ask instead of ending this process. again: called with a signal that
        comes when one has come before. A signal that is ignored (nohup) stays so, and in another
        thread than the main one none is heard."""

        def heard(number: int, _: Any) -> None:
            if self.number and again is not None:
                again(number)
            self.ask(number)

        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            wanted = [number for number in ASKS if signal.getsignal(number) != signal.SIG_IGN]
            before = {number: signal.signal(number, heard) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def agreed(self) -> int:
        """The highest signal that any rank was asked by, 0 for none: the same on all ranks, which
        call it together and wait for each other in it."""
        from realrun.comm.control import greatest  # here: it imports torch

        return int(greatest(self.number))


def signal_name(number: int) -> str:
    """The name of a signal, such as 'SIGTERM'."""
    return signal.Signals(number).name
