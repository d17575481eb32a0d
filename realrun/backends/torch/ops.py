"""The ops of a rank as torch runs them, and what the launcher can tell of them from outside."""

from collections.abc import Sequence
from pathlib import Path

from realrun.record.recorder import RankProgress
from realrun.run.job import Job
from realrun.run.watch import step_text
from simlab.program import Op
from simlab.trace import OPTIMIZER

Ops = list[Op | str]
"""The `Op`s of a step, and `OPTIMIZER`."""


def ops_of(job: Job, rank: int) -> Ops:
    """The ops of a step of global rank `rank`: those of the program, or without a pipeline forwards
    and backwards in turn. Then comes `OPTIMIZER`, which stands for all that follows the last
    backward."""
    program, place = job.program, job.executed.layout.coordinates(rank).pp
    if program.stages > 1:
        return [*program.ranks[place], OPTIMIZER]
    microbatches = range(program.microbatches)
    return [*(Op(0, kind, number) for number in microbatches for kind in "FB"), OPTIMIZER]


class TorchPlaces:
    """The `realrun.run.watch.Places` of a run by torch. Whom a rank waits for is inside torch."""

    def __init__(self, job: Job) -> None:
        self._job, self._lists = job, [ops_of(job, rank) for rank in range(job.ranks)]

    def place(self, rank: int, progress: RankProgress | None) -> str:
        """See `Places`."""
        if not (progress and progress.executing):
            return "outside the steps"
        record = progress.current
        if record is None:
            return "between two ops"
        return f"in {self._lists[rank][record.position]} of {step_text(record.step)}"

    def who_waits(self, seen: Sequence[RankProgress | None]) -> str:
        """See `Places`: where each rank is."""
        places = (f"rank {rank} is {self.place(rank, its)}" for rank, its in enumerate(seen))
        return "; ".join(places)

    def save_partial(self, folder: Path) -> list[Path]:
        """See `Places`: the recordings themselves."""
        return sorted(folder.glob("rank*.records"))
