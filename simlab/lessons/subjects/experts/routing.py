"""Why models are sparse, how a router chooses, and what its choice sends: questions e01 to e04."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import comb
from random import Random
from typing import Any

from simlab.layer.microbatch import visited
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.lowering.traffic import traffic
from simlab.spec.model import Model
from simlab.spec.plan import Plan

PREDICTIONS = [
    Prediction("e01", {"flops": Number("x"), "step": Number("x")}),
    Prediction("e01.change", {"parameters": Number("x"), "active": Number("x")}),
    Prediction("e02", {"plain": Number("x"), "biased": Number("x")}),
    Prediction("e02.change", {"load": Choice("higher", "alike", "lower")}),
    Prediction("e03", {"times": Number("x"), "rows": Number("x")}),
    Prediction("e03.change", {"times": Number("x")}),
    Prediction("e04", {"bytes": Number("B"), "times": Number("x")}),
    Prediction("e04.change", {"times": Number("x")}),
]


# e01
# ---------------------------------------------------------------------------------------------


def _sparse(draw: Random) -> dict[str, Any]:
    layers, hidden = draw.choice((16, 24, 32)), draw.choice((2048, 4096))
    experts = draw.choice((8, 16, 64))
    sizes = {"layers": layers, "hidden": hidden, "experts": experts}
    sizes |= {"chosen": draw.choice((2, 4)), "width": draw.choice((1024, 2048))}
    model = _mixture(**sizes)
    each = model.layer_parameters
    return sizes | {"others": model.parameters - layers * each["mlp"]}


def _mixture(layers: int, hidden: int, experts: int, chosen: int, width: int) -> Model:
    return Model(
        layers=layers,
        hidden=hidden,
        heads=hidden // 128,
        gated_mlp=True,
        bias=False,
        vocab=32_000,
        seq=1024,
        experts=experts,
        experts_per_token=chosen,
        expert_ffn=width,
    )


def _counts(others: int, **sizes: int) -> tuple[int, int]:
    """By the layers that the simulator builds."""
    model = _mixture(**sizes)
    return model.parameters, model.active_parameters


def solution_e01(layers, hidden, experts, chosen, width, others):  # type: ignore[no-untyped-def]
    """An expert is three matrices; a token is computed by a few of them."""
    expert = 3 * hidden * width
    return others + layers * experts * expert, others + layers * chosen * expert


# e02
# ---------------------------------------------------------------------------------------------


def _scored(draw: Random) -> dict[str, Any]:
    experts = draw.choice((6, 8, 10))
    scores = [round(draw.uniform(0.05, 0.95), 2) for _ in range(experts)]
    bias = [round(draw.uniform(-0.6, 0.6), 2) + at / 1000 for at in range(experts)]  # no two alike
    return {"scores": scores, "bias": bias, "k": draw.choice((2, 3))}


Weights = list[tuple[int, float]]


def _chosen(scores: Sequence[float], bias: Sequence[float], k: int) -> Weights:
    """One expert after the other, the best of those that are left."""
    left, taken = {*range(len(scores))}, []
    for _ in range(k):
        taken.append(max(left, key=lambda expert: scores[expert] + bias[expert]))
        left.remove(taken[-1])
    return _weighed(scores, taken, sum(scores[expert] for expert in taken))


def _weighed(scores: Sequence[float], experts: Iterable[int], whole: float) -> Weights:
    return [(expert, scores[expert] / whole) for expert in sorted(experts)]


def solution_e02(scores, bias, k):  # type: ignore[no-untyped-def]
    """The bias decides who is chosen and stays out of the weights."""
    order = sorted(range(len(scores)), key=lambda e: -(scores[e] + bias[e]))[:k]
    whole = sum(scores[e] for e in order)
    return [(e, scores[e] / whole) for e in sorted(order)]


def _by_both(
    scores: Sequence[float], bias: Sequence[float], k: int, whole: float | None = None
) -> Weights:
    """The right experts, with their scores over `whole`; None: with the bias in their weights."""
    taken = [expert for expert, _ in _chosen(scores, bias, k)]
    if whole is None:
        scores = [a + b for a, b in zip(scores, bias)]
        whole = sum(scores[expert] for expert in taken)
    return _weighed(scores, taken, whole)


# e03
# ---------------------------------------------------------------------------------------------


def _shared(draw: Random) -> dict[str, Any]:
    return {
        "n": draw.choice((2, 4, 8)),
        "k": draw.choice((1, 2, 4)),
        "hidden": draw.choice((1024, 2048, 4096)),
    }


def _sent(n: int, k: int, hidden: int) -> dict[str, float]:
    """With the bytes that the simulator's lists send for one more layer, whose attention sends with
    tensor and sequence parallelism as much as its experts do."""
    model = _mixture(layers=1, hidden=hidden, experts=8, chosen=k, width=1024)
    plans = {"tp": Plan(tp=n, sequence_parallel=True), "ep": Plan(dp=n, ep=n)}
    found = {}
    for name, plan in plans.items():
        both = [getattr(traffic(replace(model, layers=L), plan)[0], name) for L in (1, 2)]
        found[name] = n * (both[1] - both[0]) / (plan.dp * model.seq)
    return {"tp": found["tp"] / 2, "ep": found["ep"]}


def solution_e03(n, k, hidden):  # type: ignore[no-untyped-def]
    """Five gathers and scatters of a token over n ranks, against 4 all-to-alls of its k copies."""
    return {"tp": 5 * (n - 1) * 2 * hidden, "ep": 4 * k * (n - 1) / n * 2 * hidden}


# e04
# ---------------------------------------------------------------------------------------------


def _nodes(draw: Random) -> dict[str, Any]:
    return {
        "experts": draw.choice((16, 32)),
        "k": draw.choice((3, 4, 6)),
        "nodes": draw.choice((2, 4)),
    }


def _met(experts: int, k: int, nodes: int) -> float:
    model = _mixture(layers=1, hidden=1024, experts=experts, chosen=k, width=1024)
    return visited(model, nodes)


def solution_e04(experts, k, nodes):  # type: ignore[no-untyped-def]
    """A node is left out where all k experts are among those of the others."""
    left_out = comb(experts - experts // nodes, k) / comb(experts, k)
    return nodes * (1 - left_out)


EXERCISES = [
    Exercise(
        "e01",
        level=1,
        draw=_sparse,
        oracle=_counts,
        solution=solution_e01,
        mistakes={
            "two_matrices": lambda layers, hidden, experts, chosen, width, others: tuple(
                others + layers * n * 2 * hidden * width for n in (experts, chosen)
            ),
            "all_compute": lambda **case: (_counts(**case)[0],) * 2,
            "no_others": lambda others, **case: tuple(
                count - others for count in _counts(others=others, **case)
            ),
            "one_computes": lambda layers, hidden, experts, chosen, width, others: (
                others + layers * experts * 3 * hidden * width,
                others + layers * 3 * hidden * width,
            ),
        },
    ),
    Exercise(
        "e02",
        level=2,
        draw=_scored,
        oracle=_chosen,
        solution=solution_e02,
        mistakes={
            "bias_in_weights": _by_both,
            "no_bias": lambda scores, bias, k: _chosen(scores, [0.0] * len(scores), k),
            "not_normalised": lambda scores, bias, k: _by_both(scores, bias, k, 1.0),
            "over_all": lambda scores, bias, k: _by_both(scores, bias, k, sum(scores)),
        },
        sets=12,
    ),
    Exercise(
        "e03",
        level=2,
        draw=_shared,
        oracle=_sent,
        solution=solution_e03,
        mistakes={
            "forward_only": lambda **case: {name: its / 2 for name, its in _sent(**case).items()},
            "one_copy": lambda n, k, hidden: (
                _sent(n, k, hidden) | {"ep": _sent(n, k, hidden)["ep"] / k}
            ),
            "of_one_rank": lambda n, k, hidden: (
                _sent(n, k, hidden) | {"tp": _sent(n, k, hidden)["tp"] / n}
            ),
            "own_part_sent": lambda n, k, hidden: (
                _sent(n, k, hidden) | {"ep": _sent(n, k, hidden)["ep"] * n / (n - 1)}
            ),
        },
    ),
    Exercise(
        "e04",
        level=3,
        draw=_nodes,
        oracle=_met,
        solution=solution_e04,
        mistakes={
            "one_expert_twice": lambda experts, k, nodes: nodes * (1 - (1 - 1 / nodes) ** k),
            "copies": lambda experts, k, nodes: float(k),
            "all_nodes": lambda experts, k, nodes: float(min(k, nodes)),
        },
        sets=8,
        unit="nodes",
    ),
]

FIGURES = {
    "e01": {
        "flops": Figure(0.532),
        "step": Figure(1.10, 0.03),
        "parameters": Figure(3.63),
    },
    "e01.change": {"parameters": Figure(1.97), "active": Figure(1.0, 0.001)},
    "e02": {
        "plain": Figure(4.86, 0.01),
        "biased": Figure(1.69, 0.01),
        "chance": Figure(1.60, 0.01),
    },
    "e02.change": {"load": Figure(2.99)},
    "e03": {"times": Figure(0.2, 0.01), "step": Figure(0.58, 0.03)},
    "e03.change": {"times": Figure(0.8, 0.01)},
    "e04": {"bytes": Figure(384, 0.001), "times": Figure(2.20)},
    "e04.change": {"times": Figure(0.55)},
}
