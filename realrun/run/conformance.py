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
        self.rank, self.instructions, self.recorder = rank, instructions, recorder
        self._settle = settle
        self.durations, self.check_bytes, self.activations = seconds, check_bytes, activations
        self.begin_step(0)

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
        if (following := self._next()) is not None:
            raise ConformanceError(
                f"rank {self.rank} is done, but its list goes on with {self._text(following)}"
            )

    def unit_ends(self, op: str, unit: str) -> None:
        """`unit` of `op` is over, but for the reduction of its gradients: so must be the list's
        part on it."""
        following = self._next_of(op, unit)
        if following is not None and following.action == COMPUTE:
            self._computed()
            following = self._next_of(op, unit)
        if following is not None:
            raise ConformanceError(
                f"rank {self.rank} is done with {op} {unit}, but its list goes on with {self._text(following)}"
            )

    def _next_of(self, op: str, unit: str) -> Instruction | None:
        """The next instruction, if it is a part of what `op` does in `unit`; else None."""
        following = self._next()
        if following is None or not following.in_unit:
            return None
        return following if (following.op, following.unit) == (op, unit) else None

    # what groups and channels tell
    # ----------------------------------------------------------------------------

    def begins(self, dimension: str, kind: str, size_bytes: int) -> tuple[Any, ...]:
        """See `Observer`."""
        self._computed()
        instruction = self._begun(dimension.partition("-")[0], kind, size_bytes)
        self._note(DONE, self._since_s, self._since_s)
        self.position += 1
        return self.position - 1, (instruction.op, instruction.name)

    def seconds(self, begun: Mark) -> float | None:
        """See `Observer`."""
        return self.durations[begun[0]] if self.durations and begun else None

    def waits(self, begun: Mark) -> None:
        """See `Observer`."""
        self._computed()
        assert begun is not None  # it is what `begins` or `awaits` returned
        instruction = self._next()
        if (
            instruction is None
            or instruction.action != WAIT
            or (instruction.op, instruction.name) != begun[1]
        ):
            raise ConformanceError(
                f"rank {self.rank} waits for {' '.join(begun[1])}, but next is {self._text(instruction)}"
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
        if self._computes():
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
        if self._computes():
            self._note(RUNNING)

    def _next(self) -> Instruction | None:
        """The next instruction of the list; None at its end."""
        at = self.position
        return self.instructions[at] if at < len(self.instructions) else None

    def _computes(self) -> bool:
        """Whether the next instruction is to compute."""
        instruction = self._next()
        return instruction is not None and instruction.action == COMPUTE

    def _begun(self, dimension: str, kind: str, size_bytes: int) -> Instruction:
        """The next instruction, which must be to begin this communication."""
        instruction = self._next()
        if (
            instruction is None
            or (instruction.action, instruction.dimension, instruction.kind)
            != (BEGIN, dimension, kind)
            or (self.check_bytes and round(instruction.size_bytes) != size_bytes)
        ):
            raise ConformanceError(
                f"rank {self.rank} begins {dimension} {kind} of {size_bytes} bytes, but next is {self._text(instruction)}"
            )
        return instruction

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

    @staticmethod
    def _text(instruction: Instruction | None) -> str:
        if instruction is None:
            return "the end of the step"
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
