"""Where the time of a step goes: on each rank computing, exposed communication by dimension, waiting
for other ranks, loading data, and the host.

A rank's own work counts as what it is. An idle interval is explained backward from the work that ends
it: what that work needed last was either a communication of this rank, whose own time is exposed
communication of its dimension, or a result of another rank, for which the rank was waiting. What is left
when nothing was missing is the host's: launching, Python, the operating system.
"""

from bisect import bisect_right
from typing import NamedTuple

from simlab.diagnosis.graph import COMPUTE, DATA, ENTRY, HOST, OPTIMIZER, OWN_PARTS, Graph, Work

WAITING = "waiting"


class Spent(NamedTuple):
    """What one rank's time, or the mean of all ranks', was spent on, in seconds of one step.

    compute: on forwards and backwards. optimizer: on the optimizer's step. data: on loading data.
    host: when nothing was missing. waiting: for other ranks. exposed: {dimension: on communication
    beside which nothing was computed}. They add up to the step.
    """

    compute: float
    optimizer: float
    data: float
    host: float
    waiting: float
    exposed: dict[str, float]

    @property
    def total(self) -> float:
        """The sum of all, in seconds."""
        own = self.compute + self.optimizer + self.data + self.host
        return own + self.waiting + sum(self.exposed.values())


def time_spent(graph: Graph) -> list[Spent]:
    """[of each rank, its `Spent`], for one of the steps of `graph`."""
    each = [_Rank(graph, rank).spent() for rank in range(graph.ranks)]
    return [_apart(*pair) for pair in zip(each, graph.within)] if graph.within else each


def _apart(spent: Spent, within: dict[str, float]) -> Spent:
    """`spent` with the communication that ops hold as what it is."""
    parts = {*spent.exposed, *within}
    exposed = {part: spent.exposed.get(part, 0.0) + within.get(part, 0.0) for part in parts}
    compute = max(0.0, spent.compute - sum(within.values()))
    return spent._replace(compute=compute, exposed=exposed)


def mean_spent(each: list[Spent]) -> Spent:
    """The mean of some ranks' `Spent`."""
    parts = sorted({part for one in each for part in one.exposed})
    exposed = {part: sum(one.exposed.get(part, 0.0) for one in each) / len(each) for part in parts}
    count = len(each)
    return Spent(
        sum(one.compute for one in each) / count,
        sum(one.optimizer for one in each) / count,
        sum(one.data for one in each) / count,
        sum(one.host for one in each) / count,
        sum(one.waiting for one in each) / count,
        exposed,
    )


class _Rank:
    """The explanation of one rank's time."""

    def __init__(self, graph: Graph, rank: int) -> None:
        self.graph, self.rank = graph, rank
        self.seconds: dict[str, float] = {}
        own = [(work, at) for at, work in enumerate(graph.works) if work.rank == rank]
        self.own = sorted(
            (pair for pair in own if pair[0].part in OWN_PARTS), key=lambda pair: pair[0].start_s
        )
        # (end, number) of each communication of the rank, by end
        self.mine = sorted(
            (work.end_s, at) for at, work in enumerate(graph.works) if self._takes_part(work)
        )

    def spent(self) -> Spent:
        """The `Spent` of the rank."""
        free_s = self.graph.start_s
        for work, number in self.own:
            if work.start_s > free_s:
                self._explain(free_s, work.start_s, number)
            self._add(work.part, max(0.0, work.end_s - max(free_s, work.start_s)))
            free_s = max(free_s, work.end_s)
        self._end(free_s)
        parts = {part: seconds / self.graph.steps for part, seconds in self.seconds.items()}
        compute, optimizer, data, host, waiting = (
            parts.pop(part, 0.0) for part in (COMPUTE, OPTIMIZER, DATA, HOST, WAITING)
        )
        return Spent(compute, optimizer, data, host, waiting, parts)

    def _end(self, free_s: float) -> None:
        """Explain what comes after the rank's last own work: communication, then waiting."""
        if self.mine and self.mine[-1][0] > free_s:
            end_s, number = self.mine[-1]
            self._explain(free_s, end_s, None, number)
            free_s = end_s
        self._add(WAITING, self.graph.end_s - free_s)

    def _takes_part(self, work: Work) -> bool:
        return work.communicates and self.rank in (work.rank, work.peer)

    def _beside(self, since_s: float, until_s: float) -> int | None:
        """The number of this rank's communication that ended last of those that ran in an interval."""
        first = bisect_right(self.mine, (since_s, len(self.graph.works)))
        ran = [one for one in self.mine[first:] if self._begun_s(one[1]) < until_s]
        return max(ran, key=lambda one: min(one[0], until_s))[1] if ran else None

    def _begun_s(self, number: int) -> float:
        work = self.graph.works[number]
        return work.end_s - work.own_s

    def _add(self, part: str, seconds: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def _explain(
        self, since_s: float, until_s: float, number: int | None, need: int | None = None
    ) -> None:
        """Explain the idle interval from `since_s` to `until_s`, which the work `number` ends.
        need: the work that was needed last, where it is known."""
        need = self.graph.binding(number) if need is None and number is not None else need
        if number is not None:
            ready_s = min(until_s, max(since_s, self.graph.ready_s(number)))
            self._add(HOST, until_s - ready_s)
            until_s = ready_s
        while need is not None and until_s > since_s:
            work = self.graph.works[need]
            if self._takes_part(work):
                begun_s = min(until_s, max(since_s, work.end_s - work.own_s))
                self._add(work.part, until_s - begun_s)
                until_s = begun_s
            elif work.rank != self.rank and work.part != ENTRY:
                break
            elif work.rank == self.rank and work.part in OWN_PARTS:
                need = self._beside(since_s, until_s)
                if need is None:
                    self._add(HOST, until_s - since_s)  # It had ended: nothing was missing.
                    return
                end_s = min(until_s, self.graph.works[need].end_s)
                self._add(HOST, until_s - end_s)
                until_s = end_s
                continue
            need = self.graph.binding(need)
        self._add(WAITING if number is None or need is not None else HOST, until_s - since_s)
