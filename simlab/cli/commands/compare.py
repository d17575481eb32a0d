"""The command compare: predicted steps of several plans side by side."""

import argparse
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import simlab as sl
from simlab.cli.commands.step import plan_and_cluster, say_what_is_not_read
from simlab.cli.options import add_json_options, add_picture_option, flag, value_text
from simlab.cli.output import COLUMNS, print_json, print_table, print_text, progress, write_picture
from simlab.cli.plan_options import (
    CLUSTER_OPTIONS,
    FIELDS,
    add_cluster_options,
    given_values,
)
from simlab.errors import InputError, did_you_mean, shortened
from simlab.spec.model import MFU_CONVENTION
from simlab.studies.published.rows import described
from simlab.studies.published.runs import RUNS, RUNS_2026, read_runs
from simlab.studies.published.words import Skip
from simlab.training import Prediction
from simlab.training.summary import PredictionFacts
from simlab.units import GIB, percent_text, seconds_text
from simlab.views import shares
from simlab.views.charts.bars import step_parts

MOST_PLANS = 64
HEAD = "tokens/s/GPU", "step", "MFU", "GiB", "fit"
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


class One(NamedTuple):
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
            found.append(One(name, _of_plan(asked, arguments)))
        except InputError as error:
            raise InputError(str(error) if asked in str(error) else f"{asked}: {error}") from error
    return say(arguments, found, "plan")


# what is asked for
# --------------------------------------------------------------------------------------------------


def _names(asked: Sequence[str]) -> list[str]:
    """What each plan is called: its file's name without folder and ending, where that tells all."""
    short = [Path(each).stem if Path(each).is_file() else each for each in asked]
    return short if len({*short}) == len(short) else list(asked)


def _of_plan(asked: str, arguments: Namespace) -> Prediction:
    if Path(asked).suffix in (".yaml", ".yml") or Path(asked).is_file():
        over = {name: getattr(arguments, name) for name in CLUSTER_OPTIONS}
        return predicted(given_values(Namespace(plan=asked, **over)))
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


def predicted(
    given: dict[str, Any],
    global_batch: int | None = None,
    gpus: int | None = None,
    *,
    is_first: bool = True,
) -> Prediction:
    """The step of what is `given`; `is_first`: what of it is not read is said on stderr."""
    if "model" not in given:
        raise InputError("no model: give --model, or name it in the plan file")
    model = sl.load_model(given["model"])
    plan, cluster = plan_and_cluster(dict(given), global_batch=global_batch, gpus=gpus)
    if is_first:
        say_what_is_not_read(given, model)
    return sl.predict(model, plan, cluster)


# what is said
# --------------------------------------------------------------------------------------------------


def say(
    arguments: Namespace, found: Sequence[One], what: str, swept: str = "", following: str = ""
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


def _facts(one: One) -> dict[str, Any]:
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
    found: Sequence[One],
    there: Sequence[tuple[str, Prediction]],
    differs: Mapping[str, Sequence[Any]],
    what: str,
) -> None:
    """Print the table, what is refused, in what else the plans differ, and where their times go."""
    first = there[0][1]
    if not first.fit.fits:
        print_text(f"{what} {there[0][0]}, with which the others are compared, {first.fit}")
    spent = [dict(step_parts(its)) for _, its in there]
    parts = [
        part
        for part in spent[0]
        if any(side[part] > 0.001 * its.step_s for side, (_, its) in zip(spent, there))
    ]
    mores = ["", *(percent_text(_rate(its) / _rate(first) - 1) for _, its in there[1:])]
    rows = [
        [
            name,
            f"{_rate(its):,.0f} {more:>{max(map(len, mores))}}",
            _short(its.step_s),
            f"{its.mfu:.1%}",
            f"{its.fit.held_bytes / GIB:.1f}",
            its.fit.verdict if its.fit.fits else "no",
            *(_short(side[part]) if side[part] else "-" for part in parts),
        ]
        for (name, its), side, more in zip(there, spent, mores)
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


def _short(seconds: float) -> str:
    """`seconds` with three digits at most, in seven columns: '1.63 s', '29.7 ms', '948 ms', '1.2 ms'."""
    number, _, unit = seconds_text(seconds).partition(" ")
    whole, point, decimals = number.partition(".")
    digits = max(0, min(len(decimals), 3 - len(whole)))
    return f"{float(number):.{digits}f} {unit}" if point else f"{number} {unit}"


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
    add_output(command)


def add_output(command: argparse.ArgumentParser, or_what: str = "") -> None:
    """Add the options of what is said of several plans."""
    command.add_argument(
        "--strict",
        action="store_true",
        help=f"exit with 1 if a step does not fit into the memory{or_what}",
    )
    add_picture_option(command, "the parts of each step, and its memory, a bar each")
    add_json_options(command, Answer)
