"""Ranks that are threads of one process: what is written against `Group` runs on any number of them
in milliseconds, and a sum is a sum of tensors that lie beside each other.

No process is started and nothing of torch.distributed is used. A rank that fails ends the others.
"""

import threading
from collections import defaultdict
from itertools import product
from queue import Empty, SimpleQueue

import torch

from realrun.comm.channels import Channels
from realrun.comm.group import Group, nothing_to_do
from realrun.comm.mesh import Mesh, groups_of
from tests.support.patience import PATIENCE_S


class Broken(Exception):
    """Another rank has failed."""


class Meeting:
    """Where the members of a group put what they give to each of their collectives."""

    def __init__(self, size):
        self.size, self.given, self.condition, self.broken = size, {}, threading.Condition(), False

    def give(self, number, place, value):
        """Rank `place` begins its collective of that number."""
        with self.condition:
            self.given.setdefault(number, {})[place] = value
            self.condition.notify_all()

    def all(self, number):
        """[what each rank has given to it], when all have."""
        with self.condition:
            here = self.condition.wait_for(
                lambda: self.broken or len(self.given.get(number, ())) == self.size, PATIENCE_S
            )
            if self.broken or not here:
                raise Broken("another rank has failed, or did not begin this collective")
            return [self.given[number][place] for place in range(self.size)]

    def end(self):
        """Wake those who wait for a rank that has failed."""
        with self.condition:
            self.broken = True
            self.condition.notify_all()


class ThreadGroup(Group):
    """A `Group` of threads. Values are copied when a collective begins, and added up rank by
    rank."""

    def __init__(self, dimension, ranks, rank, meeting, traffic=None):
        super().__init__(dimension, ranks, rank, None, traffic)
        self.meeting, self.number = meeting, 0

    def _carry_out(self, kind, size_bytes, given, result):
        begun = self._begins(kind, size_bytes)
        self.number += 1
        number = self.number
        self.meeting.give(number, self.place, given.detach().clone())

        @torch.no_grad()
        def ended():
            return result(self.meeting.all(number))

        return self._pending(begun, [], ended)

    def all_reduce(self, tensor, operation="sum"):
        if self.size == 1:
            return nothing_to_do(tensor)
        whole = {"sum": sum, "max": lambda given: torch.stack(given).amax(0)}[operation]
        return self._carry_out(
            "all_reduce", tensor.nbytes, tensor, lambda given: tensor.copy_(whole(given))
        )

    def broadcast(self, tensor):
        if self.size == 1:
            return nothing_to_do(tensor)
        return self._carry_out(
            "broadcast", tensor.nbytes, tensor, lambda given: tensor.copy_(given[0])
        )

    def all_gather(self, tensor, dim=0, out=None):
        if self.size == 1:
            return nothing_to_do(tensor if out is None else out.copy_(tensor))

        def result(given):
            whole = torch.cat(given, dim)
            return whole if out is None else out.copy_(whole)

        return self._carry_out("all_gather", self.size * tensor.nbytes, tensor, result)

    def reduce_scatter(self, tensor, dim=0):
        if self.size == 1:
            return nothing_to_do(tensor)
        return self._carry_out(
            "reduce_scatter", tensor.nbytes, tensor, lambda given: self.own(sum(given), dim).clone()
        )

    def all_to_all(self, tensor):
        if self.size == 1:
            return nothing_to_do(tensor)
        return self._carry_out(
            "all_to_all",
            tensor.nbytes,
            tensor,
            lambda given: torch.stack([its[self.place] for its in given]),
        )

    def shift(self, tensor):
        if self.size == 1:
            return nothing_to_do(tensor)
        return self._carry_out("ring", tensor.nbytes, tensor, lambda given: given[self.place - 1])


class ThreadChannels(Channels):
    """`Channels` between threads: a queue for each pair and direction."""

    def __init__(self, rank, queues):
        super().__init__(rank, torch.device("cpu"), {})
        self.queues = queues

    def send(self, tensor, destination):
        self.queues[self.rank, destination].put(tensor.detach().clone())

    def post_receive(self, source, shape, dtype):
        return self.queues[source, self.rank], None

    def complete(self, work, buffer, shape, dtype):
        try:
            message = work.get(timeout=PATIENCE_S)
        except Empty:
            raise Broken("another rank has failed, or did not send") from None
        assert (tuple(message.shape), message.dtype) == (tuple(shape), dtype)
        return message


def on_threads(size, function, *arguments, dimension="dp"):
    """[function(group, *arguments) of each of `size` ranks]; the first rank's error is raised."""
    return on_mesh({dimension: size}, lambda mesh: function(mesh[dimension], *arguments))


def on_mesh(sizes, function):
    """[function({dimension: group}) of each rank], the last dimension fastest. `sizes`: {dimension:
    number of ranks}."""
    meetings = {}
    places = list(product(*(range(size) for size in sizes.values())))

    def group(dimension, place):
        at = list(sizes).index(dimension)
        others = dimension, place[:at] + place[at + 1 :]
        meeting = meetings.setdefault(others, Meeting(sizes[dimension]))
        return ThreadGroup(dimension, range(sizes[dimension]), place[at], meeting)

    meshes = [{dimension: group(dimension, place) for dimension in sizes} for place in places]
    return _in_threads(function, [(mesh,) for mesh in meshes], meetings.values())


def on_layout(layout, make, function):
    """[function(what `make(rank, mesh, channels)` gives) of each rank of a `simlab.Layout`], with
    the groups that a `Mesh` makes and with `Channels`. They are made one rank after the other,
    because all threads share one random generator, which recomputation sets back, too."""
    meetings, queues = {}, defaultdict(SimpleQueue)
    made = []
    for rank in range(layout.world_size):
        mesh = Mesh.__new__(Mesh)
        mesh.layout, mesh.rank, mesh.traffic, mesh.groups = layout, rank, [], {}
        for name in groups_of(layout):
            members = layout.group(name, rank)
            meeting = meetings.setdefault((name, *members), Meeting(len(members)))
            mesh.groups[name] = ThreadGroup(name, members, rank, meeting, mesh.traffic)
        made.append((make(rank, mesh, ThreadChannels(rank, queues)),))
    return _in_threads(function, made, meetings.values())


def _in_threads(function, arguments, meetings):
    """[function(*its arguments) of each rank]; the first rank's error is raised."""
    results, errors = [None] * len(arguments), []

    def rank(number):
        try:
            results[number] = function(*arguments[number])
        except BaseException as error:
            errors.append(error)
            for meeting in meetings:
                meeting.end()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors, key=lambda error: isinstance(error, Broken)):
        raise error
    return results
