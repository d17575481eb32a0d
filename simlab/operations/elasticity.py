"""A queue of jobs on one cluster, whose sizes may change: static, reactive and predictive scaling."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import inf, log2, ulp
from typing import Any

import simpy

from simlab.errors import (
    InputError,
    did_you_mean,
    require_between,
    require_whole,
    shortened,
)
from simlab.operations.queued_jobs import (
    ALMOST_S,
    MOST_S,
    POLICIES,
    Job,
    QueueResult,
    Served,
    require_jobs,
)

LEAST_PER_DOUBLING, MOST_PER_DOUBLING = 0.1, 2.0


def simulate_queue(
    jobs: Sequence[Job],
    *,
    nodes: int,
    policy: str = "static",
    resize_s: float = 120.0,
    per_doubling: float = 0.95,
) -> QueueResult:
    """`jobs` on `nodes` nodes.

    policy: 'static' gives each job what it asks for when that is free. A job overtakes an earlier
            one only where that does not delay it.
            'reactive' shares all nodes anew among as many jobs as can have their fewest, whenever a
            job comes or ends. 'predictive' does so only where it pays: it resizes a job if that
            does more work until the next change than the re-sharding costs, by the remaining times
            of all jobs, which it knows, and by how often jobs came so far.
    resize_s: how long a job stands still at each change of its size.
    per_doubling: the part of its efficiency that a job keeps on twice as many nodes.

    Left out: where in the network the nodes of a job are, failures, and priorities.
    """
    require_whole("nodes", nodes)
    require_between("resize_s", resize_s, 0, MOST_S)
    require_between("per_doubling", per_doubling, LEAST_PER_DOUBLING, MOST_PER_DOUBLING)
    if policy not in POLICIES:
        hint = did_you_mean(policy, POLICIES) or ";"
        raise InputError(f"policy = {shortened(policy)}{hint} there is {', '.join(POLICIES)}")
    if not jobs:
        raise InputError("jobs = []: give at least one job")
    require_jobs(len(jobs))
    for job in jobs:
        least = job.nodes if policy == "static" else job.fewest_nodes
        if least > nodes:
            raise InputError(f"job {shortened(job.name)} needs {least} nodes: there are {nodes}")
    env = simpy.Environment()
    queue = _Queue(env, nodes, policy, resize_s, per_doubling)
    env.process(queue.arrivals(sorted(jobs, key=lambda job: job.arrives_s)))
    env.run(until=env.process(queue.serve(len(jobs))))
    served = tuple(
        Served(each.job.name, each.job.arrives_s, each.started_s, each.ended_s, each.resizes)
        for each in queue.ended
    )
    return QueueResult(policy, nodes, served, queue.trained_node_s, queue.resharded_node_s)


@dataclass
class _Running:
    """A job in the queue or on nodes."""

    job: Job
    left_node_s: float
    per_doubling: float
    nodes: int = 0
    stands_until_s: float = 0.0
    started_s: float = inf
    ended_s: float = inf
    resizes: int = 0

    def speed(self, nodes: int) -> float:
        """Work in a second on `nodes` nodes, in node-seconds."""
        return nodes * self.per_doubling ** log2(nodes) if nodes else 0.0

    def end_s(self, now_s: float, nodes: int) -> float:
        """When it would end on `nodes` nodes, if it need not stand still."""
        return max(now_s, self.stands_until_s) + self.left_node_s / self.speed(nodes)


@dataclass
class _Queue:
    env: simpy.Environment
    nodes: int
    policy: str
    resize_s: float
    per_doubling: float
    jobs: list[_Running] = field(default_factory=list)
    ended: list[_Running] = field(default_factory=list)
    trained_node_s: float = 0.0
    resharded_node_s: float = 0.0
    arrived: int = 0
    at_s: float = 0.0

    def __post_init__(self) -> None:
        self.arrival = self.env.event()

    def arrivals(self, jobs: Sequence[Job]) -> Generator[simpy.Event, Any, None]:
        """Let the jobs come."""
        for job in jobs:
            yield self.env.timeout(job.arrives_s - self.env.now)
            self.jobs.append(_Running(job, job.work_node_s, self.per_doubling))
            self.arrived += 1
            happened, self.arrival = self.arrival, self.env.event()
            happened.succeed()

    def serve(self, count: int) -> Generator[simpy.Event, Any, None]:
        """Give nodes to jobs until all have ended."""
        while len(self.ended) < count:
            ends = [job.end_s(self.env.now, job.nodes) for job in self.jobs if job.nodes]
            changes = [self.arrival]
            if ends:
                changes.append(self.env.timeout(max(0.0, min(ends) - self.env.now)))
            yield self.env.any_of(changes)
            self._advance()
            self._resize(self._wanted())

    def _advance(self) -> None:
        """Do the work of the time since the last change, and let jobs end."""
        now_s = self.env.now
        for job in self.jobs:
            worked_s = max(0.0, now_s - max(self.at_s, job.stands_until_s))
            self.trained_node_s += job.nodes * worked_s
            self.resharded_node_s += job.nodes * (now_s - self.at_s - worked_s)
            job.left_node_s -= job.speed(job.nodes) * worked_s
        self.at_s = now_s
        for job in [each for each in self.jobs if each.nodes]:
            # Late in a long queue two times that differ by less are the same.
            if job.left_node_s <= max(ALMOST_S, 4 * ulp(now_s)) * job.speed(job.nodes):
                job.ended_s = now_s
                self.jobs.remove(job)
                self.ended.append(job)

    def _resize(self, wanted: Sequence[int]) -> None:
        for job, nodes in zip(self.jobs, wanted):
            if nodes == job.nodes:
                continue
            if job.nodes:
                job.resizes += 1
                job.stands_until_s = self.env.now + self.resize_s
            else:
                job.started_s = min(job.started_s, self.env.now)
            job.nodes = nodes

    def _wanted(self) -> list[int]:
        """The nodes that each job should have now."""
        if self.policy == "static":
            return self._as_asked()
        shared = self._shared(len(self.jobs))
        return shared if self.policy == "reactive" else self._where_it_pays(shared)

    def _as_asked(self) -> list[int]:
        """What each job has or asks for, in the order of arrival. A later job overtakes the first one
        that has to wait only if that does not have to wait longer for it (EASY backfilling)."""
        given = [job.nodes for job in self.jobs]
        left = self.nodes - sum(given)
        waiting = [at for at, job in enumerate(self.jobs) if not job.nodes]
        while waiting and self.jobs[waiting[0]].job.nodes <= left:
            first = waiting.pop(0)
            given[first] = self.jobs[first].job.nodes
            left -= given[first]
        if waiting:
            starts_s, beside = self._reserved(self.jobs[waiting[0]].job.nodes, given, left)
            for at in waiting[1:]:
                asked = self.jobs[at].job.nodes
                in_time = self.jobs[at].end_s(self.env.now, asked) <= starts_s
                if asked <= left and (in_time or asked <= beside):
                    given[at], left = asked, left - asked
                    beside -= 0 if in_time else asked
        return given

    def _reserved(self, asked: int, given: Sequence[int], left: int) -> tuple[float, int]:
        """(when `asked` nodes will be free, the nodes that are free then beside them)."""
        ends = sorted(
            (job.end_s(self.env.now, nodes), nodes) for job, nodes in zip(self.jobs, given) if nodes
        )
        for end_s, nodes in ends:
            left += nodes
            if left >= asked:
                return end_s, left - asked
        return inf, 0

    def _shared(self, served: int) -> list[int]:
        """All nodes, shared: in the order of arrival each job has its fewest, and what is left goes
        one by one to the smallest. Jobs after the first `served` get none."""
        given, left = [0] * len(self.jobs), self.nodes
        for at, job in enumerate(self.jobs[:served]):
            if job.job.fewest_nodes > left:
                break
            given[at] = job.job.fewest_nodes
            left -= given[at]
        most = [job.job.most for job in self.jobs]
        while left and (growing := [at for at, n in enumerate(given) if 0 < n < most[at]]):
            least = min(given[at] for at in growing)
            smallest = [at for at in growing if given[at] == least]
            # As many rounds at once, each a node for each of the smallest, as change nothing else.
            rounds = min(most[at] - least for at in smallest)
            rounds = min([rounds, *(given[at] - least for at in growing if given[at] > least)])
            rounds = min(rounds, left // len(smallest))
            for at in smallest if rounds else smallest[:left]:
                given[at] += max(rounds, 1)
            left -= rounds * len(smallest) if rounds else left
        return given

    def _where_it_pays(self, shared: list[int]) -> list[int]:
        """`shared`, but a job keeps its size where changing it does not pay."""
        now_s = self.env.now
        running = [job for job in self.jobs if job.nodes]
        next_end_s = min((job.end_s(now_s, job.nodes) for job in running), default=now_s) - now_s
        free = self.nodes - sum(job.nodes for job in running)
        newcomers = [at for at, job in enumerate(self.jobs) if not job.nodes and shared[at]]
        needed = sum(self.jobs[at].job.fewest_nodes for at in newcomers)
        shrunk = [job for at, job in enumerate(self.jobs) if 0 < shared[at] < job.nodes]
        cost = self.resize_s * sum(job.nodes for job in shrunk)
        if needed > free and next_end_s * needed > cost:
            return shared
        until_s = now_s / (self.arrived - 1) if self.arrived > 1 and now_s else inf
        given = [job.nodes for job in self.jobs]
        for at in newcomers:
            size = min(shared[at], free)
            if size < self.jobs[at].job.fewest_nodes:
                break
            given[at], free = size, free - size
        for at, job in enumerate(self.jobs):
            more = min(shared[at], job.nodes + free)
            if job.nodes and more > job.nodes and self._growing_pays(job, more, until_s):
                free -= more - job.nodes
                given[at] = more
        return given

    def _growing_pays(self, job: _Running, more: int, until_s: float) -> bool:
        """Whether a job has done more by its end or by the next arrival, whichever is first."""
        horizon_s = min(until_s, job.end_s(self.env.now, job.nodes) - self.env.now)
        return job.speed(more) * (horizon_s - self.resize_s) > job.speed(job.nodes) * horizon_s
