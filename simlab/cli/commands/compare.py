"""The commands compare and sweep: predicted steps of several plans side by side."""

import argparse
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import simlab as sl
from simlab.cli.commands.step import (
    BATCH,
    REPLICAS,
    global_batch_of,
    plan_and_cluster,
    say_what_is_not_read,
)
from simlab.cli.options import add_json_options, add_picture_option, flag, value_text
from simlab.cli.output import COLUMNS, print_json, print_table, print_text, progress, write_picture
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
from simlab.spec.model import MFU_CONVENTION
from simlab.spec.plan import Plan
from simlab.studies.published.rows import described
from simlab.studies.published.runs import RUNS, RUNS_2026, read_runs
from simlab.studies.published.words import Skip
from simlab.training import Prediction
from simlab.training.summary import PredictionFacts
from simlab.units import GIB, percent_text, seconds_text
from simlab.views import shares
from simlab.views.plan_scene import step_parts

MOST_PLANS = 64
HEAD = "tokens/s/GPU", "", "step", "MFU", "GiB", "fit"
FOLLOWED = "tp", "pp", "cp", "nodes", "microbatch_size"
"""Options of a sweep after which the dp and the microbatches of a plan file follow from its GPUs and
its global batch."""
MOST_NAMED_PARTS = 3
"""Of a step: the parts that are named where it is another one than the first plan's."""


class Named(TypedDict):
    """What a plan is called."""

    name: str


class NamedPrediction(PredictionFacts, Named):
    """A plan's predicted step."""


class Refused(Named):
    """A value of a sweep that no plan can have, and why."""

    refused: str


class Answer(TypedDict):
    """Several plans, in the order that they were asked for."""

    plans: list[NamedPrediction | Refused]
    differs: dict[str, list[Any]]
    """{what is not the same in all of them: its value in each that is predicted}."""


class _One(NamedTuple):
    """A plan by name, predicted or refused."""

    name: str
    prediction: Prediction | None
    refused: str = ""


def compare(arguments: Namespace) -> int:
    """Predict the steps of two or more plans side by side, and say in what they differ.

    A plan is a plan file that names a model and a cluster, as `simlab plan --out` writes it, or the
    id of a published run of `simlab validate`. --model, --cluster and --nodes replace those of all
    files.
    """
    if not 2 <= len(arguments.plans) <= MOST_PLANS:
        count = len(arguments.plans)
        raise InputError(f"{count} plan{'s' * (count > 1)} to compare: give 2 to {MOST_PLANS}")
    names = _names(arguments.plans)
    found = []
    for asked, name in progress([*zip(arguments.plans, names)], "predicting plans"):
        try:
            found.append(_One(name, _of_plan(asked, arguments)))
        except InputError as error:
            raise InputError(str(error) if asked in str(error) else f"{asked}: {error}") from error
    return _say(arguments, found, "plan")


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
    found: list[_One] = []
    first: InputError | None = None
    for text, value in progress(values, f"predicting each {name}"):
        setattr(arguments, name, value)
        try:
            given = given_values(arguments)
            for its in following.names:
                del given[its]
            step = _predicted(given, following.global_batch, following.gpus, is_first=not found)
            found.append(_One(text, step))
        except InputError as error:
            first = first or error
            found.append(_One(text, None, str(error)))
    if first is not None and not any(each.prediction for each in found):
        raise first
    return _say(arguments, found, flag(name), name, following.text)


# what is asked for
# --------------------------------------------------------------------------------------------------


def _names(asked: Sequence[str]) -> list[str]:
    """What each plan is called: its file's name without folder and ending, where that tells all."""
    short = [Path(each).stem if Path(each).is_file() else each for each in asked]
    return short if len({*short}) == len(short) else list(asked)


def _of_plan(asked: str, arguments: Namespace) -> Prediction:
    if Path(asked).suffix in (".yaml", ".yml") or Path(asked).is_file():
        over = {name: getattr(arguments, name) for name in CLUSTER_OPTIONS}
        return _predicted(given_values(Namespace(plan=asked, **over)))
    rows = {row["id"]: row for file in (RUNS, RUNS_2026) for row in read_runs(file)}
    if asked not in rows:
        hint = did_you_mean(asked, rows) or ":"
        raise InputError(
            f"no plan file and no published run {shortened(asked)}{hint} give a .yaml file, or an id "
            "of `simlab validate --rows`"
        )
    for name in CLUSTER_OPTIONS:
        if getattr(arguments, name) is not None:
            raise InputError(f"{flag(name)} goes with plan files: {asked} is a published run")
    try:
        return sl.predict(*described(rows[asked]))
    except Skip as skip:
        raise InputError(str(skip)) from skip


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


def _predicted(
    given: dict[str, Any],
    global_batch: int | None = None,
    gpus: int | None = None,
    *,
    is_first: bool = True,
) -> Prediction:
    if "model" not in given:
        raise InputError("no model: give --model, or name it in the plan file")
    model = sl.load_model(given["model"])
    plan, cluster = plan_and_cluster(dict(given), global_batch=global_batch, gpus=gpus)
    if is_first:
        say_what_is_not_read(given, model)
    return sl.predict(model, plan, cluster)


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


# what is said
# --------------------------------------------------------------------------------------------------


def _say(
    arguments: Namespace, found: Sequence[_One], what: str, swept: str = "", following: str = ""
) -> int:
    """Draw and print what was `found`: 1 with --strict if one is refused or does not fit, else 0.

    what: what the name of each is, "plan" or the option that is `swept`. following: what followed from it."""
    there = [(each.name, each.prediction) for each in found if each.prediction is not None]
    differs = _differs([prediction for _, prediction in there])
    if arguments.picture:
        picture = shares(
            [its for _, its in there], [f"{swept or what} {name}" for name, _ in there]
        )
        write_picture(arguments.picture, lambda path: picture.savefig(path))
    if arguments.json:
        print_json({"plans": [_facts(each) for each in found], "differs": differs})
    else:
        others = {name: values for name, values in differs.items() if name != swept}
        _print(found, there, others, what)
        if following:
            print_text(following)
    runs = [each.prediction is not None and each.prediction.fit.fits for each in found]
    return int(arguments.strict and not all(runs))


def _facts(one: _One) -> dict[str, Any]:
    if one.prediction is None:
        return {"name": one.name, "refused": one.refused}
    return {"name": one.name, **one.prediction.to_dict()}


def _differs(predictions: Sequence[Prediction]) -> dict[str, list[Any]]:
    """{what is not the same in all: its value in each}."""
    follows = ["seq"] if any(its.model.experts for its in predictions) else ["seq", "etp"]
    sides = [
        {
            "model": its.model.name,
            "cluster": its.cluster.name,
            "gpus": its.plan.gpus,
            "seq": its.plan.seq or its.model.seq,
            "global_batch": its.plan.global_batch,
            **{name: getattr(its.plan, name) for name in FIELDS if name not in follows},
        }
        for its in predictions
    ]
    together = {name: [side[name] for side in sides] for name in sides[0]}
    return {
        name: values
        for name, values in together.items()
        if any(value != values[0] for value in values)
    }


def _print(
    found: Sequence[_One],
    there: Sequence[tuple[str, Prediction]],
    differs: Mapping[str, Sequence[Any]],
    what: str,
) -> None:
    """Print the table, what is refused, in what else the plans differ, and where their times go."""
    first = there[0][1]
    spent = [dict(step_parts(its)) for _, its in there]
    parts = [
        part
        for part in spent[0]
        if any(side[part] > 0.001 * its.step_s for side, (_, its) in zip(spent, there))
    ]
    rows = [
        [
            name,
            f"{_rate(its):,.0f}",
            "" if its is first else percent_text(_rate(its) / _rate(first) - 1),
            seconds_text(its.step_s),
            f"{its.mfu:.1%}",
            f"{its.fit.held_bytes / GIB:.1f}",
            its.fit.verdict,
            *(seconds_text(side[part]) if side[part] else "-" for part in parts),
        ]
        for (name, its), side in zip(there, spent)
    ]
    spare = sorted(parts, key=lambda part: max(side[part] for side in spent))
    print_table((what, *HEAD, *parts), rows, spare, COLUMNS)
    for one in found:
        if one.prediction is None:
            print_text(f"{what} {one.name} is refused: {one.refused}")
    if len(there) < len(found):
        print_text(f"{len(there)} of {len(found)} values of {what} have a plan")
    print_text(
        f"tokens/s/GPU: predicted, and how much more than the first; MFU: {MFU_CONVENTION}; GiB: "
        "tensors at the peak; the parts of a step are means over ranks"
    )
    if differs:
        each = (f"{name} {', '.join(map(_cell, values))}" for name, values in differs.items())
        print_text(f"they differ in {'; '.join(each)}")
    for (name, its), side in [*zip(there, spent)][1:]:
        print_text(f"{what} {name} beside {there[0][0]}: {_change(first, its, spent[0], side)}")


def _cell(value: Any) -> str:
    return "-" if value is None else value_text(value)


def _rate(its: Prediction) -> float:
    """Tokens a second of each GPU, which compares steps of other batches and of other clusters, too."""
    return its.tokens_per_s / its.plan.gpus


def _change(
    first: Prediction, its: Prediction, before: Mapping[str, float], after: Mapping[str, float]
) -> str:
    """How much faster a plan is than the first one, how much longer its step is, in which parts most, and
    whether such predictions tell so much."""
    more_s = its.step_s - first.step_s
    if more_s == 0 and _rate(its) == _rate(first):
        return "the same step"
    longer = f"{seconds_text(abs(more_s))} {'longer' if more_s > 0 else 'shorter'}"
    changes = {part: after[part] - before[part] for part in after}
    most: Iterable[str] = sorted(changes, key=lambda part: -abs(changes[part]))[:MOST_NAMED_PARTS]
    named = [
        f"{part} {'+' if changes[part] > 0 else '-'}{seconds_text(abs(changes[part]))}"
        for part in most
        if abs(changes[part]) > 0.01 * abs(more_s)
    ]
    parts = f" ({', '.join(named)})" if named else ""
    off = max(first.uncertainty, its.uncertainty, key=lambda each: (not each.is_near, each.error))
    slower, faster = sorted((_rate(first), _rate(its)))
    tie = f"; a tie, within {off.tie_text}" * (faster <= slower * (1 + off.error))
    more = percent_text(_rate(its) / _rate(first) - 1)
    return f"{more} tokens/s/GPU, a step {longer}{parts}{tie}"


def add_compare(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    command.add_argument(
        "plans", nargs="+", metavar="PLAN", help="plan files, or ids of published runs"
    )
    add_cluster_options(command)
    _add_output(command)


def add_sweep(command: argparse.ArgumentParser) -> None:
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
    _add_output(command, ", or a value has no plan")


def _add_output(command: argparse.ArgumentParser, or_what: str = "") -> None:
    command.add_argument(
        "--strict",
        action="store_true",
        help=f"exit with 1 if a step does not fit into the memory{or_what}",
    )
    add_picture_option(command, "the parts of each step, and its memory, a bar each")
    add_json_options(command, Answer)
