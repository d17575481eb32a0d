"""The traces of a run: what was predicted before it, what was measured, and the median step."""

from dataclasses import dataclass
from pathlib import Path

from realrun.run.job import Job, Run
from simlab.trace import Trace


@dataclass(frozen=True)
class RunTraces:
    """What was predicted of a run, and what was measured."""

    predicted: Trace | None
    """The step as it was predicted before the run; None where it was not."""
    measured: Trace
    """The measured step whose time is the median, the lower of two: one that happened."""
    predicted_s: float | None
    """The predicted step's time, s."""
    steps_s: list[float]
    """The time of each measured step, s. That of a program goes from the first op to the end of the
    last one. That of a plan goes on to the end of the optimizer's step."""

    @property
    def drawn(self) -> dict[str, Trace]:
        """{"predicted" and "measured": trace} of those that there are."""
        both = {"predicted": self.predicted, "measured": self.measured}
        return {name: trace for name, trace in both.items() if trace is not None}


def load_traces(job: Job, run: Run) -> RunTraces:
    """The traces that the session of `job` wrote into the folder of `run`. The step whose time is
    the median is written there, too, as measured.json."""
    steps = [Trace.load(path) for path in Path(run.folder).glob("measured-step-*.json")]
    steps.sort(key=lambda trace: trace.metadata["step"])
    seconds = [step_s(job, trace) for trace in steps]
    middle = sorted(zip(seconds, range(len(steps))))[(len(steps) - 1) // 2][1]
    predicted = Trace.load(run.folder / "predicted.json") if job.is_predicted else None
    predicted_s = None if predicted is None else step_s(job, predicted)
    steps[middle].save(run.folder / "measured.json")
    return RunTraces(predicted, steps[middle], predicted_s, seconds)


def step_s(job: Job, trace: Trace) -> float:
    """The time of the step in `trace`, s: see `RunTraces.steps_s`."""
    return trace.whole_step_s if job.programs is None else trace.step_s
