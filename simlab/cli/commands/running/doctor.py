"""The command doctor: what of this machine would break a training, and what to do."""

import argparse
from collections.abc import Iterable
from typing import Annotated, Any, TypedDict

from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, print_text
from simlab.display import plain
from simlab.errors import require_whole
from simlab.operations.doctor import Finding, Machine, examined, findings
from simlab.operations.doctor.machine import PORT


class Answer(TypedDict):
    """This machine, and what of it would break a training."""

    machine: Annotated[dict[str, Any], Machine]
    findings: list[Annotated[dict[str, Any], Finding]]
    ok: bool


def doctor(arguments: argparse.Namespace) -> int:
    """Examine this machine, and say what would break a training, loudly or silently.

    It needs no torch. `python -m realrun doctor` examines all ranks, their links and clocks, too.
    """
    require_whole("--ranks", arguments.ranks)
    machine = examined(arguments.folder, port=arguments.port)
    found = findings(machine, ranks=arguments.ranks)
    if arguments.json:
        print_json(
            Answer(machine=plain(machine), findings=plain(found), ok=healthy(found)),
        )
    else:
        print_text(f"{machine.host}: {machine.system}, Python {machine.python}")
        print_findings(found)
    return 0 if healthy(found) else 1


def healthy(found: Iterable[Finding]) -> bool:
    """Whether nothing was found that ends a training."""
    return all(one.level != "loud" for one in found)


def print_findings(found: Iterable[Finding]) -> None:
    """Print a line for each finding, with what to do where it is not fine."""
    for one in found:
        to_do = f". {one.to_do[0].upper()}{one.to_do[1:]}" if one.to_do else ""
        print_text(f"{one.level:<7} {one.subject}: {one.found}{to_do}")


def add_doctor(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    command.add_argument(
        "--ranks", type=int, default=1, metavar="N", help="ranks that are to run here (default 1)"
    )
    add_machine_options(command)
    add_json_options(command, Answer)


def add_machine_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments that simlab's and realrun's `doctor` share."""
    command.add_argument(
        "--folder", default=".", metavar="DIR", help="where checkpoints are written (default here)"
    )
    command.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"the rendezvous port (default {PORT})"
    )
