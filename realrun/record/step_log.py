"""What an executor tells while it runs a step: the ops of a rank, or every instruction."""

from typing import Any, Protocol

from realrun.comm.group import Mark, Observer
from realrun.record.activations import SavedActivations
from realrun.record.recorder import DONE, IDLE, RUNNING, WAITING, Record, Recorder
from simlab.program import Op


class StepLog(Protocol):
    """It is told of all that one rank does in a step, in the order in which the rank does it."""

    by_unit: bool
    """Whether it is told where units end within an op."""
    immediate: bool
    """Whether the computing may be waited for after each op. If not, it is queued on a device."""

    @property
    def observer(self) -> Observer:
        """What the rank's groups tell of their collectives."""

    def begin_step(self, number: int) -> None:
        """Called before anything of step `number` is posted. It may wait for the whole device."""

    def op_waits(self, position: int) -> None:
        """The op at `position` of the rank's list is next, and its inputs are waited for."""

    def op_begins(self, position: int, kind: str) -> None:
        """The inputs of that op, which is of `kind`, are there."""

    def unit_ends(self, op: Op, unit: str) -> None:
        """`unit` of `op` has been computed."""

    def op_ends(self, position: int, kind: str) -> None:
        """That op has been computed."""

    def awaits(self, need: Any) -> Mark:
        """The message with the result of `need` is needed now. `ended` is given what this
        returns."""

    def ended(self, begun: Mark, done_s: float | None = None) -> None:
        """That message has come."""

    def sends(self, size_bytes: int) -> None:
        """A message of so many bytes is sent to another stage."""

    def ops_end(self) -> None:
        """All ops of the step have been computed."""

    def end_step(self) -> None:
        """The step is over, and nothing may be left of the list."""

    def times(self) -> dict[str, float] | None:
        """{"computed_s", "waited_s"} of the last step. None: it does not tell one from the
        other."""


class Timer(Protocol):
    """Marks points in time on a rank's compute stream; see `realrun.measure.timers`."""

    immediate: bool
    """Whether a mark's time is known at once."""

    def begin_step(self) -> None:
        """Called before each step."""

    def begin(self, kind: str) -> Any:
        """The mark of the start of an op of `kind`."""

    def finish(self, kind: str, start: Any) -> Any:
        """The mark of its end. An op is stretched here if it shall take longer."""

    def seconds(self, mark: Any) -> float:
        """The rank's clock at `mark`, s."""


class OpLog:
    """A `StepLog` that writes a record for each op of a rank's list, and nothing below.

    recorder:    a `Recorder`, or None: nothing is written.
    timer:       marks an op's start and end. Where the time of a mark is not known at once, records
                 are complete when the step has ended.
    activations: knows `live` and `bytes` held at a time; None: 0 is written.
    """

    by_unit = False

    def __init__(
        self, recorder: Recorder | None, timer: Timer, activations: SavedActivations | None = None
    ) -> None:
        self.recorder, self.timer, self.activations = recorder, timer, activations
        self.immediate, self.observer = timer.immediate, Observer()
        self._unfinished: list[tuple[Record, Any, Any]] = []
        self._start: Any = None

    def begin_step(self, number: int) -> None:
        """See `StepLog`."""
        self.number = number
        self.timer.begin_step()

    def op_waits(self, position: int) -> None:
        """See `StepLog`."""
        self._write(Record(self.number, position, WAITING))

    def op_begins(self, position: int, kind: str) -> None:
        """See `StepLog`."""
        self._write(Record(self.number, position, RUNNING))
        self._start = self.timer.begin(kind)

    def op_ends(self, position: int, kind: str) -> None:
        """See `StepLog`."""
        end = self.timer.finish(kind, self._start)
        held = self.activations
        live, size = (held.live, held.bytes) if held else (0, 0)
        record = Record(self.number, position, DONE, live, size)
        self._unfinished.append((record, self._start, end))
        if self.immediate:
            self.write_records()

    def ops_end(self) -> None:
        """See `StepLog`. What follows is no op. So the watch is told that this rank executes none:
        it may wait for ranks that do."""
        self.write_records()
        if self.recorder is not None:
            self.recorder.phase(IDLE)

    def write_records(self) -> None:
        """Write the records of the ops that have ended but whose times were not known yet."""
        for record, start, end in self._unfinished:
            start_s, end_s = self.timer.seconds(start), self.timer.seconds(end)
            self._write(record._replace(start_s=start_s, end_s=end_s))
        self._unfinished.clear()

    def end_step(self) -> None:
        """An op log does not hold a rank to its list: see `StepLog`."""

    def times(self) -> dict[str, float] | None:
        """See `StepLog`. Messages are waited for between ops, and collectives within them."""

    def unit_ends(self, op: Op, unit: str) -> None:
        """An op log notes nothing below an op: see `StepLog`."""

    def awaits(self, need: Any) -> Mark:
        """An op log notes no message: see `StepLog`."""

    def ended(self, begun: Mark, done_s: float | None = None) -> None:
        """An op log notes no message: see `StepLog`."""

    def sends(self, size_bytes: int) -> None:
        """An op log notes no message: see `StepLog`."""

    def _write(self, record: Record) -> None:
        if self.recorder is not None:
            self.recorder.write(record)
