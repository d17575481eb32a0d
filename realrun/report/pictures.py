"""The pictures of a run: its timeline, predicted over measured, and its losses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realrun.report.traces import RunTraces
from realrun.run.job import Job, Run
from simlab.trace import Trace
from simlab.views import layer_timeline, timeline
from simlab.views.chart import Axis, Chart, Line, Words
from simlab.views.language import LANGUAGE
from simlab.views.still.chart import charts


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


def _write_losses(path: Path, facts: dict[str, Any]) -> None:
    """The loss of each step, and of the same training in one process where there is one."""
    own = f"{facts['name']}: {facts['ranks']} processes"
    losses = {own: facts["losses"], "one process": facts["reference_losses"]}
    first = facts["first_step"] + 1
    steps = range(first, first + len(facts["losses"]))
    lines = [
        Line(steps, values, colour, Words(name, name), dash)
        for (name, values), colour, dash in zip(losses.items(), LANGUAGE["lines"], (None, (6, 4)))
        if values
    ]
    x = Axis(Words("training step", "训练步"))
    y = Axis(Words("loss, nats per byte", "loss，每字节 nats"))
    picture: Any = charts(Chart("loss", Words("", ""), x, y, lines, 300), width_in=8)
    picture.savefig(path)
