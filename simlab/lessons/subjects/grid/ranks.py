"""Exercises on the ranks of a grid: what they send (d01), hold (d03), and sum gradients with (b13)."""

from random import Random
from typing import Any

from simlab.analysis.memory import peak_memory
from simlab.cost import OpTimes
from simlab.engine import simulate
from simlab.layer.parameters import stage_parameters
from simlab.lessons.exercise import Exercise
from simlab.lowering.traffic import traffic
from simlab.schedules import generate
from simlab.spec.model import Model
from simlab.spec.plan import Plan

# d01
# ---------------------------------------------------------------------------------------------

SENDER = Model(layers=16, hidden=2048, heads=16, vocab=64, seq=1024)


def _grid(draw: Random) -> dict[str, Any]:
    pp = draw.choice((4, 8))
    tp, layers = draw.choice((1, 2, 4)), SENDER.layers // pp
    return {
        "dp": draw.choice((1, 2, 8)),
        "tp": tp,
        "pp": pp,
        "microbatches": draw.choice((5, 8, 16)),
        "seq": SENDER.seq,
        "hidden": SENDER.hidden,
        "layers": layers,
        "parameters": stage_parameters(SENDER, Plan(tp=tp, pp=pp, microbatches=8), layers),
    }


def _sent(dp: int, tp: int, pp: int, microbatches: int, **_: Any) -> dict[str, float]:
    """As the simulator's lists of the second stage have it."""
    plan = Plan(dp=dp, tp=tp, pp=pp, microbatches=microbatches)
    of_stage = traffic(SENDER, plan)[1]
    return {name: float(getattr(of_stage, name)) for name in ("tp", "pp", "dp")}


def solution_d01(dp, tp, pp, microbatches, seq, hidden, layers, parameters):  # type: ignore[no-untyped-def]
    """Rings over tp and dp, and a part of two messages for each microbatch."""
    state = seq * hidden * 2
    return {
        "tp": microbatches * (layers * 4 * 2 + 2) * (tp - 1) / tp * state,
        "pp": microbatches * 2 * state / tp,
        "dp": 2 * (dp - 1) / dp * parameters * 4,
    }


# d03
# ---------------------------------------------------------------------------------------------


def _place(draw: Random) -> dict[str, Any]:
    p = draw.choice((2, 4, 8))
    return {"p": p, "m": draw.choice((2, 4, 8, 16, 32)), "rank": draw.randrange(p)}


def _held(p: int, m: int, rank: int) -> float:
    """In the simulated trace, a stage being 1/p of the model."""
    trace = simulate(generate("1f1b", p, m), OpTimes(forward_s=0.01, backward_s=0.02))
    return peak_memory(trace)[rank] / p


def solution_d03(p, m, rank):  # type: ignore[no-untyped-def]
    """min(m, p - rank) microbatches of 1/p of the layers."""
    return min(m, p - rank) / p


# b13
# ---------------------------------------------------------------------------------------------


def _ranks(draw: Random) -> dict[str, Any]:
    sizes = {name: draw.choice((1, 2, 4)) for name in ("tp", "cp", "dp", "pp")}
    sizes |= {"tp": draw.choice((2, 4)), "cp": draw.choice((2, 4))}
    count = sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"]
    return {"rank": draw.randrange(count), **sizes}


def _gradient_group(rank: int, tp: int, cp: int, dp: int, pp: int) -> list[int]:
    """The one of the layout that simulator and executor share."""
    plan = Plan(tp=tp, cp=cp, dp=dp, pp=pp, microbatches=8, order="tp-cp-dp-pp")
    return sorted(next(group for group in plan.layout.groups("dp") if rank in group))


def solution_b13(rank, tp, cp, dp, pp):  # type: ignore[no-untyped-def]
    """The same tp and pp coordinate, every cp and dp."""
    t, p = rank % tp, rank // (tp * cp * dp)
    return sorted(t + tp * (c + cp * (d + dp * p)) for c in range(cp) for d in range(dp))


def _dp_only(rank: int, tp: int, cp: int, dp: int, pp: int) -> list[int]:
    t, c, p = rank % tp, rank // tp % cp, rank // (tp * cp * dp)
    return sorted(t + tp * (c + cp * (d + dp * p)) for d in range(dp))


def _with_tp(rank: int, tp: int, cp: int, dp: int, pp: int) -> list[int]:
    stage = tp * cp * dp
    return [*range(rank // stage * stage, rank // stage * stage + stage)]


def _neighbours(rank: int, tp: int, cp: int, dp: int, pp: int) -> list[int]:
    first = rank // (cp * dp) * cp * dp
    return [*range(first, first + cp * dp)]


EXERCISES = [
    Exercise(
        "d01",
        level=3,
        draw=_grid,
        oracle=_sent,
        solution=solution_d01,
        mistakes={
            "forward_only": lambda **case: (
                solution_d01(**case)
                | {
                    "tp": case["microbatches"]
                    * (case["layers"] * 2 * 2 + 2)
                    * (case["tp"] - 1)
                    / case["tp"]
                    * case["seq"]
                    * case["hidden"]
                    * 2
                }
            ),
            "no_gather": lambda **case: (
                solution_d01(**case)
                | {"tp": solution_d01(**case)["tp"] * case["layers"] * 8 / (case["layers"] * 8 + 2)}
            ),
            "whole_messages": lambda **case: (
                solution_d01(**case)
                | {"pp": case["microbatches"] * 2 * case["seq"] * case["hidden"] * 2}
            ),
            "half_gradients": lambda **case: (
                solution_d01(**case)
                | {"dp": 2 * (case["dp"] - 1) / case["dp"] * case["parameters"] * 2}
            ),
        },
        sets=8,
    ),
    Exercise(
        "d03",
        level=1,
        draw=_place,
        oracle=_held,
        solution=solution_d03,
        mistakes={
            "layers_only": lambda p, m, rank: 1 / p,
            "microbatches_only": lambda p, m, rank: min(m, p - rank),
            "gpipe": lambda p, m, rank: m / p,
            "other_end": lambda p, m, rank: min(m, rank + 1) / p,
        },
        sets=10,
    ),
    Exercise(
        "b13",
        level=2,
        draw=_ranks,
        oracle=_gradient_group,
        solution=solution_b13,
        mistakes={"dp_only": _dp_only, "with_tp": _with_tp, "neighbours": _neighbours},
        sets=10,
    ),
]
