"""The command convert: a plan from another project's configuration, or for it."""

import argparse
import sys
from typing import Annotated, Any, TypedDict

from simlab.cli.config_files import config_text, read_config
from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, write_file
from simlab.cli.plan_options import plan_lines, plan_part, read_plan_file
from simlab.display import plain
from simlab.errors import InputError, shortened
from simlab.planner.formats import FORMATS, exported, imported
from simlab.spec.plan import Plan

SEARCHED = ("dp", "tp", "pp", "cp", "zero", "microbatch_size", "microbatches", "recompute")
"""What a plan file says even where it is the default."""


class Answer(TypedDict):
    """A plan, the text that says it, and what was left out on the way."""

    plan: Annotated[dict[str, Any], Plan]
    unsaid: list[str]
    """What of the configuration no plan can say, in words."""
    left: list[str]
    """Options of the configuration that are none of a plan."""
    lost: dict[str, Any]
    """{field: its value in the plan} of what the configuration that was asked for cannot say."""
    settings: dict[str, Any] | None
    """That configuration; null without `--to`."""
    text: str


def convert(arguments: argparse.Namespace) -> int:
    """Make a plan of another project's configuration, or such a configuration of a plan.

    Without --from the file is a plan file, and without --to a plan file is printed. What a plan or a
    configuration cannot say is named on stderr, and so are options that are none of a plan.
    """
    if arguments.source is None and arguments.to is None:
        raise InputError(f"give --from or --to, one of {', '.join(FORMATS)}")
    plan, notes = _plan(arguments)
    settings: dict[str, Any] | None = None
    unsaid: dict[str, Any] = {}
    if arguments.to is None:
        text = "\n".join(plan_lines(plan, SEARCHED)) + "\n"
    else:
        settings, unsaid = exported(arguments.to, plan)
        text = config_text(settings, FORMATS[arguments.to].syntax)
    if arguments.out:
        write_file(arguments.out, lambda path: path.write_text(text, encoding="utf-8"))
    for note in [*notes["unsaid"], *(f"{field} = {value}" for field, value in unsaid.items())]:
        print(f"not said: {note}", file=sys.stderr)
    if notes["left"]:
        print(f"not of a plan: {', '.join(notes['left'])}", file=sys.stderr)
    if arguments.json:
        answer: Answer = {
            "plan": plan.to_dict(),
            "unsaid": notes["unsaid"],
            "left": notes["left"],
            "lost": plain(unsaid),
            "settings": settings,
            "text": text,
        }
        print_json(answer)
    else:
        print(text, end="")
    return 0


def _plan(arguments: argparse.Namespace) -> tuple[Plan, dict[str, list[str]]]:
    """(the plan of the file, {"unsaid" and "left" of its options})"""
    if arguments.source is None:
        given = read_plan_file(arguments.file)
        return Plan(**plan_part(given)), {"unsaid": [], "left": []}
    content = read_config(arguments.file, FORMATS[arguments.source].syntax)
    try:
        made = imported(arguments.source, content, gpus=arguments.gpus)
    except InputError as error:
        raise InputError(f"{shortened(arguments.file)}: {error}") from error
    return made.plan, {"unsaid": made.unsaid, "left": made.left}


def add_convert(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `convert`."""
    command.add_argument("file", metavar="FILE", help="a plan file, or a configuration with --from")
    command.add_argument(
        "--from", dest="source", choices=FORMATS, help="the project that FILE configures"
    )
    command.add_argument("--to", choices=FORMATS, help="the project to write a configuration for")
    command.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="the number of GPUs, where a configuration leaves it to its launcher",
    )
    command.add_argument("--out", metavar="FILE", help="also write the result there")
    add_json_options(command, Answer)
