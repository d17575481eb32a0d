"""Where a rank is in its list of instructions (`simlab.lowering.instructions`): it is held against
the list while it runs.

Groups tell the conformance of each communication. One that is not the next of the list, or has other
bytes, is an error at once: what runs is what was simulated. In padded compute the conformance stretches
what lies between two communications to what the list's kernels shall take.
"""

import time

from realrun.comm.clock import now
from realrun.comm.group import Observer
from realrun.record.recorder import DONE, RUNNING, WAITING, Record
from simlab.errors import SimlabError
from simlab.lowering.instructions import BEGIN, COMPUTE, WAIT


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
        rank,
        instructions,
        recorder=None,
        *,
        seconds=None,
        check_bytes=True,
        activations=None,
        settle=lambda: None,
    ):
        self.rank, self.instructions, self.recorder, self._settle = (
            rank,
            instructions,
            recorder,
            settle,
        )
        self.durations, self.check_bytes, self.activations = seconds, check_bytes, activations
        self.begin_step(0)

    by_unit = immediate = True

    @property
    def observer(self):
        """What groups tell."""
        return self

    def begin_step(self, number):
        """From the top."""
        self.number, self.position, self._since_s = number, 0, now()
        self.computed_s = self.waited_s = 0.0  # so far in this step

    def end_step(self):
        """All of the list must have been done."""
        self._computed()
        if self.position < len(self.instructions):
            raise ConformanceError(
                f"rank {self.rank} is done, but its list goes on with {self._text(self.instructions[self.position])}"
            )

    def unit_ends(self, op, unit):
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

    def _next_of(self, op, unit):
        """The next instruction, if it is a part of what `op` does in `unit`; else None."""
        if self.position == len(self.instructions):
            return None
        following = self.instructions[self.position]
        mine = following.in_unit and (following.op, following.unit) == (op, unit)
        return following if mine else None

    # what groups and channels tell
    # ----------------------------------------------------------------------------

    def begins(self, dimension, kind, size_bytes):
        """See `Observer`."""
        self._computed()
        instruction = self._next(BEGIN, dimension.partition("-")[0], kind, size_bytes)
        self._note(DONE, self._since_s, self._since_s)
        self.position += 1
        return self.position - 1, (instruction.op, instruction.name)

    def seconds(self, begun):
        """See `Observer`."""
        return self.durations[begun[0]] if self.durations else None

    def waits(self, begun):
        """See `Observer`."""
        self._computed()
        instruction = (
            self.instructions[self.position] if self.position < len(self.instructions) else None
        )
        if (
            instruction is None
            or instruction.action != WAIT
            or (instruction.op, instruction.name) != begun[1]
        ):
            raise ConformanceError(
                f"rank {self.rank} waits for {' '.join(begun[1])}, but next is {self._text(instruction)}"
            )
        self._note(WAITING)

    def ended(self, begun, done_s=None):
        """See `Observer`."""
        self._settle()
        start_s, self._since_s = self._since_s, now()
        self.waited_s += self._since_s - start_s
        self._note(DONE, start_s, self._since_s, done_s or self._since_s)
        self.position += 1

    def awaits(self, need):
        """See `StepLog`: the message was begun by another rank."""
        begun = None, (str(need), "message")
        self.waits(begun)
        return begun

    def sends(self, size_bytes):
        """See `StepLog`."""
        self.begins("pp", "message", size_bytes)

    def op_waits(self, position):
        """Of no interest: an op is several instructions."""

    def op_begins(self, position, kind):
        """Of no interest: an op is several instructions."""

    def op_ends(self, position, kind):
        """Of no interest: an op is several instructions."""

    def times(self):
        """See `StepLog`."""
        return {"computed_s": self.computed_s, "waited_s": self.waited_s}

    def ops_end(self):
        """Of no interest: the list goes on."""

    # the list
    # -------------------------------------------------------------------------------------------------

    def _computed(self):
        """What was computed since the last call is what the list has here, if it has anything:
        stretch and note it."""
        at = self.position
        if at < len(self.instructions) and self.instructions[at].action == COMPUTE:
            self._settle()
            start_s = self._since_s
            if self.durations:
                time.sleep(max(0.0, start_s + self.durations[at] - now()))
            self._since_s = now()
            self.computed_s += self._since_s - start_s
            self._note(DONE, start_s, self._since_s)
            self.position += 1
        else:
            self._since_s = now()
        if (
            self.position < len(self.instructions)
            and self.instructions[self.position].action == COMPUTE
        ):
            self._note(RUNNING)

    def _next(self, action, dimension, kind, size_bytes):
        instruction = (
            self.instructions[self.position] if self.position < len(self.instructions) else None
        )
        found = (
            (instruction.action, instruction.dimension, instruction.kind) if instruction else None
        )
        if found != (action, dimension, kind) or (
            self.check_bytes and round(instruction.size_bytes) != size_bytes
        ):
            raise ConformanceError(
                f"rank {self.rank} begins {dimension} {kind} of {size_bytes} bytes, but next is {self._text(instruction)}"
            )
        return instruction

    def _note(self, state, start_s=0.0, end_s=0.0, done_s=0.0):
        if self.recorder is not None:
            live, size = (
                (self.activations.live, self.activations.bytes) if self.activations else (0, 0)
            )
            self.recorder.write(
                Record(self.number, self.position, state, live, size, start_s, end_s, done_s)
            )

    @staticmethod
    def _text(instruction):
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
