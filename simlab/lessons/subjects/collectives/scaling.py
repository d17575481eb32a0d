"""Exercises on data parallelism's traffic: by ZeRO stage (w06), exposed (d08), efficiency (d10)."""

from random import Random
from typing import Any

from simlab.lessons.exercise import Exercise
from simlab.lowering.traffic import traffic
from simlab.spec.model import Model
from simlab.spec.plan import Plan

# w06
# ---------------------------------------------------------------------------------------------

SMALL = Model(layers=8, hidden=1024, heads=16, vocab=64, seq=64)


def _stages(draw: Random) -> dict[str, Any]:
    return {
        "zero": draw.choice((0, 1, 2, 3, 3)),
        "m": draw.choice((1, 2, 4, 8)),
        "n": draw.choice((2, 4, 8)),
    }


def _psi(zero: int, m: int, n: int) -> float:
    """By what the simulator's lists send, for one more layer: the embedding aside."""
    plan = Plan(dp=n, zero=zero, microbatches=m, precision="fp32")
    return traffic(SMALL, plan)[0].dp / (4 * SMALL.parameters)


def solution_w06(zero, m, n):  # type: ignore[no-untyped-def]
    """Gathers and scatters of a step."""
    return {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[zero] * (n - 1) / n


def zero3_over_dp(plan: Plan) -> float:
    """How many times the bytes of plain data parallelism `plan`'s ZeRO-3 sends, where gradients are as
    wide as parameters, in closed form.

    An all-reduce is a reduce-scatter and an all-gather. Each microbatch has one reduce-scatter, and a
    gather for the forward and, unless parameters stay (`reshard` is False), one for the backward.
    """
    return (3 if plan.reshard else 2) * plan.microbatches / 2


# d08
# ---------------------------------------------------------------------------------------------


def _reduction(draw: Random) -> dict[str, Any]:
    return {
        "reduce_s": draw.choice((0.05, 0.1, 0.2, 0.4)),
        "backward_s": draw.choice((0.06, 0.12, 0.3)),
        "buckets": draw.choice((2, 4, 8, 16)),
    }


def _exposed(reduce_s: float, backward_s: float, buckets: int) -> float:
    """One bucket after the other."""
    free_s = 0.0
    for bucket in range(1, buckets + 1):
        full_s = backward_s * bucket / buckets
        free_s = max(free_s, full_s) + reduce_s / buckets
    return free_s - backward_s


def solution_d08(reduce_s, backward_s, buckets):  # type: ignore[no-untyped-def]
    """The last bucket, or what queues since the first one."""
    return max(reduce_s / buckets, reduce_s - (buckets - 1) / buckets * backward_s)


# d10
# ---------------------------------------------------------------------------------------------


def _steps(draw: Random) -> dict[str, Any]:
    before, step_before = draw.choice((8, 16, 64)), draw.choice((0.5, 1.0, 2.0))
    more, kept = draw.choice((2, 4, 8)), draw.uniform(0.5, 0.95)
    kind = draw.choice(("strong", "weak"))
    step = step_before / kept / (more if kind == "strong" else 1)
    return {
        "kind": kind,
        "gpus_before": before,
        "step_before": step_before,
        "gpus": before * more,
        "step": round(step, 4),
    }


def _efficiency(kind: str, gpus_before: int, step_before: float, gpus: int, step: float) -> float:
    """What a GPU gets done per second, against before."""
    work_before = 1.0 if kind == "strong" else float(gpus_before)
    work = 1.0 if kind == "strong" else float(gpus)
    return (work / step / gpus) / (work_before / step_before / gpus_before)


def solution_d10(kind, gpus_before, step_before, gpus, step):  # type: ignore[no-untyped-def]
    """Strong: the same work by more GPUs. Weak: the same work on each."""
    if kind == "strong":
        return gpus_before * step_before / (gpus * step)
    return step_before / step


def _swapped(kind: str, **case: Any) -> float:
    return _efficiency(kind={"strong": "weak", "weak": "strong"}[kind], **case)


EXERCISES = [
    Exercise(
        "w06",
        level=1,
        draw=_stages,
        oracle=_psi,
        solution=solution_w06,
        mistakes={
            "each_stage_more": lambda zero, m, n: (
                {0: 2, 1: 3, 2: m + 2, 3: 3 * m + 1}[zero] * (n - 1) / n
            ),
            "once_a_step": lambda zero, m, n: {0: 2, 1: 2, 2: m + 1, 3: 3}[zero] * (n - 1) / n,
            "forgot_second": lambda zero, m, n: (
                {0: 2, 1: 2, 2: m + 1, 3: 2 * m}[zero] * (n - 1) / n
            ),
            "whole_ring": lambda zero, m, n: float({0: 2, 1: 2, 2: m + 1, 3: 3 * m}[zero]),
        },
        sets=12,
        unit="x",
    ),
    Exercise(
        "d08",
        level=2,
        draw=_reduction,
        oracle=_exposed,
        solution=solution_d08,
        mistakes={
            "all_hidden": lambda reduce_s, backward_s, buckets: max(0.0, reduce_s - backward_s),
            "no_overlap": lambda reduce_s, backward_s, buckets: reduce_s,
            "last_only": lambda reduce_s, backward_s, buckets: reduce_s / buckets,
            "from_the_start": lambda reduce_s, backward_s, buckets: max(
                reduce_s / buckets, reduce_s - backward_s
            ),
            "both_added": lambda reduce_s, backward_s, buckets: (
                max(0.0, reduce_s - backward_s) + reduce_s / buckets
            ),
        },
        sets=10,
        unit="ms",
        scale=1e3,
    ),
    Exercise(
        "d10",
        level=1,
        draw=_steps,
        oracle=_efficiency,
        solution=solution_d10,
        mistakes={
            "swapped": _swapped,
            "speed_up": lambda **case: _efficiency(**case) * case["gpus"] / case["gpus_before"],
            "upside_down": lambda **case: 1 / _efficiency(**case),
        },
        sets=8,
        unit="%",
        scale=100,
    ),
]
