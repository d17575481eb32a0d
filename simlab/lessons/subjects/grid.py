"""What lesson 6 asks about 3D parallelism: predictions, exercises, figures."""

from random import Random
from typing import Any

from simlab.analysis.memory import peak_memory
from simlab.cost import OpTimes
from simlab.engine import simulate
from simlab.errors import InputError
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.lowering.traffic import traffic
from simlab.schedules import generate
from simlab.spec.model import Model
from simlab.spec.parameters import stage_parameters
from simlab.spec.plan import Plan

MOVED = Choice("higher", "same", "lower")
PREDICTIONS = [
    Prediction("d01", {"tp": Number(), "send": Number(), "dp": Number()}),
    Prediction("d01.change", {"tp": Number(), "dp": Number()}),
    Prediction("d03", {"factor": Number("x")}),
    Prediction("d03.change", {"factor": Number("x")}),
    Prediction("b13", {"ranks": Number("ranks"), "worst": Number("x")}),
    Prediction("b13.change", {"worst": Number("x")}),
    Prediction("d02", {"llama-3-70b": Number("x"), "llama-2-7b": Number("x")}),
    Prediction("d02.change", {"times": Number("x")}),
    Prediction("b15", {"length": Number("tokens"), "small": Number("x")}),
    Prediction("b15.change", {"mfu": MOVED, "hfu": MOVED}),
    Prediction("w13", {"step": Number("x"), "sample": Number("x"), "zero3": Number("x")}),
    Prediction("w13.change", {"zero1": Number("x"), "zero3": Number("x")}),
]

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


# d02
# ---------------------------------------------------------------------------------------------


def _limits(draw: Random) -> dict[str, Any]:
    return {
        "kind": draw.choice(("dp", "tp", "pp")),
        "sequences": draw.choice((24, 48, 96, 160)),
        "heads": draw.choice((12, 40, 48, 96)),
        "layers": draw.choice((12, 24, 40, 80)),
    }


def _most_gpus(kind: str, sequences: int, heads: int, layers: int) -> int:
    """By trying which plans the simulator takes."""
    model = Model(layers=layers, hidden=heads * 64, heads=heads, vocab=256, seq=64)

    def runs(n: int) -> bool:
        if kind == "dp":
            return sequences % n == 0
        try:
            Plan(**{kind: n}, microbatches=sequences).check(model)  # type: ignore[arg-type]
        except InputError:
            return False
        return True

    return max(n for n in (2**k for k in range(9)) if runs(n))


def solution_d02(kind, sequences, heads, layers):  # type: ignore[no-untyped-def]
    """The largest power of two that divides what the dimension divides."""
    n = {"dp": sequences, "tp": heads, "pp": layers}[kind]
    return n & -n


# b15
# ---------------------------------------------------------------------------------------------


def _model(draw: Random) -> dict[str, Any]:
    hidden = draw.choice((2048, 4096))
    model = Model(
        layers=draw.choice((16, 32)),
        hidden=hidden,
        heads=hidden // 128,
        vocab=draw.choice((32_000, 128_256)),
        seq=4096,
    )
    multiplying = (model.flops_per_token(1) - 12 * model.layers * hidden) / 6
    return {
        "times": draw.choice((1.5, 2.0, 3.0)),
        "parameters": model.parameters,
        "lookup": round(model.parameters - multiplying),
        "layers": model.layers,
        "hidden": hidden,
    }


def _length(times: float, parameters: int, lookup: int, layers: int, hidden: int) -> float:
    """By bisection of the operations, matrices and attention apart."""
    low, high = 1.0, 1e9
    for _ in range(80):
        middle = (low + high) / 2
        done = 6 * (parameters - lookup) + 3 * layers * 2 * 2 * hidden * middle
        low, high = (middle, high) if done < times * 6 * parameters else (low, middle)
    return low


def solution_b15(times, parameters, lookup, layers, hidden):  # type: ignore[no-untyped-def]
    """6 per parameter that multiplies, 12 L h s for attention."""
    missing = times * 6 * parameters - 6 * (parameters - lookup)
    return missing / (12 * layers * hidden)


# w13
# ---------------------------------------------------------------------------------------------


def _once(draw: Random) -> dict[str, Any]:
    forward_s = draw.choice((0.02, 0.05, 0.1))
    return {
        "p": draw.choice((2, 4, 8)),
        "forward_s": forward_s,
        "backward_s": 2 * forward_s,
        "reduce_s": draw.choice((0.25, 0.7, 1.3)),
        "share": draw.choice((0.1, 0.15, 0.25)),
    }


def _fewest(p: int, forward_s: float, backward_s: float, reduce_s: float, share: float) -> int:
    """By bisection over simulated steps, with the all-reduce behind them."""
    times = OpTimes(forward_s=forward_s, backward_s=backward_s)

    def enough(m: int) -> bool:
        useful_s = m * (forward_s + backward_s)
        step_s = simulate(generate("1f1b", p, m), times).step_s + reduce_s
        return step_s - useful_s <= share * useful_s * (1 + 1e-9)

    low, high = 0, 512
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def solution_w13(p, forward_s, backward_s, reduce_s, share):  # type: ignore[no-untyped-def]
    """What is paid once per step, over what a microbatch may carry of it."""
    useful_s = forward_s + backward_s
    once_s = (p - 1) * useful_s + reduce_s
    return -int(-(once_s / (share * useful_s) - 1e-9) // 1)


def _rounded_up(number: float) -> int:
    return -int(-(number - 1e-9) // 1)


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
    Exercise(
        "d02",
        level=1,
        draw=_limits,
        oracle=_most_gpus,
        solution=solution_d02,
        mistakes={
            "itself": lambda kind, sequences, heads, layers: {
                "dp": sequences,
                "tp": heads,
                "pp": layers,
            }[kind],
            "below": lambda kind, sequences, heads, layers: (
                1 << ({"dp": sequences, "tp": heads, "pp": layers}[kind].bit_length() - 1)
            ),
            "product": lambda kind, sequences, heads, layers: (
                (sequences & -sequences) * (heads & -heads) * (layers & -layers)
            ),
        },
        sets=10,
    ),
    Exercise(
        "b15",
        level=2,
        draw=_model,
        oracle=_length,
        solution=solution_b15,
        mistakes={
            "with_lookup": lambda times, parameters, lookup, layers, hidden: (
                (times - 1) * 6 * parameters / (12 * layers * hidden)
            ),
            "forward_only": lambda **case: 3 * solution_b15(**case),
            "causal_half": lambda **case: 2 * solution_b15(**case),
            "only_attention": lambda times, parameters, lookup, layers, hidden: (
                times * 6 * parameters / (12 * layers * hidden)
            ),
        },
        sets=8,
        unit="tokens",
    ),
    Exercise(
        "w13",
        level=2,
        draw=_once,
        oracle=_fewest,
        solution=solution_w13,
        mistakes={
            "bubble_only": lambda p, forward_s, backward_s, reduce_s, share: _rounded_up(
                (p - 1) / share
            ),
            "reduce_only": lambda p, forward_s, backward_s, reduce_s, share: _rounded_up(
                reduce_s / (share * (forward_s + backward_s))
            ),
            "of_the_step": lambda p, forward_s, backward_s, reduce_s, share: _rounded_up(
                ((p - 1) + reduce_s / (forward_s + backward_s)) * (1 - share) / share
            ),
            "forwards_only": lambda p, forward_s, backward_s, reduce_s, share: _rounded_up(
                ((p - 1) * forward_s + reduce_s) / (share * (forward_s + backward_s))
            ),
            "rounded_down": lambda p, forward_s, backward_s, reduce_s, share: int(
                ((p - 1) + reduce_s / (forward_s + backward_s)) / share
            ),
        },
        same=lambda found, expected: found == expected,
        sets=10,
        unit="microbatches",
    ),
]

FIGURES = {
    "d01": {"tp_calls": Figure(337, 0.0), "messages": Figure(16, 0.0), "dp_calls": Figure(10, 0.0)},
    "d03": {"activations_1_over_8": Figure(1.04, 0.02)},
    "b13": {"ranks_per_gradient": Figure(8, 0.0), "worst_over_best": Figure(1.50, 0.1)},
    "d02": {"pure_over_mix_70b": Figure(1.08, 0.05), "pure_over_mix_7b": Figure(1.0, 0.05)},
    "b15": {
        "mfu": Figure(0.5546, 0.05),
        "hfu": Figure(0.7294, 0.05),
        "tokens_twice": Figure(32_638, 0.001),
    },
    "w13": {
        "pipeline_step": Figure(2.67, 0.02),
        "pipeline_sample": Figure(0.667, 0.02),
        "zero3_sample": Figure(0.999, 0.005),
    },
    "d01.change": {"dp_calls": Figure(10, 0.0)},
    "d03.change": {"factor": Figure(6.91, 0.02)},
    "w13.change": {"zero1": Figure(3.51, 0.05), "zero3": Figure(1.0, 0.02)},
}

TRIES = {
    "w13.follow_ups.1": """\
losses = [[2.0] * 100, [8.0] * 10]  # of each token, in two microbatches
tokens = [loss for microbatch in losses for loss in microbatch]
whole = sum(tokens) / len(tokens)
mean_of_means = sum(sum(each) / len(each) for each in losses) / len(losses)
by_tokens = sum(sum(each) / len(tokens) for each in losses)
print(f"one batch {whole:.2f}, each divided by m {mean_of_means:.2f}, by all tokens {by_tokens:.2f}")
assert abs(by_tokens - whole) < 1e-12 and abs(mean_of_means - whole) > 2
""",
    "w13.follow_ups.2": """\
from dataclasses import replace

import simlab as sl

model, cluster = sl.load_model("llama-2-13b"), sl.load_cluster("dgx-a100", nodes=4)
plans = {
    "dp 2, tp 4, pp 4": sl.Plan(dp=2, tp=4, pp=4, microbatches=16),
    "dp 8, tp 4, ZeRO-1": sl.Plan(dp=8, tp=4, zero=1, microbatches=16),
    "dp 32, ZeRO-3": sl.Plan(dp=32, zero=3, microbatches=16),
}
times = []
for name, plan in plans.items():
    fewer = replace(plan, microbatch_size=2, microbatches=8)  # the same batch
    steps = [sl.predict(model, one, cluster).step_s for one in (plan, fewer)]
    times.append(steps[1] / steps[0])
    print(f"{name}: 8 microbatches of 2 take {times[-1]:.2f} times as long as 16 of 1")
assert times[0] > 1.05 and max(times[1:]) < 1
""",
    "d02.follow_ups.3": """\
from itertools import product

powers = [2**k for k in range(10)]
plans = [(dp, tp, pp) for dp, tp, pp in product(powers, repeat=3) if dp * tp * pp == 512]
options = 4 * 3 * 4 * 6  # ZeRO stages, recomputation, microbatch sizes, schedules
print(f"{len(plans)} grids, {len(plans) * options:,} plans")
assert len(plans) * options > 10_000
""",
}
