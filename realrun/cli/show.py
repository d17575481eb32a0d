"""The command `realrun show`: what a run that broke off has recorded."""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import TypedDict

from realrun.launch.folder import MARK
from realrun.run.job import Job, Run
from realrun.run.watch import step_text
from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, print_text
from simlab.errors import InputError
from simlab.trace import Trace
from simlab.units import percent_text, seconds_text

EPILOG = """examples:
  realrun show out/dp2
  simlab why out/dp2/partial-step-12.json

exit status: 0 done, 2 bad arguments"""


class Answer(TypedDict):
    """What a run that broke off has recorded."""

    name: str
    places: list[str]
    """Where each rank was when it ended."""
    steps: list[int]
    """The steps that all ranks have recorded whole, the last 20 at most."""
    steps_s: list[float]
    predicted_step_s: float | None
    error: float | None
    """Of the predicted step, relative to the median of these."""
    disturbed_by: str | None
    """What disturbed the calibration that the step was predicted from, in English."""
    losses: int
    """The number of steps whose losses are in losses.csv."""
    traces: list[str]
    picture: str | None


def show_command(arguments: argparse.Namespace) -> int:
    """Show what a run that broke off, however it did, has recorded: where each rank was, its whole
    steps beside the predicted one, as traces that `simlab why` reads, and as a timeline."""
    from realrun.report.recorded import recorded
    from realrun.report.traces import step_s

    folder = Path(arguments.folder)
    job, run = _job_of(folder)
    steps, places = recorded(job, run)
    seconds = [step_s(job, trace) for trace in steps]
    predicted = _predicted(folder)
    predicted_s = step_s(job, predicted) if predicted else None
    error = predicted_s / median(seconds) - 1 if predicted_s is not None and seconds else None
    traces = _written(folder, steps)
    losses = folder / "losses.csv"
    answer: Answer = {
        "name": run.name,
        "places": places,
        "steps": [trace.metadata["step"] for trace in steps],
        "steps_s": seconds,
        "predicted_step_s": predicted_s,
        "error": error,
        "disturbed_by": _disturbed_by(predicted) if predicted else None,
        "losses": len(losses.read_text("utf-8").splitlines()[1:]) if losses.exists() else 0,
        "traces": traces,
        "picture": _drawn(job, folder, predicted, steps[-1]) if steps else None,
    }
    if arguments.json:
        print_json(answer)
    else:
        print_text("\n".join(_lines(answer)))
    return 0


def _job_of(folder: Path) -> tuple[Job, Run]:
    """The job that wrote into `folder`, and which of its runs."""
    try:
        said = json.loads((folder / MARK).read_text(encoding="utf-8"))["job"]
        job = Job(**said)
    except (OSError, ValueError, LookupError, TypeError) as error:
        below = sorted(path.parent for path in folder.glob(f"*/{MARK}"))
        hint = f": give one of {', '.join(map(str, below))}" if below else ""
        raise InputError(f"{str(folder)!r} is not the folder of a run by realrun{hint}") from error
    for run in job.runs:
        if run.folder.name == folder.resolve().name:
            return job, run._replace(folder=folder)
    raise InputError(f"{str(folder)!r} is not the folder of {job.name}: it was renamed")


def _predicted(folder: Path) -> Trace | None:
    path = folder / "predicted.json"
    return Trace.load(path) if path.exists() else None


def _disturbed_by(predicted: Trace) -> str | None:
    """What disturbed the calibration that a step was predicted from; None of a plan, which has none."""
    calibration = predicted.metadata.get("calibration")
    return calibration and calibration["metadata"].get("disturbed_by")


def _written(folder: Path, steps: list[Trace]) -> list[str]:
    """The paths of `steps`, saved as partial traces."""
    paths = []
    for trace in steps:
        name = step_text(trace.metadata["step"]).replace(" ", "-")
        paths.append(str(folder / f"partial-{name}.json"))
        trace.save(paths[-1])
    return paths


def _drawn(job: Job, folder: Path, predicted: Trace | None, measured: Trace) -> str:
    """The path of a timeline: the predicted step over the last whole one."""
    from realrun.report.pictures import run_timeline

    both = {"Predicted": predicted} if predicted else {}
    run_timeline(job, both | {"Measured": measured}).savefig(folder / "timeline.png")
    return str(folder / "timeline.png")


def _lines(answer: Answer) -> list[str]:
    from realrun.report.summary import disturbed_lines

    lines = [
        f"{answer['name']}: {len(answer['places'])} ranks, {answer['losses']} steps with losses"
    ]
    lines += [f"  rank {rank:<5} {place}" for rank, place in enumerate(answer["places"])]
    if not answer["steps"]:
        return [*lines, "  steps      no step was recorded whole by all ranks"]
    seconds = answer["steps_s"]
    said = f"{answer['steps'][0]} to {answer['steps'][-1]}: {seconds_text(median(seconds))}"
    said += f" ({seconds_text(min(seconds))} to {seconds_text(max(seconds))})"
    if answer["predicted_step_s"] is not None and answer["error"] is not None:
        said += f"; predicted {seconds_text(answer['predicted_step_s'])}, error {percent_text(answer['error'])}"
    return [
        *lines,
        f"  steps      {said}",
        *disturbed_lines(answer["disturbed_by"]),
        f"  traces     of these steps, for `simlab why`: the last is {answer['traces'][-1]}",
        f"  picture    {answer['picture']}",
    ]


def add_show(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `show`."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.description, command.epilog = show_command.__doc__, EPILOG
    command.add_argument("folder", metavar="DIR", help="the folder of the run, such as out/dp2")
    add_json_options(command, Answer)
