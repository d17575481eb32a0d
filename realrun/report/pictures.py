"""The pictures of a run: its timeline, predicted over measured, and its losses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realrun.report.traces import RunTraces
from realrun.run.job import Job, Run
from simlab.trace import Trace
from simlab.views import layer_timeline, timeline
from simlab.views.language import LANGUAGE
from simlab.views.still.picture import Picture, own_style


def write_pictures(job: Job, run: Run, facts: dict[str, Any], traces: RunTraces) -> list[Path]:
    """[the pictures written] of a run: the median step's timeline, predicted over measured, and the
    losses of a training that is longer than a step. Both traces are written for Perfetto, too."""
    folder, drawn = run.folder, traces.drawn
    for label, trace in drawn.items():
        (folder / f"{label}-perfetto.json").write_text(
            timeline(trace, renderer="perfetto"), encoding="utf-8"
        )
    picture = folder / "timeline.png"
    run_timeline(job, {label.capitalize(): trace for label, trace in drawn.items()}).savefig(
        picture
    )
    if len(facts["losses"]) < 2:
        return [picture]
    _write_losses(folder / "loss.png", facts)
    return [picture, folder / "loss.png"]


def run_timeline(job: Job, drawn: Mapping[str, Trace]) -> Any:
    """The timeline of the traces of a run, {what each is: trace}, as a Figure."""
    traces = list(drawn.values())
    if job.programs is not None:
        return timeline(traces)
    return layer_timeline(traces, captions=list(drawn))


@own_style
def _write_losses(path: Path, facts: dict[str, Any]) -> None:
    """The loss of each step, and of the same training in one process where there is one."""
    picture = Picture(figsize=(8, 3.6), layout="constrained", dpi=110)
    axes = picture.subplots()
    own, alone = facts["losses"], facts["reference_losses"]
    steps = range(facts["first_step"] + 1, facts["first_step"] + 1 + len(own))
    label = f"{facts['name']}: {facts['ranks']} processes"
    axes.plot(steps, own, color=LANGUAGE["lines"][0], linewidth=2.5, label=label)
    if alone:
        axes.plot(
            steps,
            alone,
            color=LANGUAGE["lines"][1],
            linewidth=1.2,
            linestyle="--",
            label="one process",
        )
    axes.set(xlabel="training step", ylabel="loss, nats per byte")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    picture.savefig(path)
