"""The commands about programs: schedule, check and schedules."""

import argparse
from math import inf
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import simlab as sl
from simlab.cli.op_times import (
    DEFAULTS,
    add_size_options,
    add_time_options,
    fill_in,
    generated,
    link,
    rank_times,
    schedule_options,
)
from simlab.cli.options import add_json_options, add_picture_option
from simlab.cli.output import print_json, print_text, write_file, write_picture
from simlab.errors import InputError
from simlab.schedules import ALIASES, RECORDS, schedule_of
from simlab.studies.survey import Row, survey, survey_table
from simlab.views import timeline

NAMES = ", ".join([*RECORDS, *(f"{alias} (= {name})" for alias, name in ALIASES.items())])
"""The names of all schedules, for help."""


class Schedule(TypedDict):
    """A program."""

    schedule: str
    stages: int
    microbatches: int
    ranks: list[list[str]]
    """The ops of each rank as text."""


class Checked(TypedDict):
    """A program that keeps the rules."""

    ok: Literal[True]
    ranks: int
    stages: int
    microbatches: int
    ops: int


class Refused(TypedDict):
    """A schedule that cannot be made for these numbers."""

    schedule: str
    refused: str


class Simulated(TypedDict):
    """A schedule of the survey, see `simlab.studies.survey.Row`."""

    schedule: str
    stages: int
    step_s: float
    bubble: Annotated[dict[str, float], sl.Bubble]
    bubble_s: float
    closed_form_s: NotRequired[float]
    peak_activations: list[float]
    fits: NotRequired[bool]
    parameters: list[float]
    messages: int


class Schedules(TypedDict):
    """All schedules, on the same ranks, microbatches and times."""

    schedules: list[Simulated | Refused]


def schedule(arguments: argparse.Namespace) -> int:
    """Print a schedule's program, one row per rank; write it as CSV if asked."""
    if not schedule_of(arguments.name).timed and any(
        getattr(arguments, name) is not None for name in DEFAULTS
    ):
        raise InputError(
            f"times and cap are for zb-auto's search: {arguments.name} has the same order for all of them"
        )
    fill_in(arguments, DEFAULTS)
    program = generated(arguments, arguments.name)
    if arguments.csv is not None:
        write_file(arguments.csv, lambda path: program.to_csv(path))
    if arguments.json:
        print_json(
            {
                "schedule": program.name,
                "stages": program.stages,
                "microbatches": program.microbatches,
                "ranks": program.ranks_as_text,
            }
        )
    else:
        print(program)
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Hold a CSV program against the rules."""
    program = sl.validate(sl.Program.from_csv(arguments.file))
    facts: Checked = {
        "ok": True,
        "ranks": len(program.ranks),
        "stages": program.stages,
        "microbatches": program.microbatches,
        "ops": len(program.rank_of),
    }
    if arguments.json:
        print_json(facts)
    else:
        print(
            "valid: {ranks} ranks, {stages} stages, {microbatches} microbatches, {ops} ops".format(
                **facts
            )
        )
    return 0


def schedules(arguments: argparse.Namespace) -> int:
    """Simulate every schedule on the same ranks, microbatches and times: one table.

    /ideal, /span, longest: the bubble over the ideal time, over the whole time, and of the longest
    stage over its span; bubble: that stage's idle time; formula: its closed form; held, par: the
    most activations and the parameters, in a rank's share; msgs: messages.
    """
    fill_in(arguments, DEFAULTS)
    if arguments.activation_cap is not None and not 1 <= arguments.activation_cap < inf:
        raise InputError(
            f"--activation-cap {arguments.activation_cap:g}: give a finite number, at least 1"
        )
    rows = survey(
        arguments.pp,
        arguments.microbatches,
        rank_times(arguments),
        link=link(arguments),
        weight_grad_memory=arguments.weight_grad_memory,
        options={**schedule_options(arguments), "cap": arguments.activation_cap},
    )
    if arguments.picture:
        traces = [row.trace for row in rows if row.trace]
        write_picture(arguments.picture, lambda path: timeline(traces, memory=False).savefig(path))
    if arguments.json:
        print_json({"schedules": [_row(row) for row in rows]})
    else:
        print_text(survey_table(rows))
    return 0


def _row(row: Row) -> dict[str, Any]:
    """What is known of a `Row`, as plain values."""
    facts = {
        field: value for field, value in vars(row).items() if field != "trace" and value is not None
    }
    return facts | ({"bubble": row.bubble._asdict()} if row.bubble else {})


def add_schedule(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `schedule`."""
    command.add_argument("name", metavar="NAME", help=NAMES)
    add_size_options(command, required=True)
    add_time_options(command, required=False, title="zb-auto only: what the search is for")
    command.add_argument(
        "--csv",
        metavar="FILE",
        help="also write it as CSV, which torch.distributed.pipelining reads too",
    )
    add_json_options(command, Schedule)


def add_check(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `check`."""
    command.add_argument(
        "file", metavar="FILE.csv", help="one row per rank, one op such as 2F0 per cell"
    )
    add_json_options(command, Checked)


def add_schedules(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `schedules`."""
    add_size_options(command, required=True)
    add_time_options(command)
    add_picture_option(command, "them under each other on one time axis")
    add_json_options(command, Schedules)
