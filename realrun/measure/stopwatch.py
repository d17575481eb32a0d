"""How long a piece of work takes alone: on a core of a CPU, on a GPU, or for the host that launches
it."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from realrun.comm.clock import now

FEWEST, MOST = 2, 200
# about 10 ms, in which the host queues CALLS calls
CALLS, BATCHES, SLEEP_CYCLES = 10, 5, 20_000_000


Work = Callable[[], Any]


class Stopwatch:
    """It times a piece of work on a device, over and over for about `budget_s`, and gives the lower
    quartile, because what else a machine does only ever adds.

    On a CPU with one thread the clock is the thread's own, which stands still while another process
    has the core. So it gives the time of work on a core to itself. `waited` says how much of the
    time on the wall that left out.
    """

    def __init__(self, device: torch.device, budget_s: float) -> None:
        self.device, self.budget_s = device, budget_s
        self._wall_s = self._own_s = 0.0

    @property
    def waited(self) -> float:
        """The part of the time in which this thread did not run, 0 to 1. Of CUDA's kernels it is
        unknown, and 0."""
        return max(0.0, 1 - self._own_s / self._wall_s) if self._wall_s else 0.0

    def seconds(self, work: Work) -> float:
        """The seconds of `work()`. Where the device computes by itself, what the host needs to
        launch it is left out."""
        work()  # the first one loads and chooses kernels
        return lower_quartile(self._cuda(work) if self.device.type == "cuda" else self._cpu(work))

    def host_seconds(self, work: Work) -> float:
        """The seconds of `work()` as the host sees it, which waits for nothing."""
        work()
        return lower_quartile(self._queued(work) if self.device.type == "cuda" else self._cpu(work))

    def _cpu(self, work: Work) -> list[float]:
        clock = time.thread_time if torch.get_num_threads() == 1 else now
        samples: list[float] = []
        end_s = now() + self.budget_s
        while len(samples) < FEWEST or (len(samples) < MOST and now() < end_s):
            wall_s, own_s, start_s = now(), time.thread_time(), clock()
            work()
            samples.append(clock() - start_s)
            self._own_s += time.thread_time() - own_s
            self._wall_s += now() - wall_s
        return samples

    def _queued(self, work: Work) -> list[float]:
        """Seconds of the calls alone: the device has nothing to do before, and is not waited for
        after."""
        samples: list[float] = []
        end_s = now() + self.budget_s
        while len(samples) < FEWEST or (len(samples) < MOST and now() < end_s):
            torch.cuda.synchronize(self.device)
            start_s = now()
            work()
            samples.append(now() - start_s)
        return samples

    def _cuda(self, work: Work) -> list[float]:
        """Seconds on the device. It sleeps while the host queues all calls, so that it then waits
        for none of them."""
        samples: list[float] = []
        for _ in range(BATCHES):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(self.device)
            torch.cuda._sleep(SLEEP_CYCLES)
            start.record()
            for _ in range(CALLS):
                work()
            end.record()
            end.synchronize()
            samples.append(start.elapsed_time(end) / 1e3 / CALLS)
        return samples


def lower_quartile(samples: Sequence[float]) -> float:
    """The sample that a quarter of them do not exceed."""
    return sorted(samples)[(len(samples) - 1) // 4]
