"""Exercises on choosing degrees: the most GPUs (d02), long sequences (b15), microbatches (w13)."""

from random import Random
from typing import Any

from simlab.cost import OpTimes
from simlab.engine import simulate
from simlab.errors import InputError
from simlab.lessons.exercise import Exercise
from simlab.schedules import generate
from simlab.spec.model import Model
from simlab.spec.plan import Plan

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


EXERCISES = [
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
        sets=24,
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
            "both_sides": lambda times, parameters, lookup, layers, hidden: (
                (times - 1) * 6 * (parameters - lookup) / (12 * layers * hidden)
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
            "bubble_only": lambda p, forward_s, backward_s, reduce_s, share: (p - 1) / share,
            "reduce_only": lambda p, forward_s, backward_s, reduce_s, share: (
                reduce_s / (share * (forward_s + backward_s))
            ),
            "of_the_step": lambda p, forward_s, backward_s, reduce_s, share: (
                ((p - 1) + reduce_s / (forward_s + backward_s)) * (1 - share) / share
            ),
            "forwards_only": lambda p, forward_s, backward_s, reduce_s, share: (
                ((p - 1) * forward_s + reduce_s) / (share * (forward_s + backward_s))
            ),
            "all_stages": lambda p, forward_s, backward_s, reduce_s, share: (
                (p + reduce_s / (forward_s + backward_s)) / share
            ),
            "rounded_down": lambda p, forward_s, backward_s, reduce_s, share: int(
                ((p - 1) + reduce_s / (forward_s + backward_s)) / share
            ),
        },
        sets=10,
        unit="microbatches",
    ),
]
