"""python -m realrun: predict a pipeline program, execute it with torch.distributed, print both and the error between."""

import argparse
import importlib.util
import json
import math
import os
import re
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from realrun import plan_command
from simlab.errors import InputError, ProgramError
from simlab.exit_status import exit_status
from simlab.program import Program
from simlab.schedules import ALIASES, CHUNKED, OPTIONS, SCHEDULES, WITHOUT_FLUSH, generate
from simlab.units import MS

EPILOG = """what happens: each op kind and each link is timed alone (calibration.json), the simulator predicts the step from
that (predicted.json), then the program runs (measured.json), and both are compared. Loss and gradients are held against
the same model in one process.

examples:
  python -m realrun --schedule gpipe,1f1b --pp 4 --microbatches 8
  python -m realrun --schedule 1f1b --pp 2 --microbatches 8 --compute real
  python -m realrun --schedule gpipe,1f1b --pp 4 --microbatches 8 --forward-ms 20 --link-ms 5
  python -m realrun --csv mine.csv
  torchrun --nproc-per-node 4 -m realrun --schedule 1f1b --pp 4 --microbatches 16
  python -m realrun plan --help        a whole plan: dp x tp x cp x pp and ZeRO, a cluster in a box
  python -m realrun measure --help     time this machine: a cluster for the simulator

exit status: 0 done, 1 the run or a check failed, 2 bad arguments"""


def main(argv=None):
    """Run the command line; returns the exit status. The report goes to stdout, progress and messages to stderr."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["measure"]:
        from realrun import measure_command

        return measure_command.main(argv[1:])
    if argv[:1] == ["plan"] or plan_command.means_a_plan(argv):
        arguments = plan_command.parser().parse_args(argv[argv[:1] == ["plan"] :])
        return exit_status(partial(_run, plan_command.run), arguments, unread=1)
    return exit_status(partial(_run, run), parser().parse_args(argv), unread=1)


def _run(run, arguments):
    """`run`; an error of it tells what was recorded until then, and what can be done."""
    try:
        missing = [name for name in ("torch", "matplotlib", "plotly", "yaml") if importlib.util.find_spec(name) is None]
        if missing:
            raise InputError(f"{' and '.join(missing)} not installed: run `make demo`, or pip install 'simlab[real]'")
        return run(arguments)
    except (Exception, KeyboardInterrupt) as error:
        recorded = [str(path) for path in getattr(error, "partial", [])]
        error.facts = {"partial": recorded}
        if recorded:
            print(f"recorded until it ended: {', '.join(recorded)}", file=sys.stderr)
        if isinstance(error, ProgramError):
            error.add_note("(--no-check runs it all the same)")
        raise


def run(arguments):
    """Make the job, run it in processes of our own or as a rank under torchrun, report."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # what torch logs of a failure comes to us as an exception too
    from realrun import launch
    from realrun.report import failures, load_calibrations, run_report, summary, write_html, write_pictures

    max_error = fraction(arguments.max_error)
    programs = load_programs(arguments)
    only_cpu = any(
        value is not None
        for value in (arguments.compute, arguments.forward_ms, arguments.backward_ms, arguments.input_grad_ms, arguments.link_gbps)
    )
    ranks = len(programs[0].ranks)
    if not launch.under_torchrun():
        launch.check_memory(ranks, 0)  # a mistyped --pp: before a closer look at the programs
    device = launch.choose_device(arguments.device, ranks, only_cpu=only_cpu or arguments.link_ms > 0)
    job = make_job(arguments, programs, device)
    job.validate()
    result = launch.run(job, device, port=arguments.port, say=_say)
    if result is None:
        return 0  # another rank reports
    results = [run_report(job, run) for run in result["runs"]]
    for run, (_, predicted, measured) in zip(result["runs"], results):
        write_pictures(run["folder"], predicted, measured)
    write_html(Path(job.out) / "report.html", job, results, load_calibrations(job))
    reports = [report for report, _, _ in results]
    wrong = [line for report in reports for line in failures(report, max_error=max_error)]
    if arguments.json:
        print(
            _json(
                {
                    "ok": not wrong,
                    "runs": reports,
                    "failed": wrong,
                    "out": job.out,
                    "calibration": result["calibrations"][0],
                    "calibrations": result["calibrations"],
                }
            )
        )
    else:
        print("\n\n".join(summary(job, report) for report in reports))
        pictures = ", ".join(str(Path(run["folder"]) / "timeline.png") for run in result["runs"])
        print(f"\nreport: {Path(job.out) / 'report.html'}   pictures: {pictures}")
    sys.stdout.flush()
    for line in wrong:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if wrong else 0


def load_programs(arguments):
    """[Program] that the arguments ask for."""
    if arguments.csv is not None:
        brought = ("schedule", "pp", "microbatches", "chunks", "group", "activation_cap")
        if any(getattr(arguments, name) is not None for name in brought):
            raise InputError("--csv brings its own order, stages and microbatches: leave out --schedule and what it can be told")
        program = Program.from_csv(arguments.csv)
        return [replace(program, name=re.sub(r"[^\w-]+", "_", program.name))]  # its folder in --out is called so
    if arguments.pp is None or arguments.microbatches is None:
        raise InputError("give --pp and --microbatches, both at least 1 (or --csv)")
    names = ["gpipe", "1f1b"] if arguments.schedule is None else [name.strip() for name in arguments.schedule.split(",")]
    for name in names:
        if name in WITHOUT_FLUSH:
            raise InputError(
                f"{name} updates the weights after every backward; the executor trains with a flush: run 1f1b, whose order it has"
            )
    asked = {"chunks": arguments.chunks, "group": arguments.group, "cap": arguments.activation_cap}
    for option, value in asked.items():
        if value is not None and not any(option in OPTIONS.get(name, ()) for name in names):
            flag = {"cap": "--activation-cap"}.get(option, f"--{option}")
            raise InputError(f"{flag} {value}: of no use to {', '.join(names)}")
    options = asked | _search_options(arguments)
    return [
        generate(
            name, arguments.pp, arguments.microbatches, **{key: value for key, value in options.items() if key in OPTIONS.get(name, ())}
        )
        for name in names
    ]


def _search_options(arguments):
    """The times for which zb-auto shall find an order: those of padded compute."""
    forward_ms = 20.0 if arguments.forward_ms is None else arguments.forward_ms
    backward_ms = 2 * forward_ms if arguments.backward_ms is None else arguments.backward_ms
    input_grad_ms = backward_ms / 2 if arguments.input_grad_ms is None else arguments.input_grad_ms
    times_ms = {
        "forward_s": forward_ms,
        "input_grad_s": input_grad_ms,
        "weight_grad_s": backward_ms - input_grad_ms,
        "p2p_s": arguments.link_ms,
    }
    return {option: value * MS for option, value in times_ms.items()}


def make_job(arguments, programs, device):
    """The `Job` that the arguments ask for."""
    from realrun.job import Job, choose_compute, program_texts

    forward_ms = 20.0 if arguments.forward_ms is None else arguments.forward_ms
    padded_time_given = any(value is not None for value in (arguments.forward_ms, arguments.backward_ms, arguments.input_grad_ms))
    ranks = len(programs[0].ranks)
    compute, why = choose_compute(ranks, asked=arguments.compute, padded_time_given=padded_time_given, device=device)
    if padded_time_given and compute != "padded":
        raise InputError(
            f"--forward-ms, --backward-ms and --input-grad-ms set the pace of padded compute, but compute is {compute}: leave one out"
        )
    sizes = ("layers", "hidden", "heads", "seq", "microbatch_size")
    return Job(
        programs=program_texts(programs),
        compute=compute,
        why_compute=why,
        forward_s=forward_ms * MS,
        backward_s=None if arguments.backward_ms is None else arguments.backward_ms * MS,
        input_grad_s=None if arguments.input_grad_ms is None else arguments.input_grad_ms * MS,
        steps=arguments.steps,
        warmup=arguments.warmup,
        link_s=arguments.link_ms * MS,
        link_bytes_per_s=None if arguments.link_gbps is None else arguments.link_gbps * 1e9 / 8,
        model={name: getattr(arguments, name) for name in sizes},
        checked=not arguments.no_check,
        timeout_s=arguments.timeout,
        out=arguments.out,
    )


def fraction(percent):
    """The fraction that `percent` (None: not asked for) is."""
    if percent is not None and not 0 <= percent < math.inf:
        raise InputError(f"--max-error {percent}: give a percentage, 0 or more")
    return None if percent is None else percent / 100


def _json(value):
    """JSON text of `value`; what is not a finite number, which JSON cannot say, becomes null."""

    def finite(value):
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [finite(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(value), allow_nan=False)


def _say(text):
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def parser():
    """The argument parser."""
    top = argparse.ArgumentParser(
        prog="python -m realrun", description=__doc__.split(": ", 1)[1], epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join([*SCHEDULES, *(f"{alias} (= {name})" for alias, name in ALIASES.items())])
    what = top.add_argument_group("what to run")
    what.add_argument("--schedule", metavar="NAMES", help=f"comma-separated: {names} (default gpipe,1f1b)")
    what.add_argument("--pp", type=int, metavar="P", help="pipeline stages, one process each")
    what.add_argument("--microbatches", type=int, metavar="M", help="microbatches in a step")
    what.add_argument("--chunks", type=int, metavar="V", help=f"stages per rank, for {' and '.join(CHUNKED)} (default 2)")
    what.add_argument("--group", type=int, metavar="G", help="microbatches in a group, for interleaved-1f1b (default about P)")
    what.add_argument("--activation-cap", type=float, metavar="X", help="microbatches that a rank may hold, for zb-auto (default P)")
    what.add_argument("--csv", metavar="FILE", help="run this program instead of a schedule")
    what.add_argument("--steps", type=int, default=5, metavar="N", help="measured training steps (default 5)")
    what.add_argument("--warmup", type=int, default=1, metavar="N", help="steps run before them and not counted (default 1)")
    how = top.add_argument_group("how")
    modes = "padded: small tensors, then sleep to the op's time; real: the model's own math (default: real if each rank has a core)"
    how.add_argument("--compute", choices=("padded", "real"), help=modes)
    how.add_argument("--forward-ms", type=float, metavar="F", help="padded: one microbatch's forward on one rank, ms (default 20)")
    how.add_argument("--backward-ms", type=float, metavar="B", help="padded: its backward, ms (default twice F)")
    how.add_argument("--input-grad-ms", type=float, metavar="I", help="padded: the part of B that is I in a split backward (default half)")
    how.add_argument("--link-ms", type=float, default=0.0, metavar="C", help="add this latency to every message, ms (default 0)")
    how.add_argument("--link-gbps", type=float, metavar="G", help="limit every link to this bandwidth, Gbit/s")
    how.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="cuda needs one GPU per rank (default auto)")
    model = top.add_argument_group("the model, a byte-level GPT (defaults: small for padded compute, larger for real)")
    for name in ("layers", "hidden", "heads", "seq", "microbatch-size"):
        model.add_argument(f"--{name}", type=int, metavar="N")
    rest = top.add_argument_group("the rest")
    rest.add_argument("--out", default="out", metavar="DIR", help="where everything is written (default out)")
    rest.add_argument("--max-error", type=float, metavar="PERCENT", help="fail if a predicted step is further off than this")
    rest.add_argument("--no-check", action="store_true", help="run a program that validation refuses, e.g. to see a deadlock")
    rest.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="give up after so many seconds in which no rank moves (default 60)"
    )
    rest.add_argument("--port", type=int, default=0, metavar="N", help="port of the rendezvous on 127.0.0.1 (default: a free one)")
    rest.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return top


if __name__ == "__main__":
    if "RANK" not in os.environ:  # torchrun's ranks end at SIGTERM at once; ours end with us, and clean up
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.stdout.reconfigure(errors="replace")  # a terminal that cannot say µs shall not cost the report
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is over: one more ^C would only interrupt Python's own exit
    sys.exit(status)
