"""realrun's command line: execute a plan or a program, and measure this machine."""

import argparse
import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial

from realrun.cli.check import add_check, check_command
from realrun.cli.doctor import add_doctor, doctor_command
from realrun.cli.measure import add_measure, measure_command
from realrun.cli.options import add_run_options
from realrun.cli.resumed import going_on
from realrun.cli.run_command import run_command
from realrun.cli.show import add_show, show_command
from realrun.launch.error_file import note_error
from simlab import __version__
from simlab.cli.exit_status import exit_status
from simlab.cli.options import Parser, add_version_and_completion, program_name
from simlab.cli.streams import open_streams
from simlab.errors import InputError, ProgramError

DESCRIPTION = """Execute a plan with torch.distributed, and hold simlab's prediction against what
happened."""
USAGE = """%(prog)s [options]
       %(prog)s measure [options]
       %(prog)s check [options]
       %(prog)s doctor [options]
       %(prog)s show DIR"""
EPILOG = """what happens: loss and all gradients are held against the same model in one
process (float64), then the plan trains a model of bytes: a GPT, or one with
the layers of --model, narrower with --hidden. A pipeline alone
(dp = tp = cp = 1) is timed first, each kind of op and each link by itself
(calibration.json); the step is predicted from these times (predicted.json),
measured, and compared. The ranks of any other plan are held to the simulator's
lists of what they compute, send and wait for, to the byte.

With --cluster the plan runs in a box: compute is padded, and links are paced,
to what --model's layers need on that cluster, in a stretched time. That proves
order, dependencies, overlap and traffic. It cannot prove the times of kernels
and links, which are the simulator's.

With --predict-on the step of the model that is trained is predicted for that
machine before it runs: real kernels, real links.

a plan file (YAML) has the same names, with _ for -:
  dp: 2
  zero: 1
  microbatches: 8
  cluster: dgx-a100

examples:
  realrun --schedule gpipe,1f1b --pp 4 --microbatches 8 --forward-ms 20
  realrun --pp 2 --microbatches 8 --compute real
  realrun --csv mine.csv --link-ms 5
  realrun --dp 2 --tp 2 --pp 2 --microbatches 4
  realrun --model llama-3-8b --hidden 64 --dp 2 --tp 2 --layers 4
  realrun --dp 4 --zero 3 --cluster dgx-a100 --model llama-2-7b
  realrun --plan plan.yaml --steps 20
  torchrun --nproc-per-node 8 -m realrun --dp 2 --tp 4
  torchrun --nnodes 1:2 --nproc-per-node 4 --max-restarts 3 \\
    --rdzv-backend c10d --rdzv-endpoint HOST:29400 \\
    -m realrun --dp 8 --zero 1 --elastic --resume --checkpoint-every 10
  realrun measure --quick --compare       time this machine, for --predict-on
  realrun check                           predict ten plans for it, and run them
  realrun doctor --ranks 4                examine it before a training
  realrun show out/dp2                    what a run that broke off recorded

exit status: 0 done, 1 the run or a check failed, 2 bad arguments"""


COMMANDS = {
    "measure": (
        add_measure,
        measure_command,
        ("torch",),
        "time this machine: a cluster for the simulator",
    ),
    "check": (
        add_check,
        check_command,
        ("torch", "matplotlib"),
        "measure this machine, and hold ten predicted plans against their runs",
    ),
    "doctor": (
        add_doctor,
        doctor_command,
        ("torch",),
        "examine the machines, clocks and links of all ranks",
    ),
    "show": (
        add_show,
        show_command,
        ("torch", "matplotlib"),
        "show what a run that broke off has recorded",
    ),
}
"""{name: (adds its arguments, runs it, packages that it needs, what it does)} of the commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. The report goes to stdout, progress and
    messages to stderr."""
    open_streams()
    argv = sys.argv[1:] if argv is None else argv
    top = parser()
    arguments = top.parse_args(argv)
    if not argv:
        top.print_help()
        return 0
    return exit_status(partial(_run, arguments.run, argv), arguments, unread=1)


def parser() -> Parser:
    """The argument parser."""
    top = Parser(prog=program_name("realrun"), usage=USAGE, description=DESCRIPTION, epilog=EPILOG)
    add_version_and_completion(top, f"realrun {__version__}")
    add_run_options(top)
    top.set_defaults(run=run_command, needs=("torch", "matplotlib"))
    commands = top.add_subparsers(metavar="COMMAND", title="commands")
    for name, (add, run, needs, text) in COMMANDS.items():
        command = commands.add_parser(name, prog=f"{top.prog} {name}", help=text)
        add(command)
        command.set_defaults(run=run, needs=needs)
        top.commands[name] = command
    return top


def _run(
    run: Callable[[argparse.Namespace], int], argv: Sequence[str], arguments: argparse.Namespace
) -> int:
    """`run`; an error of it tells what was recorded and saved until then, and what can be done."""
    try:
        missing = [name for name in arguments.needs if importlib.util.find_spec(name) is None]
        if missing:
            raise InputError(
                f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}"
            )
        # what torch logs of a failure comes to us as an exception too
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        return run(arguments)
    except (Exception, KeyboardInterrupt) as error:
        recorded = [str(path) for path in getattr(error, "partial", [])]
        saved = getattr(error, "broke_off", None)
        command = going_on(argv) if saved else None
        error.facts = {  # type: ignore[union-attr]
            "partial": recorded,
            "checkpoint": saved and str(saved),
            "go_on": command,
        }
        note_error(str(error) or type(error).__name__)
        for folder in dict.fromkeys(os.path.dirname(path) for path in recorded):
            names = [os.path.basename(path) for path in recorded if os.path.dirname(path) == folder]
            seen = shlex.join([*program_name("realrun").split(), "show", folder])
            print(
                f"recorded until it ended: {', '.join(names)}; see it with: {seen}", file=sys.stderr
            )
        if saved and os.environ.get("RANK", "0") == "0":
            named = str(saved) in str(error)
            left = "go on" if named else f"{saved} is complete; go on from it"
            print(f"{left} with: {command}", file=sys.stderr)
        if isinstance(error, ProgramError):
            error.add_note("(--no-check runs it all the same)")
        raise
