"""The job: one session of the executor, complete, and what it needs of the machine."""

from dataclasses import dataclass

from realrun.run.job import needs
from realrun.run.job.completion import complete
from realrun.run.job.derived import Derived
from simlab.program.validation import validate


@dataclass(kw_only=True)
class Job(Derived):
    """One session of the executor: predict what is to run, check its gradients, run it, compare. Its
    fields are those of `realrun.run.job.asked.Asked`.

    `InputError` for values that no run can have.
    """

    def __post_init__(self) -> None:
        complete(self)

    def validate(self) -> None:
        """Refuse programs that cannot run: `ProgramError` names rank, op and reason."""
        for run in self.runs if self.programs is not None and self.checked else []:
            validate(run.program)

    @property
    def record_bytes(self) -> int:
        """Bytes of the records of all ranks, in the run that has most."""
        return needs.record_bytes(self)

    def pairs(self) -> list[tuple[int, int]]:
        """[(a, b)], a < b: the pipeline ranks that exchange messages in any of the runs."""
        return needs.pairs(run.program for run in self.runs)

    def model_bytes(self) -> float:
        """Bytes that all ranks together need for the model, about."""
        return needs.model_bytes(self)
