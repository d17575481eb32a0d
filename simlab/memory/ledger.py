"""What a rank holds, op after op, by category."""

from contextlib import contextmanager
from typing import NamedTuple

CATEGORIES = {
    "parameters": "what the rank owns: all, or its shard with padding",
    "gradients": "what the optimizer reads: all, or the shard with padding",
    "optimizer": "its states, all or the shard",
    "inputs": "tokens and targets",
    "activations": "what the forward makes, until the backward has used it",
    "temporaries": "the backward's gradients of activations, and of weights until they are accumulated; the optimizer's scratch",
    "unsharded_parameters": "of gathered layers (FSDP2)",
    "unsharded_gradients": "of whole layers until they are reduced (FSDP2, ZeRO-2)",
    "all_gather": "buffers that all-gathers write",
    "reduce_scatter": "buffers that reduce-scatters read",
    "buckets": "of gradients for all-reduce (DDP, ZeRO-1) or reduction (ZeRO-2)",
}
STATES = ("parameters", "gradients", "optimizer")


class Moment(NamedTuple):
    """A part of the step, and what was held at its own peak."""

    op: str
    held: dict[str, float]
    """{category: bytes}."""

    @property
    def total(self):
        """All categories, bytes."""
        return sum(self.held.values())


class StepMemory(NamedTuple):
    """Memory of one rank over one step, from the second on (optimizer states and buckets exist)."""

    moments: tuple[Moment, ...]
    """In the step's order; the first is 'rest': between two steps, gradients freed."""
    largest: dict[str, float]
    """{category: bytes} of the most that each category ever takes: not all at the same time."""

    @property
    def peak(self):
        """The `Moment` that holds most; of equal ones the first."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def rest(self):
        """{category: bytes} between two steps."""
        return self.moments[0].held

    @property
    def transient(self):
        """{category: bytes} at the peak of all that is no model state."""
        return {category: size for category, size in self.peak.held.items() if category not in STATES}


class Ledger:
    """What is held, read after each op, while the op's inputs are still there: that is when an allocator sees its peak."""

    def __init__(self):
        self.held = dict.fromkeys(CATEGORIES, 0)
        self.largest = dict(self.held)
        self.moments = []

    @contextmanager
    def moment(self, op):
        """Peaks inside belong to `op`."""
        self.moments.append(Moment(op, {}))
        yield

    def op(self, *takes, free=()):
        """Allocate `takes` = (category, bytes), read, then free."""
        for category, size in takes:
            self.held[category] += size
        here = self.moments[-1]
        if sum(self.held.values()) > here.total or not here.held:
            self.moments[-1] = here._replace(held=dict(self.held))
        for category, size in self.held.items():
            self.largest[category] = max(self.largest[category], size)
        self.free(*free)

    def free(self, *frees):
        """Free (category, bytes)."""
        for category, size in frees:
            self.held[category] -= size

    def relabel(self, old, new, size):
        """`size` bytes turn from one category into another."""
        self.free((old, size))
        self.op((new, size))
