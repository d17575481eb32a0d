"""A training of months: failures, checkpoints, spare nodes, and where all its time went."""

from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any, NamedTuple, TypedDict, cast

import simpy

from simlab.display import facts_of
from simlab.errors import InputError, require_positive
from simlab.operations.checkpoints import Checkpoints
from simlab.operations.fleet import Fleet, Nodes
from simlab.operations.rates import DAY_S, Cause, FailureRate, failure_rate

MOST_EVENTS = 10**6
"""The most checkpoints and failures, as they are expected, that are simulated."""
MOST_FAILURES = 10**5
"""The most failures that are simulated."""
ENDLESS, AT_LEAST = 50, 2000
"""A run with this many times the failures that it would have if none cost it anything, and with
this many at least, will hardly ever end."""
ALMOST = 1e-9
"""Work that is left, as a part of all work, that is rounding."""


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """A training that would take `work_s` without failures and checkpoints."""

    work_s: float
    rate: FailureRate = field(default_factory=lambda: failure_rate("llama-3"))
    fleet: Fleet = field(default_factory=Fleet)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)

    def __post_init__(self) -> None:
        require_positive("work_s", self.work_s)
        if self.work_s / (self.checkpoints.memory_interval_s or self.interval_s) > MOST_EVENTS:
            raise InputError(
                f"work_s = {self.work_s:g} has more than {MOST_EVENTS:g} checkpoints: give longer "
                f"intervals, or less work"
            )

    @property
    def interval_s(self) -> float:
        """Training between two checkpoints on disk."""
        return self.checkpoints.interval_s

    @property
    def unbroken_s(self) -> float:
        """What the training would take if nothing failed: its work and its checkpoints."""
        plan = self.checkpoints
        stalls = max(plan.stall_s, plan.write_s - plan.interval_s) / plan.interval_s
        if plan.memory_interval_s is not None:
            stalls += plan.memory_stall_s / plan.memory_interval_s
        return self.work_s * (1 + stalls)

    @property
    def mtbf_s(self) -> float:
        """Mean seconds between failures of the whole training."""
        return self.rate.mtbf_s(self.fleet.nodes)

    @property
    def restart_s(self) -> float:
        """From a failure until training goes on, where a spare is there and the disk is read."""
        fleet = self.fleet
        return fleet.detect_s + fleet.replace_s + fleet.start_s + self.checkpoints.load_s


class Spent(NamedTuple):
    """Where the time of a training went, in seconds. The parts add up to all of it."""

    work_s: float
    """Training that counts, at the speed of all nodes."""
    lost_s: float = 0.0
    """Training and copying that a failure undid."""
    checkpoint_s: float = 0.0
    """Standing still for checkpoints that counted."""
    detect_s: float = 0.0
    """From failures until they were noticed."""
    wait_s: float = 0.0
    """Waiting for nodes to be repaired."""
    restart_s: float = 0.0
    """Bringing in spares, starting, loading."""
    resize_s: float = 0.0
    """Re-sharding to more nodes."""
    shrunk_s: float = 0.0
    """What training that counts took longer because it had fewer nodes."""


class Incident(NamedTuple):
    """One failure."""

    at_s: float
    cause: str
    lost_s: float
    """The training that it undid."""
    from_memory: bool
    """Whether the training went on from copies in memory."""


class RunFacts(TypedDict):
    """A `RunResult` as plain values, in seconds."""

    wall_s: float
    goodput: float
    failures: int
    mtbf_s: float
    spent: Annotated[dict[str, float], Spent]
    causes: dict[str, int]


@dataclass(frozen=True, repr=False)
class RunResult:
    """A training as it went."""

    run: LongRun
    spent: Spent
    incidents: tuple[Incident, ...]

    def __repr__(self) -> str:
        return (
            f"<RunResult: {self.wall_s / DAY_S:.1f} days, goodput {self.goodput:.1%}, "
            f"{self.failures} failures>"
        )

    @property
    def wall_s(self) -> float:
        """From the first second to the last."""
        return sum(self.spent)

    @property
    def goodput(self) -> float:
        """The part of the time that counts."""
        return self.spent.work_s / self.wall_s

    @property
    def failures(self) -> int:
        """How often the training was interrupted."""
        return len(self.incidents)

    @property
    def causes(self) -> dict[str, int]:
        """{cause: failures}, the most frequent first."""
        return dict(Counter(incident.cause for incident in self.incidents).most_common())

    def to_dict(self) -> RunFacts:
        """Figures as plain values that JSON knows, in seconds."""
        return facts_of(self, RunFacts, mtbf_s=self.run.mtbf_s)


def simulate_run(run: LongRun, *, seed: int = 0) -> RunResult:
    """`run` with failures at random times.

    The times of failures depend on the seed and the mean time between them alone, so that runs with
    other intervals or spares can be compared under the same luck. A failure while a training is
    started again has it started once more. Nodes of a training that waits fail as often as those of one
    that trains, and a training that has shrunk fails less often.

    Left out: failures that come in bursts, checkpoint storage that fails or is slow at times, and
    wrong numbers without a failure. Raises `InputError` for a run that would hardly ever end.
    """
    env = simpy.Environment()
    job = _Job(env, run, seed)
    training = env.process(job.run_to_end())
    env.process(_fail(env, training, job, Random(seed)))
    env.run(until=training)
    return RunResult(run, job.spent(), tuple(job.incidents))


class _Piece(NamedTuple):
    """Training, or a copy, that no complete checkpoint on disk holds yet."""

    work_s: float
    wall_s: float
    checkpoint_s: float


class _Job:
    """A training in a simulation."""

    def __init__(self, env: simpy.Environment, run: LongRun, seed: int) -> None:
        self.env, self.run, self.nodes = env, run, Nodes(env, run.fleet)
        self.luck = Random(f"{seed} causes")
        self.incidents: list[Incident] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.pieces: list[_Piece] = []
        self.open_s = 0.0
        """The work of all `pieces`."""
        self.kept_s = self.shrunk_s = self.checkpoint_s = 0.0
        """Work, its delay, and standing still that are safe on disk."""
        self.has_copy, self.in_memory = False, 0
        """Whether a copy is in memory, and the number of `pieces` that it holds."""
        self.since_disk_s = self.since_memory_s = 0.0
        self.writing: simpy.Process | None = None
        self.broken = self.from_memory = False
        self.detect_left_s = 0.0
        self.phase, self.since_s = "", 0.0

    def spent(self) -> Spent:
        """Where the time went, when it has ended."""
        names = ("lost_s", "detect_s", "wait_s", "restart_s", "resize_s")
        parts = {name: self.seconds[name] for name in names}
        return Spent(
            self.run.work_s, checkpoint_s=self.checkpoint_s, shrunk_s=self.shrunk_s, **parts
        )

    def run_to_end(self) -> Generator[simpy.Event, Any, None]:
        """Train until all work is done."""
        while self.left_s > ALMOST * self.run.work_s:
            try:
                if self.broken:
                    yield from self._restart()
                yield from self._train()
            except simpy.Interrupt as failure:
                self._fall_back(cast(Cause, failure.cause))
        self._keep(len(self.pieces))

    @property
    def left_s(self) -> float:
        """Work that is not done yet."""
        return self.run.work_s - self.kept_s - self.open_s

    def _train(self) -> Generator[simpy.Event, Any, None]:
        """Train up to the next checkpoint, and make it. Nothing is written after the last piece."""
        plan, left_s = self.run.checkpoints, self.left_s
        to_disk_s = max(0.0, plan.interval_s - self.since_disk_s)
        to_memory_s = (plan.memory_interval_s or plan.interval_s) - self.since_memory_s
        piece_s = min(to_disk_s, to_memory_s, left_s)
        yield from self._stand("training", piece_s / self.nodes.speed)
        self.pieces.append(_Piece(piece_s, piece_s / self.nodes.speed, 0.0))
        self.open_s += piece_s
        self.since_disk_s += piece_s
        self.since_memory_s += piece_s
        if left_s - piece_s <= ALMOST * self.run.work_s:
            return
        if to_disk_s <= to_memory_s * (1 + ALMOST):
            yield from self._to_disk()
            yield from self._grow()
        else:
            yield from self._copy(plan.memory_stall_s)

    def _to_disk(self) -> Generator[simpy.Event, Any, None]:
        """Make a checkpoint on disk, when the one before is complete."""
        plan = self.run.checkpoints
        if self.writing is not None and self.writing.is_alive:
            self.phase, self.since_s = "training", self.env.now
            yield self.writing
            self.pieces.append(_Piece(0.0, 0.0, self.env.now - self.since_s))
        yield from self._copy(plan.stall_s)
        self.since_disk_s = 0.0
        if plan.write_s:
            self.writing = self.env.process(self._write(len(self.pieces)))
        else:
            self._keep(len(self.pieces))

    def _copy(self, stall_s: float) -> Generator[simpy.Event, Any, None]:
        """Stand still for a copy of the state, which is in memory then."""
        yield from self._stand("training", stall_s)
        self.pieces.append(_Piece(0.0, 0.0, stall_s))
        self.since_memory_s = 0.0
        if self.run.checkpoints.memory_interval_s is not None:
            self.has_copy, self.in_memory = True, len(self.pieces)

    def _write(self, count: int) -> Generator[simpy.Event, Any, None]:
        """Write the first `count` pieces beside the training; a failure ends it."""
        try:
            yield self.env.timeout(self.run.checkpoints.write_s)
        except simpy.Interrupt:
            return
        self._keep(count)

    def _keep(self, count: int) -> None:
        """The first `count` pieces are safe."""
        for piece in self.pieces[:count]:
            self.kept_s += piece.work_s
            self.shrunk_s += piece.wall_s - piece.work_s
            self.checkpoint_s += piece.checkpoint_s
        del self.pieces[:count]
        self.open_s = sum(piece.work_s for piece in self.pieces)
        self.in_memory = max(0, self.in_memory - count)

    def _grow(self) -> Generator[simpy.Event, Any, None]:
        """Bring repaired nodes back into a training that has shrunk."""
        if self.nodes.grown_speed > self.nodes.speed:
            yield from self._stand("resize_s", self.run.fleet.resize_s)
            self.nodes.take_spares()

    def _restart(self) -> Generator[simpy.Event, Any, None]:
        """From a failure until training goes on."""
        fleet, plan = self.run.fleet, self.run.checkpoints
        yield from self._stand("detect_s", self.detect_left_s)
        self.detect_left_s = 0.0
        while not self.nodes.enough:
            self.phase, self.since_s = "wait_s", self.env.now
            yield self.nodes.repaired
            self.seconds["wait_s"] += self.env.now - self.since_s
        replace_s = fleet.replace_s if self.nodes.take_spares() else 0.0
        load_s = plan.memory_load_s if self.from_memory else plan.load_s
        yield from self._stand("restart_s", replace_s + fleet.start_s + load_s)
        self.broken = False

    def _stand(self, phase: str, seconds: float) -> Generator[simpy.Event, Any, None]:
        """Let `seconds` pass in a phase."""
        self.phase, self.since_s = phase, self.env.now
        yield self.env.timeout(seconds)
        if phase != "training":
            self.seconds[phase] += seconds

    def _fall_back(self, cause: Cause) -> None:
        """A failure: what is not safe is lost."""
        passed_s = self.env.now - self.since_s
        lost_s = passed_s if self.phase == "training" else 0.0
        if self.phase == "detect_s":
            self.detect_left_s -= passed_s
        elif self.phase != "wait_s":
            self.detect_left_s = self.run.fleet.detect_s
        if self.phase != "training":
            self.seconds[self.phase] += passed_s
        lost_s += self._lose_pieces()
        self.seconds["lost_s"] += lost_s
        self.broken = True
        if cause.takes_node:
            self.nodes.lose()
        self.incidents.append(Incident(self.env.now, cause.name, lost_s, self.from_memory))

    def _lose_pieces(self) -> float:
        """Lose what neither the disk nor a copy in memory holds; returns its seconds."""
        plan = self.run.checkpoints
        if plan.memory_interval_s is not None:
            self.has_copy &= self.luck.random() < plan.memory_survives
        kept = self.in_memory = self.in_memory if self.has_copy else 0
        lost_s = sum(piece.wall_s + piece.checkpoint_s for piece in self.pieces[kept:])
        del self.pieces[kept:]
        self.open_s = self.since_disk_s = sum(piece.work_s for piece in self.pieces)
        self.since_memory_s = 0.0
        if self.writing is not None and self.writing.is_alive:
            self.writing.interrupt()
        self.from_memory = self.has_copy
        return lost_s


def _most_failures(run: LongRun) -> int:
    """The failures after which a run is given up."""
    return int(min(MOST_FAILURES, max(AT_LEAST, ENDLESS * run.unbroken_s / run.mtbf_s)))


def _fail(
    env: simpy.Environment, training: simpy.Process, job: _Job, luck: Random
) -> Generator[simpy.Event, Any, None]:
    """Interrupt the training at random times, less often while it has fewer nodes."""
    run = job.run
    for _ in range(_most_failures(run)):
        yield env.timeout(luck.expovariate(1 / run.mtbf_s))
        if not training.is_alive:
            return
        cause = run.rate.draw(job.luck)
        if job.luck.random() < job.nodes.held / run.fleet.nodes:
            training.interrupt(cause)
    raise InputError(
        f"after {_most_failures(run):,} failures, each {run.mtbf_s:.4g} s, {job.left_s:.4g} s of "
        f"{run.work_s:.4g} s of work are left: give more spares, shorter intervals or restarts, or less "
        "work"
    )
