"""A cluster in a box: what a catalogue cluster needs for each instruction of a plan, slowed down so far that processes can keep to it.

What a run in the box proves: order, dependencies, overlap and traffic are what the simulator says, for real tensors in real processes.
What it cannot prove: that the times of kernels and links, which are the simulator's own, are right.
"""

from dataclasses import dataclass

from simlab.instructions import COMPUTE, rank_instructions
from simlab.playback import ClusterTimes, playback, whole_step_s

STEP_S = 2.0
"""Of a step, unless a slow-down is given: most of its instructions then take milliseconds."""


@dataclass
class Overhead:
    """What processes need besides, measured before the run: seconds of each padded computation, of each round of a communication."""

    compute_s: float = 0.0
    round_s: float = 0.0


class Box:
    """The times of `job`'s instructions."""

    def __init__(self, job):
        self.job = job
        self.plan, self.model, self.cluster = job.box_plan, job.box_model, job.box_cluster
        self.times = ClusterTimes(self.model, self.plan, self.cluster, job.program)
        self.slow_down = 1.0
        self.slow_down = job.box.get("slow_down") or STEP_S / whole_step_s(self.predicted(Overhead()))

    def seconds(self, rank):
        """[of each instruction of `rank`, s], as it shall take: those of the model whose times are taken, which has the same list."""
        _, c, p, _ = self.plan.ranks()[rank]
        instructions = rank_instructions(self.model, self.plan, self.job.program, p, context_rank=c)
        return [self.slow_down * self._alone_s(instruction) for instruction in instructions]

    def message_s(self):
        """(latency, seconds on the wire) of a message to the next stage."""
        return [self.slow_down * part for part in self.times.cost.message_s()]

    def predicted(self, overhead):
        """The `Trace` of a step."""
        return self._trace(_Scaled(self, overhead))

    def _trace(self, times):
        return playback(self.model, self.plan, self.job.program, times)

    def _alone_s(self, instruction):
        compute = instruction.action == COMPUTE
        return self.times.compute_s(instruction) if compute else self.times.communication_s(instruction)


class _Scaled:
    def __init__(self, box, overhead):
        self.box, self.overhead = box, overhead

    def compute_s(self, instruction):
        return self.box.slow_down * self.box.times.compute_s(instruction) + self.overhead.compute_s

    def communication_s(self, instruction):
        rounds = self.rounds(instruction)
        return self.box.slow_down * self.box.times.communication_s(instruction) + rounds * self.overhead.round_s

    def transfer(self, instruction, ranks):
        """Ranks in a box do not slow each other down."""
        return self.communication_s(instruction), None

    def rounds(self, instruction):
        """How many messages follow each other in a communication."""
        plan = self.box.plan
        ranks = plan.dp * plan.cp if instruction.dimension == "dp" else getattr(plan, instruction.dimension)
        return {"message": 1, "ring": 1, "all_reduce": 2 * (ranks - 1)}.get(instruction.kind, ranks - 1)
