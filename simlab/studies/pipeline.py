"""One pipeline step as explorers ask for it: a schedule's name, counts and times."""

from dataclasses import dataclass

from simlab.cost import OpTimes
from simlab.engine import simulate
from simlab.program import WEIGHT_GRAD_MEMORY
from simlab.schedules import Schedule, generate, schedule_of
from simlab.spec.hardware import Link
from simlab.studies.survey import rank_shares, search_options
from simlab.trace import Trace


@dataclass(frozen=True, kw_only=True)
class PipelineCase:
    """What decides a pipeline's step. Times are those of a rank's whole share of the model; a rank's
    stages divide them equally."""

    schedule: str | Schedule
    """A name that `simlab.generate` knows, or a schedule of one's own."""
    stages: int
    """The pipeline's degree p, one rank each."""
    microbatches: int
    forward_s: float
    """One microbatch's forward on a rank, s."""
    backward_s: float
    """One microbatch's backward on a rank, s."""
    weight_share: float = 0.5
    """W / backward: the part of the backward that computes the gradients of the weights, 0 to 1."""
    link_s: float = 0.0
    """Latency of a message between two ranks, s."""
    chunks: int | None = None
    """Stages of each rank, for a schedule that lets one choose; None: the schedule's own number."""

    def trace(self) -> Trace:
        """The simulated step.

        Raises `InputError` for an unknown schedule, for a count or time that is not valid, and for
        what the schedule cannot do.
        """
        times = OpTimes(
            forward_s=self.forward_s,
            backward_s=self.backward_s,
            input_grad_s=self.backward_s * (1 - self.weight_share),
            weight_grad_s=self.backward_s * self.weight_share,
        )
        link = Link(latency_s=self.link_s)
        timed = schedule_of(self.schedule).timed
        options = search_options(times, link, WEIGHT_GRAD_MEMORY) if timed else {}
        program = generate(
            self.schedule, self.stages, self.microbatches, chunks=self.chunks, **options
        )
        stage_times, memory = rank_shares(program, times)
        return simulate(program, stage_times, link=link, memory=memory)
