"""What lesson 7 asks about data parallelism, executed: predictions, exercises, figures."""

from collections.abc import Sequence
from random import Random
from typing import Any

from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.lowering.traffic import traffic
from simlab.spec.model import Model
from simlab.spec.plan import Plan

SAME = Choice("same", "differs")
PREDICTIONS = [
    Prediction("b01", {"equal": SAME, "unequal": SAME, "batch_norm": SAME}),
    Prediction("b01.change", {"error": Number("%")}),
    Prediction("b03.executed", {"times": Choice("twice", "few", "many")}),
    Prediction("w03.executed", {"saved": Number("%")}),
    Prediction("t1.executed", {"times": Number("x")}),
    Prediction("b02", {"apart": Choice("nothing", "rounding", "percent", "whole")}),
    Prediction("b02.change", {"reduced": Choice("half", "same", "double")}),
    Prediction("t4", {"first": Choice("gather", "update"), "times": Number("x")}),
    Prediction("t4.change", {"times": Number("x")}),
    Prediction("w06.executed", {"gathers": Number()}),
    Prediction("w08", {"states": Number("B")}),
    Prediction("w08.change", {"vanish": Number("%")}),
]


# t4
# ---------------------------------------------------------------------------------------------


def _stage(draw: Random) -> dict[str, Any]:
    return {"zero": draw.randrange(4), "n": draw.choice((2, 4, 8)), "m": draw.choice((1, 3, 4, 8))}


def _sent(zero: int, n: int, m: int) -> float:
    """What the simulator's lists send for one more layer."""
    models = [Model(layers=count, hidden=64, heads=4, vocab=64, seq=64) for count in (1, 2)]
    plan = Plan(dp=n, zero=zero, microbatches=m, precision="fp32")
    sent = [traffic(model, plan)[0].dp for model in models]
    return (sent[1] - sent[0]) / (4 * (models[1].parameters - models[0].parameters))


def solution_t4(zero, n, m):  # type: ignore[no-untyped-def]
    """ZeRO-2 scatters in each backward; ZeRO-3 also gathers twice for each microbatch."""
    return {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[zero] * (n - 1) / n


# w08
# ---------------------------------------------------------------------------------------------

OVERFLOW = 65504.0
"""The largest number of fp16."""


def _training(draw: Random) -> dict[str, Any]:
    tops = [2.0 ** draw.randrange(-6, 1) for _ in range(draw.randrange(24, 40))]
    for at in draw.sample(range(len(tops)), 3):
        tops[at] *= 64
    return {
        "largest": tops,
        "first": 2.0 ** draw.randrange(16, 21),
        "interval": draw.choice((3, 5)),
    }


def _scales(largest: Sequence[float], first: float, interval: int) -> list[float]:
    """From one change of the scale to the next: how long it stays, and how it ends."""
    used: list[float] = []
    scale, at = first, 0
    while at < len(largest):
        ahead = largest[at : at + interval]
        good = next((n for n, top in enumerate(ahead) if top * scale > OVERFLOW), len(ahead))
        overflows = good < len(ahead)
        used += [scale] * (good + overflows)
        at += good + overflows
        scale = scale / 2 if overflows else scale * 2
    return used


def solution_w08(largest, first, interval):  # type: ignore[no-untyped-def]
    """The scale that each step uses; halved by an overflow, doubled after enough good steps."""
    used, scale, good = [], first, 0
    for top in largest:
        used.append(scale)
        if top * scale > 65504:
            scale, good = scale / 2, 0
        else:
            good += 1
            if good == interval:
                scale, good = 2 * scale, 0
    return used


def _never_grows(largest: Sequence[float], first: float, interval: int) -> list[float]:
    return solution_w08(largest, first, len(largest) + 1)


def _keeps_count(largest: Sequence[float], first: float, interval: int) -> list[float]:
    used, scale, good = [], first, 0
    for top in largest:
        used.append(scale)
        if top * scale > OVERFLOW:
            scale = scale / 2
        else:
            good += 1
            if good == interval:
                scale, good = 2 * scale, 0
    return used


def _in_one_step(largest: Sequence[float], first: float, interval: int) -> list[float]:
    used, scale, good = [], first, 0
    for top in largest:
        while top * scale > OVERFLOW:
            scale, good = scale / 2, 0
        used.append(scale)
        good += 1
        if good == interval:
            scale, good = 2 * scale, 0
    return used


def _after_update(largest: Sequence[float], first: float, interval: int) -> list[float]:
    return solution_w08([*largest, 0.0], first, interval)[1:]


EXERCISES = [
    Exercise(
        "t4",
        level=1,
        draw=_stage,
        oracle=_sent,
        solution=solution_t4,
        mistakes={
            "once": lambda zero, n, m: solution_t4(zero, n, 1),
            "gathered_once": lambda zero, n, m: (
                2 * m * (n - 1) / n if zero == 3 else solution_t4(zero, n, m)
            ),
            "whole": lambda zero, n, m: solution_t4(zero, n, m) * n / (n - 1),
            "dp_each": lambda zero, n, m: solution_t4(zero, n, m) * (1 if zero else m),
            "gathers_each": lambda zero, n, m: (
                2 * m * (n - 1) / n if zero == 2 else solution_t4(zero, n, m)
            ),
        },
        sets=12,
        unit="x",
    ),
    Exercise(
        "w08",
        level=2,
        draw=_training,
        oracle=_scales,
        solution=solution_w08,
        mistakes={
            "never_grows": _never_grows,
            "keeps_count": _keeps_count,
            "after_update": _after_update,
            "in_one_step": _in_one_step,
        },
    ),
]
FIGURES = {
    "b01": {"unequal_error": Figure(0.81, 0.05), "batch_norm_error": Figure(0.32, 0.05)},
    "b02": {"apart": Figure(0.078, 0.1), "right_reductions": Figure(1.0, 1e-9)},
    "t4": {"zero_3_times": Figure(1.5, 0.01), "held_by_zero_2": Figure(0.34375, 1e-6)},
    "w08": {"states_bytes": Figure(16.0, 1e-9), "vanish_at_4096": Figure(0.156, 0.05)},
    "b01.change": {"error": Figure(0.0692, 0.2)},
    "b02.change": {"ratio": Figure(1.0, 0.0)},
    "t4.change": {"times": Figure(4.5, 0.005)},
    "w08.change": {"vanish": Figure(0.857, 0.05)},
}
TRIES = {
    "b02.follow_ups.1": """import math

m, rate, w = 4, 0.1, 1.0
gradients = [0.2, 0.4, -0.1, 0.3]
right = w - rate * sum(g / m for g in gradients)
forgotten = w - rate * sum(gradients)
assert math.isclose((w - forgotten) / (w - right), m)  # the step is m times as long""",
    "t4.follow_ups.1": """layers, ranks = 32, 4
held = (layers - 1) / layers / ranks + 1 / layers  # shards of all but one, and that one whole
assert round(held, 2) == 0.27""",
}
