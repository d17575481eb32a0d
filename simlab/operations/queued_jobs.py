"""The jobs of a queue: what each asks for, and what became of them."""

from dataclasses import dataclass
from math import log2
from random import Random
from statistics import fmean
from typing import Annotated, Any, NamedTuple, TypedDict

from simlab.display import facts_of
from simlab.errors import (
    InputError,
    require_between,
    require_positive,
    require_whole,
    shortened,
)

POLICIES = ("static", "reactive", "predictive")
ALMOST_S = 1e-6
MOST_JOBS = 1_000
"""Each change looks at every job, so that a queue costs the square of its length."""
MOST_S = 1e12
"""The longest time, 30,000 years, and the most work of a job on one node."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training that waits for nodes."""

    name: str
    arrives_s: float
    work_node_s: float
    """Seconds that it takes on one node."""
    nodes: int
    """The nodes that it asks for, which is what a static policy gives it."""
    fewest_nodes: int = 1
    most_nodes: int | None = None
    """The most nodes that it can use; None for twice what it asks for."""

    def __post_init__(self) -> None:
        require_between("arrives_s", self.arrives_s, 0, 1e18)
        require_positive("work_node_s", self.work_node_s)
        require_between("work_node_s", self.work_node_s, 0, MOST_S * 1000)
        require_whole("nodes", self.nodes)
        require_whole("fewest_nodes", self.fewest_nodes)
        if not self.fewest_nodes <= self.nodes <= self.most:
            raise InputError(
                f"job {shortened(self.name)}: nodes = {self.nodes}: give at least fewest_nodes = "
                f"{self.fewest_nodes} and at most most_nodes = {self.most}"
            )

    @property
    def most(self) -> int:
        """The most nodes that it can use."""
        return 2 * self.nodes if self.most_nodes is None else self.most_nodes


class Served(NamedTuple):
    """What became of a job."""

    name: str
    arrived_s: float
    started_s: float
    ended_s: float
    resizes: int

    @property
    def waited_s(self) -> float:
        """From arriving to starting."""
        return self.started_s - self.arrived_s

    @property
    def turnaround_s(self) -> float:
        """From arriving to the end."""
        return self.ended_s - self.arrived_s


class QueueFacts(TypedDict):
    """A `QueueResult` as plain values."""

    policy: Annotated[str, POLICIES]
    mean_turnaround_s: float
    mean_wait_s: float
    makespan_s: float
    utilisation: float
    resizes: int
    trained_node_s: float
    resharded_node_s: float
    idle_node_s: float
    jobs: list[Annotated[dict[str, Any], Served]]


@dataclass(frozen=True, repr=False)
class QueueResult:
    """A queue of jobs as it was served."""

    policy: str
    nodes: int
    jobs: tuple[Served, ...]
    trained_node_s: float
    """Node-seconds in which jobs trained."""
    resharded_node_s: float
    """Node-seconds in which jobs stood still to be re-sharded."""

    def __repr__(self) -> str:
        return (
            f"<QueueResult {self.policy}: mean turnaround {self.mean_turnaround_s / 3600:.2f} h, "
            f"{self.utilisation:.0%} of nodes in use, {self.resizes} resizes>"
        )

    @property
    def makespan_s(self) -> float:
        """The end of the last job."""
        return max(job.ended_s for job in self.jobs)

    @property
    def mean_turnaround_s(self) -> float:
        """From arriving to the end, the mean over jobs."""
        return fmean(job.turnaround_s for job in self.jobs)

    @property
    def mean_wait_s(self) -> float:
        """From arriving to starting, the mean over jobs."""
        return fmean(job.waited_s for job in self.jobs)

    @property
    def resizes(self) -> int:
        """How often a running job got another number of nodes."""
        return sum(job.resizes for job in self.jobs)

    @property
    def idle_node_s(self) -> float:
        """Node-seconds in which no job had the node, until the last one ended."""
        return self.nodes * self.makespan_s - self.trained_node_s - self.resharded_node_s

    @property
    def utilisation(self) -> float:
        """The part of node-seconds in which jobs trained."""
        return self.trained_node_s / (self.nodes * self.makespan_s)

    def to_dict(self) -> QueueFacts:
        """All figures as plain values that JSON knows."""
        return facts_of(self, QueueFacts)


def random_jobs(
    count: int, *, nodes: int, mean_gap_s: float, mean_work_node_s: float, seed: int = 0
) -> list[Job]:
    """`count` jobs that arrive at random, `mean_gap_s` apart on average, and ask for a power of two of
    `nodes`; their work is exponentially distributed."""
    require_jobs(count)
    require_whole("nodes", nodes)
    for name, value in (("mean_gap_s", mean_gap_s), ("mean_work_node_s", mean_work_node_s)):
        require_positive(name, value)
        require_between(name, value, 1 / MOST_S, MOST_S)
    luck, now_s, jobs = Random(seed), 0.0, []
    for number in range(count):
        asked = 2 ** luck.randrange(int(log2(nodes)) + 1)
        work = luck.expovariate(1 / mean_work_node_s)
        jobs.append(
            Job(
                name=f"job {number}",
                arrives_s=now_s,
                work_node_s=max(work, ALMOST_S),
                nodes=asked,
                fewest_nodes=max(1, asked // 2),
                most_nodes=min(nodes, 2 * asked),
            )
        )
        now_s += luck.expovariate(1 / mean_gap_s)
    return jobs


def require_jobs(count: int) -> None:
    """`InputError` unless a queue can have `count` jobs."""
    require_whole("jobs", count)
    if count > MOST_JOBS:
        raise InputError(f"jobs = {shortened(count)}: give at most {MOST_JOBS:,}")
