"""Deployment (d20) and the comparison with a brain (d22): nodes that differ, what a token costs, and what
spare nodes, smaller trainings and new plans are worth."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.operations import (
    Checkpoints,
    Fleet,
    LongRun,
    Prices,
    mean_goodput,
    training_cost,
)
from simlab.operations.doctor import Machine, findings
from simlab.operations.rates import DAY_S

PREDICTIONS = [
    Prediction(
        "d20",
        {
            "alone": Number(),
            "dearer": Number("%"),
            "most": Choice("failures", "checkpoints", "spares"),
        },
    ),
    Prediction("d20.change", {"ratio": Number("x"), "cheaper": Choice("h100", "a100")}),
    Prediction("d22", {"lost": Number("%"), "best": Choice("wait", "spare", "shrink")}),
    Prediction("d22.plastic", {"speed": Number("%"), "from": Number("min")}),
    Prediction("d22.change", {"work": Number("%"), "best": Choice("wait", "spare")}),
]

# d20: what is planted in nodes, and the cheapest plan in time
# ---------------------------------------------------------------------------------------------


def unlike_nodes(here: Machine) -> list[Machine]:
    """Four nodes like `here`, of which three differ in one thing each: rank 1 has another torch, rank 2
    another variable of NCCL, rank 3 multiplies in TF32."""
    versions = {**here.versions, "torch": "2.9.1"}
    variables = {**here.environment, "NCCL_ALGO": "Ring"}
    usual = replace(here, versions=versions, torch={"tf32": False}, environment=variables)
    return [
        usual,
        replace(usual, versions=versions | {"torch": "2.9.0"}),
        replace(usual, environment=variables | {"NCCL_ALGO": "Tree"}),
        replace(usual, torch={"tf32": True}),
    ]


def found_alone(nodes: Sequence[Machine]) -> int:
    """How many nodes show something on their own that the first one does not show."""
    levels = [[one.level for one in findings(node)] for node in nodes]
    return sum(its != levels[0] for its in levels)


Offer = tuple[float, int, int, float, float]
"""(tokens/s, GPUs, spare GPUs, goodput, price of a GPU for an hour)."""


def _offers(draw: Random) -> dict[str, Any]:
    plans = {}
    for name in "ABCD":
        gpus = draw.choice((64, 128, 256, 512))
        speed = gpus * draw.uniform(2000, 5000)
        spares, goodput = draw.choice((0, 8, 16, 32)), draw.uniform(0.7, 0.99)
        plans[name] = (speed, gpus, spares, goodput, draw.choice((1.0, 1.5, 2.0, 3.0)))
    return {"plans": plans, "tokens": 1e12, "days": draw.choice((8, 15, 25, 60))}


def _cheapest(
    plans: Mapping[str, Offer],
    tokens: float,
    days: float,
    *,
    in_time: bool = True,
    broken: bool = True,
    ready: bool = True,
    by_time: bool = False,
) -> str | None:
    """The cheapest plan that ends in time, None if none does."""
    costs = {
        name: training_cost(
            tokens=tokens,
            tokens_per_s=speed,
            gpus=gpus,
            spare_gpus=spares * ready,
            goodput=goodput if broken else 1.0,
            prices=Prices(gpu_hour=gpu_hour),
        )
        for name, (speed, gpus, spares, goodput, gpu_hour) in plans.items()
    }
    fit = {name: its for name, its in costs.items() if its.wall_s <= days * DAY_S or not in_time}
    return min(fit, key=lambda name: fit[name].wall_s if by_time else fit[name].total, default=None)


def solution_d20(plans, tokens, days):  # type: ignore[no-untyped-def]
    """The seconds of each plan with its failures, then what all its GPUs cost for so long."""
    best = None
    for name, (speed, gpus, spares, goodput, gpu_hour) in plans.items():
        seconds = tokens / (speed * goodput)
        cost = seconds / 3600 * (gpus + spares) * gpu_hour
        if seconds <= days * 86_400 and (best is None or cost < best[0]):
            best = (cost, name)
    return best and best[1]


# d22: a training over months, and what a lost node costs until it is back
# ---------------------------------------------------------------------------------------------


def months(nodes: int, spares: int, dropped: int = 0) -> LongRun:
    """180 days of work on `nodes` nodes that fail as Llama 3's did and take a day to repair.

    dropped: how many nodes one replica has, which the training drops where no spare is left; 0
             waits for the repair.
    """
    fleet = Fleet(
        nodes=nodes,
        spares=spares,
        repair_s=DAY_S,
        short_of_nodes="shrink" if dropped else "wait",
        replica_nodes=dropped or 1,
        resize_s=600.0,
    )
    plan = Checkpoints(interval_s=3600.0, stall_s=20.0, load_s=60.0)
    return LongRun(work_s=180 * DAY_S, fleet=fleet, checkpoints=plan)


def work_per_node(nodes: int, spares: int, dropped: int = 0, *, seeds: int = 8) -> float:
    """What of the time of all nodes, the spare ones too, is training that counts."""
    goodput, _ = mean_goodput(months(nodes, spares, dropped), seeds=seeds)
    return goodput * nodes / (nodes + spares)


def _loss(draw: Random) -> dict[str, Any]:
    return {
        "speeds": [draw.uniform(0.3, 0.95) for _ in range(draw.randrange(1, 4))],
        "repair_s": float(draw.choice((300, 900, 1800, 3600, 86_400))),
        "restart_s": float(draw.choice((120, 600, 1200))),
    }


def _lost_s(speeds: Sequence[float], repair_s: float, restart_s: float) -> float:
    """Waiting loses the repair and a restart; the fastest way trains at its speed between two."""
    return repair_s + restart_s - max(speeds) * max(0.0, repair_s - restart_s)


def _going_on_s(
    speeds: Sequence[float], repair_s: float, restart_s: float, *, restarts: int = 2
) -> float:
    """What the fastest way loses up to the node's return, and in its restarts."""
    return restarts * restart_s + (1 - max(speeds)) * (repair_s - restart_s)


def solution_d22(speeds, repair_s, restart_s):  # type: ignore[no-untyped-def]
    """Waiting loses the repair and a restart; going on two restarts, and between them what it is slower by."""
    waiting = repair_s + restart_s
    going_on = 2 * restart_s + (1 - max(speeds)) * (repair_s - restart_s)
    return min(waiting, going_on)


EXERCISES = [
    Exercise(
        "d20",
        level=2,
        draw=_offers,
        oracle=_cheapest,
        solution=solution_d20,
        mistakes={
            "fastest": partial(_cheapest, by_time=True),
            "too_late": partial(_cheapest, in_time=False),
            "unbroken": partial(_cheapest, broken=False),
            "no_spares": partial(_cheapest, ready=False),
        },
        sets=40,
    ),
    Exercise(
        "d22",
        level=1,
        draw=_loss,
        oracle=_lost_s,
        solution=solution_d22,
        mistakes={
            "waits_free": lambda speeds, repair_s, restart_s: min(
                repair_s, _going_on_s(speeds, repair_s, restart_s)
            ),
            "once": lambda speeds, repair_s, restart_s: min(
                repair_s + restart_s, _going_on_s(speeds, repair_s, restart_s, restarts=1)
            ),
            "always": _going_on_s,
        },
        sets=16,
        unit="min",
        scale=1 / 60,
    ),
]

FIGURES = {
    "d20": {"faster": Figure(5.93), "dearer_percent": Figure(24.6)},
    "d20.change": {"ratio": Figure(1.36), "even": Figure(0.73, 0.02)},
    "d22.change": {"spare_percent": Figure(93.4, 0.01), "waiting_percent": Figure(94.3, 0.01)},
    "d22": {"lost_percent": Figure(19.1, 0.1), "speed_percent": Figure(80.2)},
}

TRIES = {
    "d20.follow_ups.1": """\
from simlab.operations import Prices, training_cost

run = {"tokens": 2e12, "tokens_per_s": 3.2e5, "gpus": 64}
for goodput, spares in ((0.97, 0), (0.99, 8)):
    cost = training_cost(**run, goodput=goodput, spare_gpus=spares, prices=Prices(gpu_hour=2.0))
    print(f"{spares} spare GPUs, goodput {goodput:.0%}: {cost.per_million_tokens:.4f} per million tokens")
assert cost.spares > 0.1 * cost.total  # the idle node costs more than the failures that it shortens""",
    "d22.follow_ups.1": """\
from simlab.operations import Disturbance, synchronous_steps

for slow_ranks in (0, 1, 64):
    slow = Disturbance(step_s=10.0, slow_ranks=slow_ranks, slow_by=0.2)
    steps = synchronous_steps(slow, ranks=64, steps=100)
    print(f"{slow_ranks} slow of 64: {steps.mean_s:.1f} s")
    assert abs(steps.mean_s - (12 if slow_ranks else 10)) < 1e-9""",
}
