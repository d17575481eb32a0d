"""How an op is timed, and in padded mode stretched: on the host's clock or by CUDA events."""

import time

import torch

from realrun.clock import now

LEAD_S = 1e-3  # longer than a message takes between two processes


class HostTimer:
    """CPU compute: a mark, a point in time on this rank's compute stream, is a reading of the clock."""

    immediate = True  # a mark's time is known at once

    def __init__(self, padding=None):
        self.padding = padding or {}  # {op kind: seconds that the op shall take at least}

    def begin(self, kind):
        """The mark of an op's start. A padded op sleeps for a moment before it computes: what ended when it started was a
        message, as a rule, and its receiver shall not have to wait for a core until this rank has done its math."""
        start = now()
        if kind in self.padding:
            time.sleep(min(LEAD_S, self.padding[kind] / 10))
        return start

    def finish(self, kind, start):
        """The mark of an op's end. Padded compute sleeps here until `start` plus the kind's duration."""
        if kind in self.padding:
            time.sleep(max(0.0, start + self.padding[kind] - now()))
        return now()

    def seconds(self, mark):
        """The rank's clock at `mark`."""
        return mark

    def begin_step(self):
        """Called before each step."""


class CudaTimer:
    """GPU compute: a mark is an event on the compute stream, placed on the host's clock by an anchor per step."""

    immediate = False  # known once the GPU has come to it

    def begin_step(self):
        self._anchor = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        self._anchor.record()
        torch.cuda.synchronize()
        self._anchor_s = now()

    def begin(self, kind):
        return self._mark()

    def finish(self, kind, start):
        return self._mark()

    def _mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, mark):
        mark.synchronize()
        return self._anchor_s + self._anchor.elapsed_time(mark) / 1e3
