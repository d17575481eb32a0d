"""The command operations: what happens to a training over months, and what it costs."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from math import inf
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import simlab as sl
from simlab.cli.commands.running.operations_text import (
    show_cost,
    show_interval,
    show_queue,
    show_replan,
    show_run,
    show_stragglers,
)
from simlab.cli.commands.step import plan_and_cluster
from simlab.cli.options import add_json_options, flag, refuse_given, value_text
from simlab.cli.output import print_json
from simlab.cli.plan_options import FIELDS as PLAN_FIELDS
from simlab.cli.plan_options import read_plan_file
from simlab.errors import InputError
from simlab.operations import (
    Checkpoints,
    Disturbance,
    FailureRate,
    Fleet,
    LongRun,
    Prices,
    failure_rate,
    failure_rates,
    interval_study,
    pause_slowdown,
    random_jobs,
    replan,
    simulate_queue,
    simulate_run,
    synchronous_steps,
    training_cost,
)
from simlab.operations.cost import Cost, Totals
from simlab.operations.goodput import IntervalFacts
from simlab.operations.long_run import RunFacts
from simlab.operations.queued_jobs import POLICIES, QueueFacts
from simlab.operations.rates import DAY_S
from simlab.operations.replan import ANOTHER, FEWER, ReplannedFacts
from simlab.operations.stragglers import StepsFacts
from simlab.spec.fields import documented_fields

Values = Mapping[str, Any]
TRAINING_PER_SPARE = 128
"""The GPUs that train for each one that stands ready, where nothing else is said."""


class Run(RunFacts):
    """A training of months, with its failures."""

    subject: Literal["run"]


class Interval(IntervalFacts):
    """Goodput against the interval between checkpoints."""

    subject: Literal["interval"]


class Stragglers(StepsFacts):
    """Steps of ranks that wait for each other."""

    subject: Literal["stragglers"]
    pauses_apart: float
    pauses_together: float


class Queue(TypedDict):
    """The same jobs, served by each policy."""

    subject: Literal["queue"]
    policies: list[QueueFacts]


class Replan(ReplannedFacts):
    """The ways to go on after a failure."""

    subject: Literal["replan"]
    repair_s: float
    advice: Annotated[str, ("wait", FEWER, ANOTHER)]


class OfCost(Totals):
    """What is said of a cost beside its fields."""

    subject: Literal["cost"]
    spare_gpus: int


Answer = Run | Interval | Stragglers | Queue | Replan | Annotated[dict[str, Any], Cost, OfCost]
Facts = Mapping[str, Any]


def operations(arguments: argparse.Namespace) -> int:
    """Simulate what happens to a training over months, and say what it costs.

    run: failures, spares, checkpoints and goodput; interval: goodput against the interval between
    checkpoints, with Young's and Daly's; stragglers: slow ranks, jitter and pauses; queue: jobs that
    change their size; replan: going on after a failure; cost: the price of a trained token.
    """
    subject = SUBJECTS[arguments.subject]
    refuse_given(
        arguments,
        [name for name in OPTIONS if name not in subject.options],
        f"is an option of other subjects, not of {arguments.subject!r}",
    )
    values = {
        name: OPTIONS[name].default
        if getattr(arguments, name) is None
        else getattr(arguments, name)
        for name in subject.options
    }
    result = subject.answer(values)
    if arguments.json:
        print_json({"subject": arguments.subject, **result})
    else:
        subject.show(result)
    return 0


class Option(NamedTuple):
    """An option of the command."""

    kind: type
    default: Any
    text: str
    choices: tuple[Any, ...] | None = None


class Subject(NamedTuple):
    """Something that the command simulates."""

    options: tuple[str, ...]
    answer: Callable[[Values], Facts]
    show: Callable[[Facts], None]


def add_operations(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `operations`."""
    command.add_argument(
        "subject", choices=tuple(SUBJECTS), metavar="SUBJECT", help="what to simulate"
    )
    for name, one in OPTIONS.items():
        used = ", ".join(subject for subject, its in SUBJECTS.items() if name in its.options)
        has_default = one.default is not None and one.kind is not bool
        default = f"; default {value_text(one.default)}" if has_default else ""
        text = f"{one.text.rstrip('.')} ({used}{default})".replace("%", "%%")
        if one.kind is bool:
            command.add_argument(flag(name), action="store_const", const=True, help=text)
        else:
            metavar = {int: "N", float: "X", str: "NAME"}[one.kind]
            command.add_argument(
                flag(name),
                type=one.kind,
                choices=one.choices,
                metavar=None if one.choices else metavar,
                help=text,
            )
    add_json_options(command, Answer)


def _of_class(cls: type, **instead: str) -> dict[str, Option]:
    """{option: what it is} of the documented fields of a data class, with other names for some."""
    options = {}
    for facts in documented_fields(cls):
        kind = facts.type if facts.type in (int, str, bool) else float
        default = None if facts.default is MISSING else facts.default
        options[instead.get(facts.name, facts.name)] = Option(
            kind, default, facts.doc.partition(". ")[0], facts.choices
        )
    return options


_FLEET, _PLAN = _of_class(Fleet), _of_class(Checkpoints)
_RANKS, _PRICES = _of_class(Disturbance), _of_class(Prices)
_RATE = {
    "failures": Option(str, "llama-3", "a published failure rate and mix", tuple(failure_rates())),
    "per_1000_node_days": Option(
        float, None, "failures in a thousand days of one node, instead of a published rate"
    ),
    "days": Option(float, 54.0, "days of training if nothing went wrong"),
}
_SEED = {"seed": Option(int, 0, "of what happens at random")}
_SEEDS = {"seeds": Option(int, 2, "runs for each interval")}
_STEPS = {
    "ranks": Option(int, 128, "ranks that wait for each other"),
    "steps": Option(int, 1000, "steps to simulate"),
}
_QUEUE = {
    "nodes": _FLEET["nodes"],
    "jobs": Option(int, 40, "jobs that come"),
    "gap_s": Option(float, 1800.0, "mean time between two of them"),
    "work_node_s": Option(float, 28_800.0, "mean work of a job, in seconds of one node"),
    "resize_s": _FLEET["resize_s"],
    "per_doubling": Option(float, 0.95, "efficiency that a job keeps on twice as many nodes"),
}
_REPLAN = {
    "plan": Option(
        str, None, "a plan file with model, cluster and plan, as `simlab plan` writes it"
    ),
    "lost_nodes": Option(int, 1, "nodes that failed"),
    "resize_s": _FLEET["resize_s"],
    "repair_s": _FLEET["repair_s"],
}
_COST = {
    "tokens": Option(float, 15e12, "tokens to train"),
    "tokens_per_s": Option(float, 7e6, "tokens in a second while nothing goes wrong"),
    "gpus": Option(int, 16_384, "GPUs that train"),
    "goodput": Option(float, 0.9, "part of the time that counts"),
    "spare_gpus": Option(
        int, None, f"GPUs that stand ready; without it one for each {TRAINING_PER_SPARE} that train"
    ),
    "kept_bytes": Option(float, 1e14, "bytes of the checkpoints that are kept"),
}
OPTIONS: dict[str, Option] = (
    _RATE | _FLEET | _PLAN | _SEED | _SEEDS | _STEPS | _RANKS | _QUEUE | _REPLAN | _COST | _PRICES
)
"""{option: what it is}; one that several subjects have means the same in all of them."""


def _run(values: Values) -> LongRun:
    if not 0 < values["days"] < inf:
        raise InputError(f"--days {values['days']:g}: give a number above 0")
    per = values["per_1000_node_days"]
    rate = (
        failure_rate(values["failures"])
        if per is None
        else FailureRate(name="given", per_1000_node_days=per)
    )
    return LongRun(
        work_s=values["days"] * DAY_S,
        rate=rate,
        fleet=Fleet(**{name: values[name] for name in _FLEET}),
        checkpoints=Checkpoints(**{name: values[name] for name in _PLAN}),
    )


def _answer_run(values: Values) -> Facts:
    return simulate_run(_run(values), seed=values["seed"]).to_dict()


def _answer_interval(values: Values) -> Facts:
    return interval_study(_run(values), seeds=values["seeds"]).to_dict()


def _answer_stragglers(values: Values) -> Facts:
    what = Disturbance(**{name: values[name] for name in _RANKS})
    if what.slow_by and not what.slow_ranks:  # in Python a sweep over slow ranks may begin at 0
        raise InputError(
            f"--slow-by {what.slow_by:g} without --slow-ranks: say how many ranks are slow, or leave it out"
        )
    steps = synchronous_steps(
        what, ranks=values["ranks"], steps=values["steps"], seed=values["seed"]
    )
    alone, together = pause_slowdown(
        values["ranks"], pause_s=what.pause_s, every=what.pause_every, step_s=what.step_s
    )
    return {**steps.to_dict(), "pauses_apart": alone, "pauses_together": together}


def _answer_queue(values: Values) -> Facts:
    jobs = random_jobs(
        values["jobs"],
        nodes=values["nodes"],
        mean_gap_s=values["gap_s"],
        mean_work_node_s=values["work_node_s"],
        seed=values["seed"],
    )
    served = [
        simulate_queue(
            jobs,
            nodes=values["nodes"],
            policy=policy,
            resize_s=values["resize_s"],
            per_doubling=values["per_doubling"],
        ).to_dict()
        for policy in POLICIES
    ]
    return {"policies": served}


def _answer_replan(values: Values) -> Facts:
    if values["plan"] is None:
        raise InputError("replan needs the plan that runs: give --plan FILE")
    given = read_plan_file(values["plan"], (*PLAN_FIELDS, "model", "cluster", "nodes"))
    for name in ("model", "cluster"):
        if name not in given:
            raise InputError(f"--plan {values['plan']}: it names no {name}")
    plan, cluster = plan_and_cluster(given)
    found = replan(
        sl.load_model(given["model"]),
        plan,
        cluster,
        lost_nodes=values["lost_nodes"],
        resize_s=values["resize_s"],
    )
    repair_s = values["repair_s"]
    return {**found.to_dict(), "repair_s": repair_s, "advice": found.advice(repair_s)}


def _answer_cost(values: Values) -> Facts:
    prices = Prices(**{name: values[name] for name in _PRICES})
    spares = values["spare_gpus"]
    spares = values["gpus"] // TRAINING_PER_SPARE if spares is None else spares
    given = {name: values[name] for name in _COST} | {"spare_gpus": spares}
    return {**training_cost(prices=prices, **given).to_dict(), "spare_gpus": spares}


_RUN = (*_RATE, *_FLEET, *_PLAN)
SUBJECTS = {
    "run": Subject((*_RUN, *_SEED), _answer_run, show_run),
    "interval": Subject((*_RUN, *_SEEDS), _answer_interval, show_interval),
    "stragglers": Subject((*_STEPS, *_RANKS, *_SEED), _answer_stragglers, show_stragglers),
    "queue": Subject((*_QUEUE, *_SEED), _answer_queue, show_queue),
    "replan": Subject(tuple(_REPLAN), _answer_replan, show_replan),
    "cost": Subject((*_COST, *_PRICES), _answer_cost, show_cost),
}
"""{what can be simulated: how}."""
