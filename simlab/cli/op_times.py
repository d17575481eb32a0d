"""The times of ops as options, and what they say of a pipeline: a schedule is simulated with them,
or searched for them."""

import argparse
import math
import sys
from typing import Any

import simlab as sl
from simlab.cli.options import add_alias, flag
from simlab.errors import InputError
from simlab.program import WEIGHT_GRAD_MEMORY, Program
from simlab.schedules import SCHEDULES, schedule_of
from simlab.studies.survey import search_options
from simlab.units import MS

DEFAULTS = {
    "forward_ms": None,
    "backward_ms": None,
    "input_grad_ms": None,
    "weight_grad_ms": None,
    "pair_ms": None,
    "link_ms": 0.0,
    "jitter": 0.0,
    "seed": 0,
    "weight_grad_memory": WEIGHT_GRAD_MEMORY,
    "activation_cap": None,
}
"""{option: what it is where it is not given}. The parser leaves it None, so that what is given can
be told; see `fill_in`."""


def fill_in(arguments: argparse.Namespace, defaults: dict[str, Any]) -> None:
    """Give the arguments of {option: default} that were not given their defaults."""
    for name, default in defaults.items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, default)


def add_size_options(command: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the size of a pipeline and what its schedule can be told."""
    chunked = [name for name, its in SCHEDULES.items() if its.chunked]
    command.add_argument(
        "--pp", type=int, required=required, metavar="P", help="pipeline stages, one rank each"
    )
    command.add_argument(
        "--microbatches", type=int, required=required, metavar="M", help="microbatches in a step"
    )
    command.add_argument(
        "--chunks",
        type=int,
        metavar="V",
        help=f"stages per rank, for {' and '.join(chunked)} (default 2)",
    )
    add_group_option(command)


def add_group_option(command: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add `--group`, which interleaved schedules can be told."""
    command.add_argument(
        "--group",
        type=int,
        metavar="G",
        help="microbatches in a group, for interleaved-1f1b (default about P)",
    )


TIMES = {
    "forward_ms": ("F", "its forward, ms"),
    "backward_ms": ("B", "its whole backward, ms (default I + W)"),
    "input_grad_ms": ("I", "the part of it that other stages wait for, ms"),
    "weight_grad_ms": ("W", "the rest of it, ms; for schedules that split it"),
    "pair_ms": ("T", "F&B, a forward beside a backward, in DualPipe, ms (default F + B)"),
    "link_ms": ("C", "one message between stages, ms (default 0)"),
    "jitter": ("CV", "coefficient of variation of every op's time (default 0)"),
    "seed": ("N", "of the jitter (default 0)"),
    "weight_grad_memory": (
        "X",
        f"part of its activations that stays from I to W (default {WEIGHT_GRAD_MEMORY})",
    ),
    "activation_cap": (
        "X",
        "the most activations to hold, 1 is a microbatch's on a rank: zb-auto keeps to it (default P), others are told of",
    ),
}
"""{option: (metavar, help)}."""


def add_time_options(
    command: argparse.ArgumentParser,
    *,
    required: bool = True,
    title: str = "one microbatch on one rank (all of its stages)",
) -> None:
    """Add the times of ops. required: whether the forward's time must be given."""
    times = command.add_argument_group(title)
    for name, (metavar, text) in TIMES.items():
        times.add_argument(
            flag(name),
            type=int if name == "seed" else float,
            required=required and name == "forward_ms",
            metavar=metavar,
            help=text,
        )
    add_alias(times, "--p2p-ms", "link_ms", float)


def generated(arguments: argparse.Namespace, name: str) -> Program:
    """The program of the schedule `name`, for the size and the times of `arguments`."""
    options = schedule_options(arguments)
    if schedule_of(name).timed:
        if None in (arguments.forward_ms, arguments.input_grad_ms, arguments.weight_grad_ms):
            raise InputError(
                f"{name} searches the best order for given times: give --forward-ms, --input-grad-ms and --weight-grad-ms"
            )
        options |= {
            "cap": arguments.activation_cap,
            **search_options(rank_times(arguments), link(arguments), arguments.weight_grad_memory),
        }
    return sl.generate(name, arguments.pp, arguments.microbatches, **options)


def schedule_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a schedule can be told beside its size."""
    return {"chunks": arguments.chunks, "group": arguments.group}


def rank_times(arguments: argparse.Namespace) -> sl.OpTimes:
    """`OpTimes` of a rank's whole share of the layers."""
    input_grad_ms, weight_grad_ms, backward_ms = (
        arguments.input_grad_ms,
        arguments.weight_grad_ms,
        arguments.backward_ms,
    )
    if backward_ms is None:
        if input_grad_ms is None or weight_grad_ms is None:
            raise InputError("give --backward-ms, or both --input-grad-ms and --weight-grad-ms")
    elif None not in (input_grad_ms, weight_grad_ms) and not math.isclose(
        backward_ms, input_grad_ms + weight_grad_ms
    ):
        parts = f"{input_grad_ms:g} + {weight_grad_ms:g}"
        print(
            f"note: B is {backward_ms:g} ms, I + W {parts}: schedules with and without a split backward do different work",
            file=sys.stderr,
        )
    if not 0 <= arguments.weight_grad_memory <= 1:
        raise InputError(
            f"--weight-grad-memory {arguments.weight_grad_memory:g}: give a part of the activations, 0 to 1"
        )
    seconds = {
        f"{kind}_s": _seconds(arguments, f"{kind}_ms")
        for kind in ("forward", "backward", "input_grad", "weight_grad", "pair")
    }
    return sl.OpTimes(**seconds, jitter=arguments.jitter, seed=arguments.seed)


def _seconds(arguments: argparse.Namespace, field: str) -> float | None:
    """The argument `field` in s; None where it is not given."""
    value = getattr(arguments, field)
    if value is not None and not 0 <= value < float("inf"):
        raise InputError(
            f"{flag(field)} {value:g}: give a finite number of milliseconds, 0 or more"
        )
    return None if value is None else value * MS


def link(arguments: argparse.Namespace) -> sl.Link | None:
    """The `Link` that the arguments ask for; None where messages take no time."""
    latency_s = _seconds(arguments, "link_ms")
    return sl.Link(latency_s=latency_s) if latency_s else None
