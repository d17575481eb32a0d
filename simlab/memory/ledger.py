"""What a rank holds, op after op, by category, and what a stretch of ops does to it."""

from typing import NamedTuple

from simlab.units import bytes_text

CATEGORIES = {
    "parameters": "what the rank owns: all, or its shard with padding",
    "gradients": "what the optimizer reads: all, or the shard with padding",
    "optimizer": "its states, all or the shard",
    "inputs": "tokens and targets",
    "activations": "what the forward makes, until the backward has used it",
    "temporaries": "the backward's gradients of activations, and of weights until they are accumulated; the optimizer's scratch",
    "unsharded_parameters": "of gathered layers (ZeRO-3)",
    "unsharded_gradients": "of whole layers until they are reduced (ZeRO-2 and 3)",
    "all_gather": "buffers that all-gathers write",
    "reduce_scatter": "buffers that reduce-scatters read",
    "buckets": "of gradients for all-reduce (DDP, ZeRO-1) or reduction (ZeRO-2)",
}
STATES = ("parameters", "gradients", "optimizer")
NEVER = float("-inf")


class Moment(NamedTuple):
    """A part of the step, and what was held at its own peak."""

    op: str
    held: dict[str, float]
    """{category: bytes}."""

    @property
    def total(self) -> float:
        """All categories, bytes."""
        return sum(self.held.values())


class StepMemory(NamedTuple):
    """Memory of one rank over one step, from the second on (optimizer states and buckets exist)."""

    moments: tuple[Moment, ...]
    """In the step's order; the first is 'between steps', when gradients are freed."""
    largest: dict[str, float]
    """{category: bytes} of the most that each category ever takes: not all at the same time."""

    def __repr__(self) -> str:
        peak = self.peak
        return (
            f"<StepMemory: {len(self.moments)} moments, peak {bytes_text(peak.total)} "
            f"at {peak.op!r}>"
        )

    @property
    def peak(self) -> Moment:
        """The `Moment` that holds most; of equal ones the first."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def rest(self) -> dict[str, float]:
        """{category: bytes} between two steps."""
        return self.moments[0].held

    @property
    def transient(self) -> dict[str, float]:
        """{category: bytes} at the peak of all that is no model state."""
        return {
            category: size for category, size in self.peak.held.items() if category not in STATES
        }


class Phase(NamedTuple):
    """What a stretch of a step adds to what is held, in bytes relative to its begin.

    Phases follow each other: the second one's figures are added to what the first one leaves. So a
    layer's phase is found once, op by op, and a stage's phase is its layers', one after the other.
    """

    end: dict[str, float]
    """{category: bytes that it leaves}; below 0 where it frees more than it takes."""
    at_peak: dict[str, float]
    """{category: bytes} when it holds most."""
    peak: float
    """The total of `at_peak`; `NEVER` if nothing is ever read in it."""
    largest: dict[str, float]
    """{category: the most of it, at any time}."""

    @property
    def left(self) -> float:
        """All that it leaves, bytes."""
        return sum(self.end.values())

    def repeated(self, count: int) -> "Phase":
        """`count` of them, one after the other.

        Each begins where the one before ended. What grows is largest in the last one, what does not
        grow in the first.
        """
        if count == 1:
            return self
        more = count - 1
        grows = self.left > 0
        return Phase(
            {name: count * size for name, size in self.end.items()},
            {name: size + more * self.end[name] for name, size in self.at_peak.items()}
            if grows
            else self.at_peak,
            self.peak + more * self.left if grows else self.peak,
            {name: size + more * max(0.0, self.end[name]) for name, size in self.largest.items()},
        )


_NOTHING = dict.fromkeys(CATEGORIES, 0.0)


class Ledger:
    """What is held, read after each op while the op's inputs are still there, because an allocator
    sees its peak then."""

    def __init__(self, held: dict[str, float] | None = None):
        self.held = _NOTHING | held if held else _NOTHING.copy()
        self.total = sum(self.held.values()) if held else 0.0
        self.at_peak, self.peak = dict(self.held), NEVER
        self.largest = dict(self.held)

    def op(self, *takes: tuple[str, float], free: tuple[tuple[str, float], ...] = ()) -> None:
        """Allocate `takes` = (category, bytes), read, then free."""
        held, largest = self.held, self.largest
        for category, size in takes:
            held[category] += size
            self.total += size
            if held[category] > largest[category]:
                largest[category] = held[category]
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, dict(held)
        for category, size in free:
            held[category] -= size
            self.total -= size

    def free(self, *frees: tuple[str, float]) -> None:
        """Free (category, bytes)."""
        for category, size in frees:
            self.held[category] -= size
            self.total -= size

    def relabel(self, old: str, new: str, size: float) -> None:
        """`size` bytes turn from one category into another."""
        self.free((old, size))
        self.op((new, size))

    def add(self, phase: Phase) -> None:
        """Go through `phase`."""
        held = self.held
        if self.total + phase.peak > self.peak:
            self.peak = self.total + phase.peak
            self.at_peak = {name: size + phase.at_peak[name] for name, size in held.items()}
        for name, size in phase.largest.items():
            if held[name] + size > self.largest[name]:
                self.largest[name] = held[name] + size
        for name, size in phase.end.items():
            held[name] += size
        self.total += phase.left

    @property
    def phase(self) -> Phase:
        """All that was done so far, as a `Phase`; of a ledger that began empty."""
        return Phase(self.held, self.at_peak, self.peak, self.largest)
