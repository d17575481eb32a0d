"""Where a rank is in its list of instructions (`simlab.lowering.instructions`): it is held against
the list while it runs.

Groups tell the conformance of each communication. One that is not the next of the list, or has other
bytes, is an error at once: what runs is what was simulated. In padded compute the conformance stretches
what lies between two communications to what the list's kernels shall take.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from realrun.comm.clock import now
from realrun.comm.group import Mark, Observer
from realrun.record.activations import SavedActivations
from realrun.record.recorder import DONE, RUNNING, WAITING, Record, Recorder
from simlab.errors import SimlabError
from simlab.lowering.instructions import BEGIN, COMPUTE, WAIT, Instruction
from simlab.program import Op


class ConformanceError(SimlabError):
    """A rank does something else than its list says."""


class Conformance(Observer):
    """A `realrun.record.step_log.StepLog` of instructions.

    rank: for errors. instructions: its list. recorder: what notes each instruction with its
    times, or None.

    seconds:     [of each instruction, s]: compute is stretched to it, communications take it where
                 links are paced. None: as it comes.
    check_bytes: whether communications must have the list's sizes.
    activations: what knows `live` and `bytes` held at a time, or None.
    settle:      waits until a device has done what it was given so far, where computing is queued:
                 times are then its own, for some µs more
                 an instruction. Communications that nobody has waited for go on meanwhile.
    """

    def __init__(
        self,
        rank: int,
        instructions: Sequence[Instruction],
        recorder: Recorder | None = None,
        *,
        seconds: Sequence[float] | None = None,
        check_bytes: bool = True,
        activations: SavedActivations | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.recorder, self._settle = rank, recorder, settle
        self.durations, self.check_bytes, self.activations = seconds, check_bytes, activations
        self.follow(instructions)
        self.begin_step(0)

    def follow(self, instructions: Sequence[Instruction]) -> None:
        """Hold the rank to `instructions` from now on. What a step compares is made here, for each
        instruction and for the end of the list."""
        self.instructions = instructions
        self._computes = [each.action == COMPUTE for each in instructions] + [False]
        self._in_unit: list[tuple[Op, str] | None] = [
            (Op(each.stage, each.op_kind, each.microbatch), each.unit) if each.in_unit else None
            for each in instructions
        ] + [None]
        self._begins: list[tuple[str, str, int | None] | None] = [
            (each.dimension, each.kind, self._size(each.size_bytes))
            if each.action == BEGIN
            else None
            for each in instructions
        ] + [None]
        self._names = [(each.op, each.name) for each in instructions]
        self._waits = [
            name if each.action == WAIT else None for each, name in zip(instructions, self._names)
        ] + [None]

    def _size(self, size_bytes: float) -> int | None:
        """What of a communication's size is compared."""
        return round(size_bytes) if self.check_bytes else None

    by_unit = immediate = True

    @property
    def observer(self) -> "Conformance":
        """What groups tell."""
        return self

    def begin_step(self, number: int) -> None:
        """Move to the first instruction of the list."""
        self.number, self.position, self._since_s = number, 0, now()
        self.computed_s = self.waited_s = 0.0  # so far in this step

    def end_step(self) -> None:
        """All of the list must have been done."""
        self._computed()
        if self.position < len(self.instructions):
            raise ConformanceError(
                f"rank {self.rank} is done, but its list goes on with {self._next()}"
            )

    def unit_ends(self, op: Op, unit: str) -> None:
        """`unit` of `op` is over, but for the reduction of its gradients: so must be the list's
        part on it."""
        own = op, unit
        if self._computes[self.position] and self._in_unit[self.position] == own:
            self._computed()
        if self._in_unit[self.position] == own:
            raise ConformanceError(
                f"rank {self.rank} is done with {op} {unit}, but its list goes on with {self._next()}"
            )

    # what groups and channels tell
    # ----------------------------------------------------------------------------

    def begins(self, dimension: str, kind: str, size_bytes: int) -> tuple[Any, ...]:
        """See `Observer`."""
        self._computed()
        dimension, position = dimension.partition("-")[0], self.position
        if self._begins[position] != (dimension, kind, self._size(size_bytes)):
            raise ConformanceError(
                f"rank {self.rank} begins {dimension} {kind} of {size_bytes} bytes, but next is {self._next()}"
            )
        self._note(DONE, self._since_s, self._since_s)
        self.position = position + 1
        return position, self._names[position]

    def seconds(self, begun: Mark) -> float | None:
        """See `Observer`."""
        return self.durations[begun[0]] if self.durations and begun else None

    def waits(self, begun: Mark) -> None:
        """See `Observer`."""
        self._computed()
        assert begun is not None  # it is what `begins` or `awaits` returned
        if self._waits[self.position] != begun[1]:
            raise ConformanceError(
                f"rank {self.rank} waits for {' '.join(begun[1])}, but next is {self._next()}"
            )
        self._note(WAITING)

    def ended(self, begun: Mark, done_s: float | None = None) -> None:
        """See `Observer`."""
        self._settle()
        start_s, self._since_s = self._since_s, now()
        self.waited_s += self._since_s - start_s
        self._note(DONE, start_s, self._since_s, done_s or self._since_s)
        self.position += 1

    def awaits(self, need: Any) -> Mark:
        """See `StepLog`: the message was begun by another rank."""
        begun = None, (str(need), "message")
        self.waits(begun)
        return begun

    def sends(self, size_bytes: int) -> None:
        """See `StepLog`."""
        self.begins("pp", "message", size_bytes)

    def op_waits(self, position: int) -> None:
        """Of no interest: an op is several instructions."""

    def op_begins(self, position: int, kind: str) -> None:
        """Of no interest: an op is several instructions."""

    def op_ends(self, position: int, kind: str) -> None:
        """Of no interest: an op is several instructions."""

    def times(self) -> dict[str, float] | None:
        """See `StepLog`."""
        return {"computed_s": self.computed_s, "waited_s": self.waited_s}

    def ops_end(self) -> None:
        """Of no interest: the list goes on."""

    # the list
    # -------------------------------------------------------------------------------------------------

    def _computed(self) -> None:
        """What was computed since the last call is what the list has here, if it has anything:
        stretch and note it."""
        if self._computes[self.position]:
            self._settle()
            start_s = self._since_s
            if self.durations:
                time.sleep(max(0.0, start_s + self.durations[self.position] - now()))
            self._since_s = now()
            self.computed_s += self._since_s - start_s
            self._note(DONE, start_s, self._since_s)
            self.position += 1
        else:
            self._since_s = now()
        if self._computes[self.position]:
            self._note(RUNNING)

    def _note(
        self, state: int, start_s: float = 0.0, end_s: float = 0.0, done_s: float = 0.0
    ) -> None:
        if self.recorder is not None:
            live, size = (
                (self.activations.live, self.activations.bytes) if self.activations else (0, 0)
            )
            self.recorder.write(
                Record(self.number, self.position, state, live, size, start_s, end_s, done_s)
            )

    def _next(self) -> str:
        """The next instruction of the list, in words."""
        if self.position == len(self.instructions):
            return "the end of the step"
        instruction = self.instructions[self.position]
        what = (
            f"{instruction.dimension} {instruction.kind} of {instruction.size_bytes:g} bytes"
            if instruction.kind
            else ""
        )
        return " ".join(
            filter(
                None, (instruction.action, instruction.op, instruction.name, what and f"({what})")
            )
        )
