"""What the launcher can tell of a run by torch's engine from outside: which op each rank is at."""

from realrun.plan_watch import PlanWatch
from realrun.watch import step_text


def ops_of(job, rank):
    """[op, as text, of a step of global rank `rank`]: the program's, or without a pipeline forwards and backwards in turn; then
    'optimizer', which is all that follows the last backward."""
    program, place = job.program, job.executed.ranks()[rank][2]
    ops = [f"0{kind}{microbatch}" for microbatch in range(program.microbatches) for kind in "FB"]
    if program.stages > 1:
        ops = [str(op) for op in program.ranks[place]]
    return [*ops, "optimizer"]


class TorchWatch(PlanWatch):
    """Watches the recordings of a job's ranks in its folder."""

    def __init__(self, job):
        super().__init__(job)
        self._lists = [ops_of(job, rank) for rank in range(job.ranks)]

    def _place(self, rank, progress):
        if not (progress and progress.executing):
            return "outside the steps"
        record = progress.current
        return f"in {self._lists[rank][record.position]} of {step_text(record.step)}" if record else "between two ops"

    def _blame(self, seen):
        """Where each is: whom the others wait for is inside torch."""
        return "; ".join(f"rank {rank} is {self._place(rank, progress)}" for rank, progress in enumerate(seen))
