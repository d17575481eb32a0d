"""How an op is timed, and in padded mode stretched, on the host's clock or by CUDA events. Each is
a `realrun.record.step_log.Timer`."""

import time
from collections.abc import Mapping

import torch

from realrun.comm.clock import now

LEAD_S = 1e-3  # longer than a message takes between two processes


class HostTimer:
    """Compute on a CPU. A mark, which is a point in time on this rank's compute stream, is a
    reading of the clock. padding: {op kind: the seconds that the op shall take at least}."""

    immediate = True  # a mark's time is known at once

    def __init__(self, padding: Mapping[str, float] | None = None) -> None:
        self.padding = padding or {}

    def begin(self, kind: str) -> float:
        """The mark of an op's start. A padded op sleeps for a moment before it computes: what ended
        when the op started was a message, as a rule, and the message's receiver shall not have to
        wait for a core until this rank has done its computing."""
        start = now()
        if kind in self.padding:
            time.sleep(min(LEAD_S, self.padding[kind] / 10))
        return start

    def finish(self, kind: str, start: float) -> float:
        """The mark of an op's end. Padded compute sleeps here until `start` plus the kind's
        seconds."""
        if kind in self.padding:
            time.sleep(max(0.0, start + self.padding[kind] - now()))
        return now()

    def seconds(self, mark: float) -> float:
        """The rank's clock at `mark`."""
        return mark

    def begin_step(self) -> None:
        """Called before each step."""


class CudaTimer:
    """Compute on a GPU. A mark is an event on the compute stream, which is placed on the host's
    clock by one anchor for each step."""

    immediate = False  # known once the GPU has come to it

    def begin_step(self) -> None:
        self._anchor = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        self._anchor.record()
        torch.cuda.synchronize()
        self._anchor_s = now()

    def begin(self, kind: str) -> torch.cuda.Event:
        return self._mark()

    def finish(self, kind: str, start: torch.cuda.Event) -> torch.cuda.Event:
        return self._mark()

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, mark: torch.cuda.Event) -> float:
        mark.synchronize()
        return self._anchor_s + self._anchor.elapsed_time(mark) / 1e3
