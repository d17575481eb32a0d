"""The command sweep: predicted steps of a plan for each of several values of an option."""

from argparse import ArgumentParser, Namespace
from typing import Any, NamedTuple

from simlab.cli.commands.compare import MOST_PLANS, One, add_output, predicted, say
from simlab.cli.commands.step import BATCH, REPLICAS, global_batch_of
from simlab.cli.options import flag
from simlab.cli.output import progress
from simlab.cli.plan_options import (
    CLUSTER_OPTIONS,
    FIELDS,
    add_batch_option,
    add_cluster_options,
    add_plan_options,
    given_values,
    plan_part,
)
from simlab.errors import InputError, did_you_mean, shortened
from simlab.spec.fields import parsed
from simlab.spec.plan import Plan

FOLLOWED = "tp", "pp", "cp", "nodes", "microbatch_size"
"""Options of a sweep after which the dp and the microbatches of a plan file follow from its GPUs and
its global batch."""


def sweep(arguments: Namespace) -> int:
    """Predict a step for each of several values of one option, such as --over tp=1,2,4,8.

    The options are those of `simlab simulate --model`, and the values are those of any of them. Where
    tp, pp, cp, nodes or microbatch_size changes, the dp and the microbatches of a plan file follow from
    its GPUs and its global batch, unless they are given beside it. A value with which there is no plan
    is listed with the reason; the exit status is 0 as long as one has a plan.
    """
    if len(arguments.over) > 1:
        raise InputError(f"--over {' --over '.join(arguments.over)}: a sweep changes one option")
    name, values = _swept(arguments.over[0])
    batch = global_batch_of(arguments)
    following = _following(arguments, name, batch)
    found: list[One] = []
    first: InputError | None = None
    for text, value in progress(values, f"predicting each {name}"):
        setattr(arguments, name, value)
        try:
            given = given_values(arguments)
            for its in following.names:
                del given[its]
            step = predicted(given, following.global_batch, following.gpus, is_first=not found)
            found.append(One(text, step))
        except InputError as error:
            first = first or error
            found.append(One(text, None, str(error)))
    if first is not None and not any(each.prediction for each in found):
        raise first
    return say(arguments, found, flag(name), name, following.text)


# what is asked for
# --------------------------------------------------------------------------------------------------


class _Following(NamedTuple):
    """What of a plan file does not stay as it is in a sweep."""

    names: tuple[str, ...] = ()
    """Its fields that follow from the rest."""
    gpus: int | None = None
    global_batch: int | None = None
    text: str = ""
    """What they follow from, as a sentence."""


def _following(arguments: Namespace, swept: str, batch: int | None) -> _Following:
    """What follows where `swept` changes, of the plan file and with the `batch` that are given."""
    if swept == "microbatches" and batch is not None:
        raise InputError(f"--over microbatches: they follow from --global-batch {batch}")
    if arguments.plan is None or swept not in FOLLOWED:
        return _Following(global_batch=batch)
    given = given_values(Namespace(plan=arguments.plan))
    plan, text = Plan(**plan_part(given)), []
    follow = ("dp", "microbatches") if swept != "microbatch_size" else ("microbatches",)
    names = [name for name in follow if name in given and not getattr(arguments, name)]
    if swept == "pp" and isinstance(plan.stage_layers, tuple) and not arguments.stage_layers:
        names.append("stage_layers")  # also for the file's own pp; `given_values` says it
    if "dp" in names:
        is_said = swept == "nodes" or arguments.nodes or given.get("nodes")
        number = "the" if is_said else f"{plan.gpus}"
        text.append(f"dp follows from {number} GPUs")
    if batch is None and "microbatches" in names:
        batch = plan.global_batch
        text.append(f"microbatches follow from a global batch of {batch} sequences")
    said = f"{' and '.join(text)}, as in {arguments.plan}" if text else ""
    gpus = plan.gpus if "dp" in names else None
    return _Following(tuple(names), gpus, batch, said)


def _swept(over: str) -> tuple[str, list[tuple[str, Any]]]:
    """(the option, [(a value as it is written, the value)]) of such as 'tp=1,2,4,8'."""
    name, equals, text = over.partition("=")
    name, texts = name.strip().replace("-", "_"), [each.strip() for each in text.split(",")]
    known = [*FIELDS, *CLUSTER_OPTIONS]
    if name not in known:
        hint = did_you_mean(name, known) or ": there is"
        names = "" if "mean" in hint else f" {', '.join(known)}"
        raise InputError(f"--over {shortened(over)}: unknown option {shortened(name)}{hint}{names}")
    if not equals or not all(texts) or not 1 <= len(texts) <= MOST_PLANS:
        raise InputError(
            f"--over {shortened(over)}: give an option and 1 to {MOST_PLANS} values, as in tp=1,2,4,8"
        )
    values = [(each, _value(name, each)) for each in texts]
    if len({value for _, value in values}) < len(values):
        raise InputError(f"--over {shortened(over)}: a value stands there twice")
    return name, values


def _value(name: str, text: str) -> Any:
    if name in FIELDS:
        return parsed(FIELDS[name], text)
    if name != "nodes":
        return text
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"nodes = {shortened(text)}: give a whole number, at least 1")
    return int(text)


def add_sweep(command: ArgumentParser) -> None:
    """Add the arguments of `sweep`."""
    command.add_argument(
        "--over",
        required=True,
        action="append",
        metavar="NAME=X,Y",
        help="the option that changes, and its values: tp=1,2,4,8 or cluster=dgx-a100,dgx-h100",
    )
    add_cluster_options(command)
    add_batch_option(command, BATCH)
    add_plan_options(command, instead={"dp": REPLICAS})
    add_output(command, ", or a value has no plan")
