"""simlab's command line: make, check and simulate programs, predict training steps."""

import argparse
from collections.abc import Callable, Sequence
from inspect import cleandoc

import simlab as sl
from simlab.cli.commands.catalogue import add_catalog, catalog
from simlab.cli.commands.cluster import add_cluster, cluster
from simlab.cli.commands.compare import add_compare, compare
from simlab.cli.commands.convert import add_convert, convert
from simlab.cli.commands.drill import add_drill, drill
from simlab.cli.commands.learning.classes import add_class, class_
from simlab.cli.commands.learning.lessons import add_lessons, lessons
from simlab.cli.commands.memory import add_memory, memory
from simlab.cli.commands.plan import add_plan, plan
from simlab.cli.commands.program import (
    add_check,
    add_schedule,
    add_schedules,
    check,
    schedule,
    schedules,
)
from simlab.cli.commands.running.doctor import add_doctor, doctor
from simlab.cli.commands.running.operations import add_operations, operations
from simlab.cli.commands.running.why import add_why, why
from simlab.cli.commands.simulate import add_simulate, simulate
from simlab.cli.commands.sweep import add_sweep, sweep
from simlab.cli.commands.validate import add_validate, validate
from simlab.cli.exit_status import exit_status
from simlab.cli.options import Parser, add_version_and_completion, program_name
from simlab.cli.streams import open_streams

EPILOG = """examples:
  simlab schedule 1f1b --pp 4 --microbatches 8
  simlab schedule 1f1b --pp 4 --microbatches 8 --csv mine.csv   then edit it, and
  simlab check mine.csv
  simlab simulate --csv mine.csv --forward-ms 20 --backward-ms 40 --picture mine.png
  simlab schedules --pp 4 --microbatches 8 --forward-ms 20 --input-grad-ms 20 --weight-grad-ms 20
  simlab simulate --model llama-3-8b --cluster dgx-h100 --nodes 2 --tp 4 --pp 2 --microbatches 8
  simlab plan --model llama-3-8b --cluster dgx-h100 --nodes 2 --global-batch 64 --explain
  simlab sweep --over tp=1,2,4,8 --model llama-3-8b --cluster dgx-h100 --nodes 2 --picture tp.html
  simlab compare best.yaml mine.yaml
  simlab memory --params 7.5B --dp 64 --zero 3
  simlab operations interval --stall-s 30 --spares 32
  simlab validate
  simlab lessons copy learn --lang zh
  simlab why out/measured.json        or profiles of torch.profiler, one per rank

exit status: 0 done, 1 the check failed, 2 bad arguments"""
COMMANDS: dict[
    str,
    tuple[Callable[[argparse.Namespace], int], Callable[[argparse.ArgumentParser], None], str],
] = {
    "schedule": (schedule, add_schedule, "print a schedule's program, one row per rank"),
    "check": (check, add_check, "check a program in a CSV file"),
    "simulate": (
        simulate,
        add_simulate,
        "simulate a schedule, a CSV program, or a model on a cluster",
    ),
    "plan": (plan, add_plan, "search the fastest plans of a model on a cluster"),
    "compare": (compare, add_compare, "the steps of two or more plans side by side"),
    "sweep": (sweep, add_sweep, "the steps of a plan for each of several values of an option"),
    "convert": (
        convert,
        add_convert,
        "a plan from the configuration of another project, or for it",
    ),
    "schedules": (schedules, add_schedules, "one table of all schedules"),
    "catalog": (catalog, add_catalog, "list the models and clusters that come with simlab"),
    "cluster": (cluster, add_cluster, "write the file of a cluster of your own, or check one"),
    "memory": (memory, add_memory, "bytes of model states per rank, under ZeRO"),
    "operations": (
        operations,
        add_operations,
        "failures, checkpoints, slow ranks, queues and prices of a training",
    ),
    "doctor": (doctor, add_doctor, "examine this machine before a training"),
    "why": (why, add_why, "where a step's time goes, from a trace or profile; what hangs"),
    "lessons": (lessons, add_lessons, "list the lessons, or copy them, in English or Chinese"),
    "drill": (drill, add_drill, "practise for an interview, in English or Chinese"),
    "class": (
        class_,
        add_class,
        "lessons for a class: pack them, collect and grade what comes back",
    ),
    "validate": (validate, add_validate, "predict published runs, say how far off"),
}
"""{name: (what runs, what adds its arguments, help)}."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. Answers go to stdout, messages to stderr."""
    open_streams()
    top = parser()
    arguments = top.parse_args(argv)
    if arguments.run is None:
        top.print_help()
        return 0
    return exit_status(arguments.run, arguments)


def parser() -> Parser:
    """The argument parser."""
    top = Parser(
        prog=program_name("simlab"),
        description="How large models are trained on many GPUs: schedules, memory, step times, simulated.",
        epilog=EPILOG,
    )
    add_version_and_completion(top, f"simlab {sl.__version__}")
    top.set_defaults(run=None)
    added = top.add_subparsers(metavar="COMMAND")
    for name, (run, add_arguments, text) in COMMANDS.items():
        command = added.add_parser(name, help=text, description=cleandoc(run.__doc__ or ""))
        add_arguments(command)
        command.set_defaults(run=run)
        top.commands[name] = command
        command.siblings = top.commands
    return top
