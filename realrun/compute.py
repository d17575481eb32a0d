"""How an op is timed, and in padded mode stretched: on the host's clock or by CUDA events."""

import time

import torch

from realrun.clock import now


class HostTimer:
    """CPU compute: a mark is a reading of the clock."""

    immediate = True  # a mark's time is known at once

    def __init__(self, padding=None):
        self.padding = padding or {}  # {op kind: seconds that the op shall take at least}

    def mark(self):
        """A point in time on this rank's compute stream."""
        return now()

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

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def finish(self, kind, start):
        return self.mark()

    def seconds(self, mark):
        mark.synchronize()
        return self._anchor_s + self._anchor.elapsed_time(mark) / 1e3
