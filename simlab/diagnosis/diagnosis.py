"""`diagnose`: all that is known of a step, and the one thing that costs most."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from simlab.diagnosis.graph import COMPUTE, DATA, HOST, OPTIMIZER, Graph, Work
from simlab.diagnosis.straggler import SLOW_HOST, Straggler, straggler
from simlab.diagnosis.time_spent import WAITING, Spent, mean_spent, time_spent
from simlab.display import plain
from simlab.units import seconds_text

STRAGGLER, COMMUNICATION, BUBBLE = "straggler", "communication", "bubble"
STRAGGLER_SAVES = 0.1
"""A straggler is the bottleneck if the step would be shorter by this fraction without it. That much is
what a job is commonly said to lose to stragglers (arXiv 2505.05713)."""
BOTTLENECKS = (COMPUTE, COMMUNICATION, DATA, HOST, OPTIMIZER, BUBBLE, STRAGGLER)
PAUSE = 0.05
"""The part of a step from which on a pause of a host is named."""
SHOWN = 6


class Saving(NamedTuple):
    """What the step saves, in seconds, if all work of one kind takes half its time, and if it takes
    none. what: 'compute F', 'dp all_gather', ..., for people."""

    what: str
    half_s: float
    all_s: float


class OnPath(NamedTuple):
    """How many seconds of the critical path are of one part of the step."""

    part: str
    seconds: float


class Pause(NamedTuple):
    """The longest time in which a rank's host kept it from working: the rank, seconds, and what ran before,
    for people."""

    rank: int
    seconds: float
    before: str

    def __str__(self) -> str:
        return f"rank {self.rank}, {seconds_text(self.seconds)}, after: {self.before}"


@dataclass(frozen=True)
class Diagnosis:
    """Where the time of a step goes, and why. Seconds are of one step."""

    source: str
    """What was diagnosed, for people."""
    ranks: int
    steps: int
    """How many steps were read: all figures are means over them."""
    step_s: float
    bottleneck: Annotated[str, BOTTLENECKS]
    """A bubble is waiting that no straggler causes."""
    spent: Spent
    """The mean of the ranks."""
    spent_by_rank: list[Spent]
    critical_path: list[OnPath]
    """The parts of the critical path, the longest first."""
    savings: list[Saving]
    """What faster work would save, the largest first."""
    straggler: Straggler | None
    notes: list[str]
    pause: Pause | None = None
    """Of profiles: of the straggler whose host is slow, else of all ranks, if it is `PAUSE` of a step."""

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as plain values that JSON knows."""
        return plain(self)

    def __str__(self) -> str:
        return "\n".join(
            [*self._head(), *self._spent(), *self._path(), *self._saves(), *self.notes]
        )

    def _head(self) -> list[str]:
        steps = f", mean of {self.steps} steps" if self.steps > 1 else ""
        return [
            f"{self.source}: {self.ranks} ranks, a step of {seconds_text(self.step_s)}{steps}",
            f"bottleneck: {self._bottleneck()}",
        ]

    def _bottleneck(self) -> str:
        if self.straggler and self.bottleneck == STRAGGLER:
            saved = f"; the step would be {self._share(self.straggler.saved_s)} shorter without it"
            return f"{self.straggler}{saved}"
        exposed = max(self.spent.exposed, key=self.spent.exposed.__getitem__, default="")
        return {
            COMPUTE: "compute: the GPUs do what they are for",
            COMMUNICATION: f"communication, most of it of {exposed}",
            DATA: "loading data",
            HOST: "the host: Python, launching small kernels, or what the trace does not show",
            BUBBLE: "the pipeline: ranks wait for each other, and no rank is to blame",
            OPTIMIZER: "the optimizer's step",
        }[self.bottleneck]

    def _share(self, seconds: float) -> str:
        return f"{seconds / self.step_s:.1%}" if self.step_s else "0%"

    def _spent(self) -> list[str]:
        parts = _parts(self.spent)
        texts = [
            f"{name} {self._share(seconds)}"
            for name, seconds in sorted(parts.items(), key=lambda item: -item[1])
            if seconds > 5e-4 * self.step_s
        ]
        lines = [f"mean of ranks: {', '.join(texts)}"]
        if self.straggler and self.bottleneck != STRAGGLER:
            saved = self._share(self.straggler.saved_s)
            lines.append(f"slowest: {self.straggler}; {saved} of the step")
        if self.pause:
            lines.append(f"longest pause of a host: {self.pause}")
        return lines

    def _path(self) -> list[str]:
        parts = [f"{part} {self._share(seconds)}" for part, seconds in self.critical_path[:SHOWN]]
        return [f"critical path: {', '.join(parts)}"]

    def _saves(self) -> list[str]:
        if not self.savings:
            return []
        texts = [f"{what} {self._share(half_s)}" for what, half_s, _ in self.savings[:SHOWN]]
        return [f"twice as fast saves: {', '.join(texts)}"]


def diagnose(graph: Graph) -> Diagnosis:
    """The `Diagnosis` of a graph, which `trace_graph` or `profile_graph` made."""
    each = time_spent(graph)
    spent, slow = mean_spent(each), straggler(graph)
    savings = _savings(graph)
    return Diagnosis(
        graph.source,
        graph.ranks,
        graph.steps,
        graph.step_s / graph.steps,
        _bottleneck(graph, spent, slow),
        spent,
        each,
        _on_path(graph),
        savings,
        slow,
        list(graph.notes),
        _pause(graph, slow),
    )


def _pause(graph: Graph, slow: Straggler | None) -> Pause | None:
    """The longest pause that counts."""
    rank = slow.rank if slow and slow.cause == SLOW_HOST else None
    pauses = [
        Pause(work.rank, work.own_s, work.name)
        for work in graph.works
        if work.part == HOST and work.name and rank in (None, work.rank)
    ]
    longest = max(pauses, key=lambda pause: pause.seconds, default=None)
    least_s = PAUSE * graph.step_s / graph.steps if rank is None else 0.0
    return longest if longest and longest.seconds >= least_s else None


def _parts(spent: Spent) -> dict[str, float]:
    """{name for people: seconds}"""
    fixed = {COMPUTE: spent.compute, OPTIMIZER: spent.optimizer, DATA: spent.data, HOST: spent.host}
    dimensions = {
        part if part == COMMUNICATION else f"exposed {part}": seconds
        for part, seconds in spent.exposed.items()
    }
    return fixed | {WAITING: spent.waiting} | dimensions


def _bottleneck(graph: Graph, spent: Spent, slow: Straggler | None) -> str:
    """The straggler, if there is one that costs enough; else the part of the ranks' time that is
    largest."""
    if slow and slow.saved_s >= STRAGGLER_SAVES * graph.step_s / graph.steps:
        return STRAGGLER
    parts = {
        COMPUTE: spent.compute,
        OPTIMIZER: spent.optimizer,
        DATA: spent.data,
        HOST: spent.host,
        BUBBLE: spent.waiting,
        COMMUNICATION: sum(spent.exposed.values()),
    }
    return max(parts, key=parts.__getitem__)


def _on_path(graph: Graph) -> list[OnPath]:
    seconds: dict[str, float] = defaultdict(float)
    for link in graph.critical_path():
        seconds[graph.works[link.number].part or HOST] += link.seconds
        seconds[HOST] += link.lag_s
    found = [OnPath(part, total / graph.steps) for part, total in seconds.items() if total > 0]
    return sorted(found, key=lambda one: -one.seconds)


def _savings(graph: Graph) -> list[Saving]:
    kinds = sorted({(work.part, work.kind) for work in graph.works if work.part and work.own_s > 0})
    found = []
    for part, kind in kinds:
        chosen = _of_kind(part, kind)
        halved_s = graph.saved_s(chosen, 0.5) / graph.steps
        all_s = graph.saved_s(chosen, 0.0) / graph.steps
        found.append(Saving(f"{part} {kind}".strip() if kind != part else part, halved_s, all_s))
    return sorted(found, key=lambda one: -one.half_s)


def _of_kind(part: str, kind: str) -> Callable[[Work], bool]:
    return lambda work: (work.part, work.kind) == (part, kind)
