"""Runs refined tasks: streams of ranks in order, tasks that hold several of them at once, needs between tasks."""

from array import array

import simpy

from simlab.engine.sharing import Wires
from simlab.errors import DeadlockError
from simlab.garbage import no_garbage_collection


class TaskTimes:
    """When each task started and ended, s, by number."""

    def __init__(self, starts, ends):
        self.starts = starts
        self.ends = ends

    @property
    def end_s(self):
        """When the last one ended."""
        return max(self.ends, default=0.0)


def run_tasks(tasks):
    """`TaskTimes` of `tasks`, an iterable of `simlab.refinement.Task`s.

    A rank's stream runs its tasks in the order in which they are listed. A task starts when it is the next one on the stream of all its
    ranks and all that it needs has ended. Tasks that are `shared` slow each other down (`simlab.engine.sharing.Wires`). Raises
    `DeadlockError` that names a task which can never start.
    """
    with no_garbage_collection():
        return _Run(tasks).run()


class _Run:
    def __init__(self, tasks):
        self.tasks = tasks = list(tasks)
        self.env = simpy.Environment()
        self.wires = Wires(self.env)
        self.waits = array("l", [0]) * len(tasks)  # what each still waits for: needs, and streams that are not free for it
        self.users = [[] for _ in tasks]
        self.next_on = [[] for _ in tasks]  # the tasks that come after it on its streams
        self.starts, self.ends = array("d", [0.0]) * len(tasks), array("d", [0.0]) * len(tasks)
        self.left = len(tasks)
        last = {}
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

    def run(self):
        for number in [number for number, count in enumerate(self.waits) if not count]:
            self._start(number)
        self.env.run()
        if self.left:
            stuck = next(task for task, count in zip(self.tasks, self.waits) if count)
            raise DeadlockError(f"{self.left} of {len(self.tasks)} tasks never start, first {stuck.op} {stuck.name!r} on {stuck.stream}")
        return TaskTimes(self.starts, self.ends)

    def _start(self, number):
        self.starts[number] = self.env.now
        task = self.tasks[number]
        alone_s = task.shared.seconds if task.shared else 0.0
        self.env.timeout(max(0.0, task.seconds - alone_s), number).callbacks.append(self._transfer if task.shared else self._end)

    def _transfer(self, event):
        number = event._value
        self.wires.serve(*self.tasks[number].shared).callbacks.append(lambda _: self._ended(number))

    def _end(self, event):
        self._ended(event._value)

    def _ended(self, number):
        self.ends[number] = self.env.now
        self.left -= 1
        waits = self.waits
        for follower in (*self.users[number], *self.next_on[number]):
            waits[follower] -= 1
            if not waits[follower]:
                self._start(follower)
