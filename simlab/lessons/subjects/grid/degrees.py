"""Exercises on choosing degrees: the most GPUs (d02), how a figure was counted (b15), microbatches (w13)."""

from itertools import pairwise
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


def _figures(
    parameters: int,
    lookup: int,
    layers: int,
    hidden: int,
    seq: int,
    *,
    attention: float = 4,
    again: float = 4,
) -> dict[str, float]:
    """{way: FLOPs of a token}, by forwards. attention: a forward's, times layers · hidden · seq; again:
    how many forwards a step is worth that computes its forward anew."""
    products, scores = 2 * (parameters - lookup), attention * layers * hidden * seq
    return {
        "6P": 3 * 2 * parameters,
        "matrices": 3 * products,
        "causal": 3 * (products + scores / 2),
        "full": 3 * (products + scores),
        "hardware": again * (products + scores),
    }


def _stated(draw: Random) -> dict[str, Any]:
    """A run whose five figures are all at least 3% apart, and one of them, as it would be printed."""
    while True:
        hidden, seq = draw.choice((1024, 2048, 4096)), draw.choice((2048, 8192, 16384))
        heads, vocab = hidden // 128, draw.choice((32_000, 128_256))
        model = Model(
            layers=draw.choice((16, 32)), hidden=hidden, heads=heads, vocab=vocab, seq=seq
        )
        multiplying = (model.flops_per_token(1) - 12 * model.layers * hidden) / 6
        sizes = {
            "parameters": model.parameters,
            "lookup": round(model.parameters - multiplying),
            "layers": model.layers,
            "hidden": hidden,
            "seq": seq,
        }
        figures = _figures(**sizes)
        ordered = sorted(figures.values())
        if min(more / less for less, more in pairwise(ordered)) > 1.03:
            break
    rate = round(draw.uniform(0.4, 0.6) * 989e12 / figures["hardware"])
    way = draw.choice([*figures, "hardware"])
    return {"mfu": round(figures[way] * rate / 989e12, 3), "rate": rate, "peak": 989e12} | sizes


def _way(
    mfu: float, rate: float, peak: float, *, again: float = 4, attention: float = 4, **sizes: int
) -> str:
    """From the FLOPs that the stated figure gives a token."""
    of_a_token = mfu * peak / rate
    figures = _figures(**sizes, attention=attention, again=again)
    return min(figures, key=lambda way: abs(figures[way] - of_a_token))


def solution_b15(mfu, rate, peak, parameters, lookup, layers, hidden, seq):  # type: ignore[no-untyped-def]
    """Each way's utilisation: the nearest one is what was counted."""
    matrices, attention = 6 * (parameters - lookup), 12 * layers * hidden * seq
    ways = {
        "6P": 6 * parameters,
        "matrices": matrices,
        "causal": matrices + attention / 2,
        "full": matrices + attention,
        "hardware": (matrices + attention) * 4 / 3,
    }
    return min(ways, key=lambda way: abs(ways[way] * rate / peak - mfu))


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
        version=2,
        level=2,
        draw=_stated,
        oracle=_way,
        solution=solution_b15,
        mistakes={
            "with_lookup": lambda lookup, **case: _way(lookup=0, **case),
            "forward_only": lambda **case: _way(**case, attention=4 / 3),
            "never_hardware": lambda **case: _way(**case, again=6),
            "always_full": lambda **case: "full",
        },
        sets=16,
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
