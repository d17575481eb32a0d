"""Runs tasks: streams of ranks in order, tasks that hold several of them at once, needs between
tasks, computing that communication slows down."""

from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import simpy

from simlab.engine.sharing import Wires
from simlab.errors import DeadlockError
from simlab.garbage import no_garbage_collection


class Task(NamedTuple):
    """A piece of work that holds one stream of each of `ranks` while it runs."""

    name: str
    """What it is: 'layer 3', 'layer 3 output scatter'."""
    op: str
    """The op that it is a part of: '2F0'; '' for what belongs to the step."""
    stream: str
    """'compute', 'tp', 'cp', 'dp', 'replicas', or 'pp 0-1' for messages from rank 0 to 1, ..."""
    ranks: tuple[int, ...]
    seconds: float
    needs: Sequence[int]
    """Numbers of the tasks that must have ended."""
    size_bytes: float = 0.0
    shared: "Shared | None" = None
    """Where others may slow it: then `seconds` are those that it takes alone."""
    slows: bool = False
    """Whether it slows what its ranks compute meanwhile."""
    beside_s: float = 0.0
    """What it takes while a task that `slows` runs on its rank all the time, if that is longer than
    `seconds`. It has one rank then, and no other such task runs there at the same time."""


class Shared(NamedTuple):
    """What a task uses of wires that others use, too."""

    wires: tuple[Hashable, ...]
    share: float
    """Of each wire, alone."""
    seconds: float
    """For which it does, alone: the last ones of the task's."""


class TaskTimes:
    """When each task started and ended, s, by number."""

    def __init__(self, starts: Sequence[float], ends: Sequence[float]) -> None:
        self.starts = starts
        self.ends = ends

    @property
    def end_s(self) -> float:
        """When the last one ended."""
        return max(self.ends, default=0.0)


def run_tasks(tasks: Iterable[Task]) -> TaskTimes:
    """`TaskTimes` of `tasks`.

    A rank's stream runs its tasks in the order in which they are listed. A task starts when it is
    the next one on the stream of all its ranks and all that it needs has ended. Tasks that are
    `shared` slow each other down (`simlab.engine.sharing.Wires`). A task that has a `beside_s` goes on
    at a part of its speed while a task that `slows` runs on its rank. Raises `DeadlockError` that
    names a task which can never start.
    """
    with no_garbage_collection():
        return _Run(tasks).run()


class _Run:
    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks = tasks = list(tasks)
        self.in_flight: dict[int, int] = {}  # rank: how many tasks that slow it run
        self.computing: dict[int, _Computing] = {}  # rank: what it computes
        self.env = simpy.Environment()
        self.wires = Wires(self.env)
        # what each still waits for: needs, and streams that are not free for it
        self.waits = array("l", [0]) * len(tasks)
        self.users: list[list[int]] = [[] for _ in tasks]
        # the tasks that come after it on its streams
        self.next_on: list[list[int]] = [[] for _ in tasks]
        self.starts, self.ends = array("d", [0.0]) * len(tasks), array("d", [0.0]) * len(tasks)
        self.left = len(tasks)
        last: dict[tuple[int, str], int] = {}
        for number, task in enumerate(tasks):
            for need in task.needs:
                self.users[need].append(number)
            self.waits[number] += len(task.needs)
            for rank in task.ranks:
                before = last.get((rank, task.stream))
                if before is not None:
                    self.next_on[before].append(number)
                    self.waits[number] += 1
                last[rank, task.stream] = number

    def run(self) -> TaskTimes:
        for number in [number for number, count in enumerate(self.waits) if not count]:
            self._start(number)
        self.env.run()
        if self.left:
            stuck = next(task for task, count in zip(self.tasks, self.waits) if count)
            raise DeadlockError(
                f"{self.left} of {len(self.tasks)} tasks never start, first {stuck.op} {stuck.name!r} on {stuck.stream}"
            )
        return TaskTimes(self.starts, self.ends)

    def _start(self, number: int) -> None:
        self.starts[number] = self.env.now
        task = self.tasks[number]
        if task.beside_s > task.seconds:
            slowed = task.seconds / task.beside_s
            self.computing[task.ranks[0]] = _Computing(number, task.seconds, self.env.now, slowed)
            self._set_alarm(task.ranks[0])
            return
        if task.slows:
            self._change_in_flight(task.ranks, 1)
        alone_s = task.shared.seconds if task.shared else 0.0
        self.env.timeout(max(0.0, task.seconds - alone_s), number).callbacks.append(
            self._transfer if task.shared else self._end
        )

    def _transfer(self, event: simpy.Event) -> None:
        number = event._value
        self.wires.serve(*self.tasks[number].shared).callbacks.append(lambda _: self._ended(number))

    def _end(self, event: simpy.Event) -> None:
        self._ended(event._value)

    # what communication slows
    # ------------------------------------------------------------------------------------------

    def _set_alarm(self, rank: int) -> None:
        work = self.computing[rank]
        speed = work.slowed if self.in_flight.get(rank) else 1.0
        work.alarm = self.env.timeout(work.left_s / speed, rank)
        work.alarm.callbacks.append(self._on_alarm)

    def _on_alarm(self, alarm: simpy.Event) -> None:
        work = self.computing.get(alarm._value)
        if work is not None and work.alarm is alarm:  # or the speed has changed since
            del self.computing[alarm._value]
            self._ended(work.number)

    def _change_in_flight(self, ranks: Sequence[int], change: int) -> None:
        for rank in ranks:
            before = self.in_flight.get(rank, 0)
            self.in_flight[rank] = before + change
            work = self.computing.get(rank)
            if work is not None and bool(before) != bool(before + change):
                speed = work.slowed if before else 1.0
                work.left_s = max(0.0, work.left_s - speed * (self.env.now - work.since_s))
                work.since_s = self.env.now
                self._set_alarm(rank)

    def _ended(self, number: int) -> None:
        self.ends[number] = self.env.now
        task = self.tasks[number]
        if task.slows:
            self._change_in_flight(task.ranks, -1)
        self.left -= 1
        waits = self.waits
        for follower in (*self.users[number], *self.next_on[number]):
            waits[follower] -= 1
            if not waits[follower]:
                self._start(follower)


class _Computing:
    """A computation under way: what is left of it at full speed, since when, when it will have ended
    as it goes, and the part of its speed that it keeps beside a task that slows it."""

    __slots__ = ("alarm", "left_s", "number", "since_s", "slowed")

    def __init__(self, number: int, left_s: float, since_s: float, slowed: float) -> None:
        self.number, self.left_s, self.since_s, self.slowed = number, left_s, since_s, slowed
        self.alarm: simpy.Timeout | None = None
