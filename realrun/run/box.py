"""A cluster in a box: what a catalogue cluster needs for each instruction of a plan, slowed down so
far that processes can keep to it.

What a run in the box proves: order, dependencies, overlap and traffic are what the simulator says,
for real tensors in real processes.
What it cannot prove: that the times of kernels and links, which are the simulator's own, are right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from realrun.run.job import Job
from simlab.cost.walk import Seconds
from simlab.engine.play import ClusterTimes, play
from simlab.lowering.instructions import COMPUTE, Instruction, group_size, rank_instructions
from simlab.trace import Trace

STEP_S = 2.0
"""Of a step, unless a time scale is given: most of its instructions then take milliseconds."""


@dataclass
class Overhead:
    """What processes need besides, measured before the run: seconds of each padded computation, of
    each round of a communication."""

    compute_s: float = 0.0
    round_s: float = 0.0


class Box:
    """The times of `job`'s instructions."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.plan, self.model, self.cluster = job.box_plan, job.box_model, job.box_cluster
        self.times = ClusterTimes(self.model, self.plan, self.cluster, job.program)
        self.time_scale = 1.0
        self.time_scale = (
            job.boxed.get("time_scale") or STEP_S / self.predicted(Overhead()).whole_step_s
        )

    def seconds(self, rank: int) -> list[float]:
        """[of each instruction of `rank`, s], as it shall take: those of the model whose times are
        taken, which has the same list."""
        place = self.plan.layout.coordinates(rank)
        instructions = rank_instructions(
            self.model, self.plan, self.job.program, place.pp, context_rank=place.cp
        )
        return [self.time_scale * self._alone_s(instruction) for instruction in instructions]

    def message_s(self) -> list[float]:
        """(latency, seconds on the wire) of a message to the next stage."""
        return [self.time_scale * part for part in self.times.cost.message_s()]

    def predicted(self, overhead: Overhead) -> Trace:
        """The `Trace` of a step."""
        return self._trace(_Scaled(self, overhead))

    def _trace(self, times: Any) -> Trace:
        trace = play(self.model, self.plan, self.job.program, times)
        trace.metadata["cluster"] = f"a box of {self.cluster.name}"
        return trace

    def _alone_s(self, instruction: Instruction) -> float:
        compute = instruction.action == COMPUTE
        return (
            self.times.computing(instruction).alone_s
            if compute
            else self.times.communication_s(instruction)
        )


class _Scaled:
    """Times in a box: padded computing is no slower beside a communication, and sends do not
    block."""

    sends_block = False

    def __init__(self, box: Box, overhead: Overhead) -> None:
        self.box, self.overhead = box, overhead

    def computing(self, instruction: Instruction) -> Seconds:
        alone_s = self.box.times.computing(instruction).alone_s
        padded_s = self.box.time_scale * alone_s + self.overhead.compute_s
        return Seconds(padded_s, padded_s)

    def communication_s(self, instruction: Instruction) -> float:
        rounds = self.rounds(instruction)
        return (
            self.box.time_scale * self.box.times.communication_s(instruction)
            + rounds * self.overhead.round_s
        )

    def transfer(self, instruction: Instruction, ranks: Sequence[int]) -> tuple[float, None]:
        """Ranks in a box do not slow each other down."""
        return self.communication_s(instruction), None

    def rounds(self, instruction: Instruction) -> int:
        """How many messages follow each other in a communication."""
        ranks = group_size(self.box.plan, instruction.dimension)
        return {"message": 1, "ring": 1, "all_reduce": 2 * (ranks - 1)}.get(
            instruction.kind, ranks - 1
        )
