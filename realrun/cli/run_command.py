"""The command that executes a plan or programs, and reports."""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realrun.checkpoint.errors import NothingLeft
from realrun.cli.jobs import jobs, stretched, values
from realrun.cli.options import PIPELINE
from realrun.cli.resumed import completed, left_by
from realrun.measure.cores import shared_gpus, usable_cores
from realrun.run.job import Job
from realrun.run.job.pipelines import too_fast
from simlab.cli.output import print_json, print_text, write_picture
from simlab.diagnosis import Diagnosis, diagnose, trace_graph
from simlab.errors import InputError
from simlab.trace import Trace

if TYPE_CHECKING:
    from realrun.report.page import Reported

ONLY_ON_CPU = ("cluster", *(name for name in PIPELINE if name != "activation_cap"))
"""Options of what exists on the CPU alone: padded compute and paced links."""


def run_command(arguments: argparse.Namespace) -> int:
    """Run what is asked for, in processes of our own or as a rank under torchrun, and report: 0, or
    1 if a check failed."""
    from realrun.launch import ranks as launch

    max_error = fraction(arguments.max_error)
    given = completed(values(arguments), say)
    if arguments.elastic:
        given |= stretched(given, launch.world())
    device_of = partial(
        _device, arguments.device, only_cpu=any(name in given for name in ONLY_ON_CPU)
    )
    wanted = jobs(given, device_of)
    for job in wanted:
        job.validate()
        if not arguments.anyway and (why := too_fast(job, usable_cores())):
            raise InputError(f"{why}; --anyway runs it as it is")
        if max_error is not None and job.programs is None and not job.is_predicted:
            raise InputError(
                f"--max-error {arguments.max_error:g} for a run that is not predicted: give --cluster or --predict-on, too"
            )
    device = device_of(wanted[0].ranks, say=say)
    held = max_error is not None or "predict_on" in given
    if held and device == "cuda" and (why := shared_gpus(wanted[0].ranks)):
        raise InputError(f"{'--predict-on' if 'predict_on' in given else '--max-error'}: {why}")
    with launch.held(wanted):  # until the report is written
        try:
            answers = launch.run(wanted, device, port=arguments.port, say=say)
        except NothingLeft as done:
            return _nothing_left(done, wanted, as_json=arguments.json)
        except InputError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            error.broke_off = left_by(wanted[0])  # type: ignore[union-attr]
            raise
        if answers is None:
            return 0  # another rank reports
        return report(
            wanted,
            answers,
            max_error=max_error,
            as_json=arguments.json,
            explain=arguments.explain,
            picture=arguments.picture,
        )


def _nothing_left(done: NothingLeft, wanted: list[Job], *, as_json: bool) -> int:
    """Say that the training has been done before, which is no failure: 0."""
    if os.environ.get("RANK", "0") == "0":
        say(str(done))
        if as_json:
            print_json(
                {"ok": True, "failed": [], "out": wanted[0].out, "calibrations": [], "runs": []}
            )
    return 0


def _device(
    asked: str, ranks: int, *, only_cpu: bool, say: Callable[[str], Any] = lambda text: None
) -> str:
    from realrun.launch import ranks as launch
    from realrun.measure.local_memory import check_memory

    if not launch.under_torchrun():
        check_memory(ranks, 0)  # a mistyped number of ranks: before a closer look
    return launch.choose_device(asked, ranks, only_cpu=only_cpu, may_share=True, say=say)


def fraction(percent: float | None) -> float | None:
    """The fraction that `percent` (None: not asked for) is."""
    if percent is not None and not 0 <= percent < math.inf:
        raise InputError(f"--max-error {percent}: give a percentage, 0 or more")
    return None if percent is None else percent / 100


def report(
    wanted: list[Job],
    answers: list[dict[str, Any]],
    *,
    max_error: float | None,
    as_json: bool,
    explain: bool = False,
    picture: str | None = None,
) -> int:
    """Draw and print what `wanted` jobs answered: 0, or 1 if a check failed. explain: with the
    diagnosis of the median measured step of each run. picture: a file for the timelines of all."""
    from realrun.report.pictures import run_timeline
    from realrun.report.summary import failures, summary

    out = Path(wanted[0].out)
    reported, pictures, calibrations = written(wanted, answers, out / "report.html")
    if picture:
        drawn = {
            f"{one.facts['name']}, {label}": trace
            for one in reported
            for label, trace in one.traces.drawn.items()
        }
        write_picture(picture, lambda path: run_timeline(wanted[0], drawn).savefig(path))
    wrong = [line for one in reported for line in failures(one.facts, max_error=max_error)]
    found = [_why(one.traces.measured) if explain else None for one in reported]
    if as_json:
        runs = [
            one.facts | ({"why": why and why.to_dict()} if explain else {})
            for one, why in zip(reported, found)
        ]
        print_json(
            {
                "ok": not wrong,
                "failed": wrong,
                "out": str(out),
                "calibrations": calibrations,
                "runs": runs,
            }
        )
    else:
        texts = [summary(one.job, one.facts) for one in reported]
        told = [f"{text}\n{why}" if why else text for text, why in zip(texts, found)]
        print_text("\n\n".join(told))
        print_text(f"\nreport: {out / 'report.html'}   pictures: {', '.join(map(str, pictures))}")
    sys.stdout.flush()
    for line in wrong:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if wrong else 0


def written(
    wanted: Sequence[Job], answers: Sequence[dict[str, Any]], page: Path
) -> tuple[list["Reported"], list[Path], list[str]]:
    """(the runs, files of their pictures, of their calibrations) of what `wanted` jobs answered: draws
    the pictures, and writes the `page` that has all of them."""
    from realrun.report.page import Reported, write_html
    from realrun.report.pictures import write_pictures
    from realrun.report.traces import load_traces
    from simlab.training.calibration import Calibration

    say("drawing the timelines, writing the report")
    reported, pictures = [], []
    for job, answer in zip(wanted, answers):
        for run, facts in zip(job.runs, answer.get("runs", [answer])):
            reported.append(Reported(job, facts, load_traces(job, run)))
            pictures += write_pictures(job, run, facts, reported[-1].traces)
    calibrations = [path for answer in answers for path in answer.get("calibrations", [])]
    write_html(page, reported, [Calibration.load(path) for path in calibrations])
    return reported, pictures, calibrations


def _why(measured: Trace) -> Diagnosis | None:
    """The diagnosis of a measured step, or why there is none: the run is not lost for it."""
    try:
        return diagnose(trace_graph(measured))
    except InputError as error:
        say(f"the measured step is not explained: {error}")
        return None


def say(text: str, now: Any = None) -> None:
    """A line of progress, on stderr of rank 0."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)
