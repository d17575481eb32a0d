"""What lesson 5 asks about tensor and context parallelism: predictions, exercises, figures."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Number, Prediction
from simlab.lowering.context import ring_work
from simlab.lowering.traffic import crossing, traffic
from simlab.spec.model import Model
from simlab.spec.plan import Plan

PREDICTIONS = [
    Prediction("w10", {"NVLink": Number("%"), "network": Number("%")}),
    Prediction("w10.change", {"share": Number("%")}),
    Prediction("b04", {"tokens": Number("tokens")}),
    Prediction("b04.change", {"tokens": Number("tokens")}),
    Prediction("t5", {"times": Number("x")}),
    Prediction("t5.change", {"times": Number("x")}),
    Prediction("b10", {"times": Number("x")}),
    Prediction("b10.change", {"times": Number("x")}),
]
HEAD = 64


def _gpt(layers: int, hidden: int) -> Model:
    return Model(layers=layers, hidden=hidden, heads=hidden // HEAD, vocab=64, seq=1024)


# w10
# ---------------------------------------------------------------------------------------------


def _chips(draw: Random) -> dict[str, Any]:
    return {
        "n": draw.choice((2, 4, 8)),
        "hidden": draw.choice((2048, 4096, 8192)),
        "link": draw.choice((25e9, 50e9, 450e9)),
        "peak": draw.choice((312e12, 989e12)),
    }


def _ratio(n: int, hidden: int, link: float, peak: float) -> float:
    """With the bytes that the simulator's lists send for one more layer."""
    sent = [traffic(_gpt(layers, hidden), Plan(tp=n))[0].tp for layers in (1, 2)]
    sent_s = (sent[1] - sent[0]) / 1024 / link
    return sent_s / (3 * 2 * 12 * hidden**2 / (n * peak))


def solution_w10(n, hidden, link, peak):  # type: ignore[no-untyped-def]
    """Four all-reduces of a token's hidden state against three forwards' products."""
    sent_s = 4 * 2 * (n - 1) / n * 2 * hidden / link
    computed_s = 3 * 24 * hidden**2 / (n * peak)
    return sent_s / computed_s


# b04
# ---------------------------------------------------------------------------------------------


def _sizes(draw: Random) -> dict[str, Any]:
    return {
        "layers": draw.choice((16, 24, 40)),
        "hidden": draw.choice((2048, 4096, 5120)),
        "gradient_bytes": draw.choice((2, 4)),
    }


def _crossover(layers: int, hidden: int, gradient_bytes: int) -> float:
    """By what the simulator's lists send, for one more layer of each."""
    data = [
        traffic(_gpt(count, hidden), Plan(dp=4, gradient_bytes=gradient_bytes))[0].dp
        for count in (1, 2)
    ]
    tensor = [traffic(_gpt(count, hidden), Plan(tp=4))[0].tp / 1024 for count in (1, 2)]
    return (data[1] - data[0]) / (tensor[1] - tensor[0])


def solution_b04(layers, hidden, gradient_bytes):  # type: ignore[no-untyped-def]
    """12 L h² gradients against 8 L h bytes a token: the layers cancel."""
    return gradient_bytes * 12 * hidden / 8


# t5
# ---------------------------------------------------------------------------------------------


def _numbering(draw: Random) -> dict[str, Any]:
    sizes = {name: draw.choice((1, 2, 4, 8)) for name in ("tp", "dp", "pp")}
    order = draw.sample(("tp", "dp", "pp"), 3)
    return {"order": order, "sizes": sizes, "node": 8}


def _crossing(order: Sequence[str], sizes: Mapping[str, int], node: int) -> set[str]:
    """By the layout that the simulator and the executor use."""
    tp, dp, pp = sizes["tp"], sizes["dp"], sizes["pp"]
    plan = Plan(tp=tp, dp=dp, pp=pp, microbatches=8, order="-".join(["cp", *order]))
    parts = crossing(plan, node)
    return {name for name in order if sizes[name] > 1 and getattr(parts, name) > 0}


def solution_t5(order, sizes, node):  # type: ignore[no-untyped-def]
    """A group reaches stride times its size."""
    stride, found = 1, set()
    for name in order:
        if sizes[name] > 1 and stride * sizes[name] > node:
            found.add(name)
        stride *= sizes[name]
    return found


def _by_stride(order: Sequence[str], sizes: Mapping[str, int], node: int) -> set[str]:
    stride, found = 1, set()
    for name in order:
        if sizes[name] > 1 and stride >= node:
            found.add(name)
        stride *= sizes[name]
    return found


def _with_groups_of_one(order: Sequence[str], sizes: Mapping[str, int], node: int) -> set[str]:
    stride, found = 1, set()
    for name in order:
        stride *= sizes[name]
        if stride > node:
            found.add(name)
    return found


def _with_full_nodes(order: Sequence[str], sizes: Mapping[str, int], node: int) -> set[str]:
    stride, found = 1, set()
    for name in order:
        stride *= sizes[name]
        if sizes[name] > 1 and stride >= node:
            found.add(name)
    return found


# b10
# ---------------------------------------------------------------------------------------------


def _balanced(found: Any, expected: Any) -> bool:
    """Whether a deal holds every chunk once, with as little for the busiest as the expected one."""
    try:
        pairs = [tuple(pair) for pair in found]
        wanted = [tuple(pair) for pair in expected]
        chunks = sorted(chunk for pair in pairs for chunk in pair)
        work = [sum(2 * chunk + 1 for chunk in pair) for pair in pairs]
    except TypeError:
        return False
    if pairs == wanted:
        return True
    most = max(sum(2 * chunk + 1 for chunk in pair) for pair in wanted)
    least = 2 * len(wanted) * 2 * len(wanted) // len(wanted)
    return most == least and chunks == [*range(2 * len(wanted))] and max(work) == most


def _deal_fault(found: Any, cp: int) -> str:
    """A chunk that is held twice or by nobody, or ranks with unequal sums."""
    try:
        pairs = [(first, second) for first, second in found]
        unequal = len({first + second for first, second in pairs}) > 1
    except (TypeError, ValueError):
        return "no_pairs"
    once = sorted(chunk for pair in pairs for chunk in pair) == [*range(2 * cp)]
    return ("striped" if unequal else "") if once else "copies"


def _deal(cp: int) -> list[tuple[int, int]]:
    """The zigzag deal, held against the simulator's work of a ring."""
    deal = [(rank, 2 * cp - 1 - rank) for rank in range(cp)]
    most = max(map(sum, ring_work(cp, "zigzag"))) * (2 * cp) ** 2
    assert max(sum(2 * chunk + 1 for chunk in pair) for pair in deal) == most
    return deal


def solution_b10(cp):  # type: ignore[no-untyped-def]
    """An early chunk with a late one: all sums are alike."""
    return [(rank, 2 * cp - 1 - rank) for rank in range(cp)]


EXERCISES = [
    Exercise(
        "w10",
        level=2,
        draw=_chips,
        oracle=_ratio,
        solution=solution_w10,
        mistakes={
            "whole_work": lambda n, **case: _ratio(n=n, **case) / n,
            "forward_only": lambda **case: 3 * _ratio(**case),
            "fp32": lambda **case: 2 * _ratio(**case),
            "two_all_reduces": lambda **case: _ratio(**case) / 2,
            "whole_ring": lambda n, **case: _ratio(n=n, **case) * n / (n - 1),
        },
    ),
    Exercise(
        "b04",
        level=1,
        draw=_sizes,
        oracle=_crossover,
        solution=solution_b04,
        mistakes={
            "always_fp32": lambda layers, hidden, gradient_bytes: 6 * hidden,
            "forward_only": lambda **case: 2 * _crossover(**case),
            "per_layer": lambda layers, hidden, gradient_bytes: (
                layers * gradient_bytes * 12 * hidden / 8
            ),
        },
        sets=8,
        unit="tokens",
    ),
    Exercise(
        "t5",
        level=2,
        draw=_numbering,
        oracle=_crossing,
        solution=solution_t5,
        mistakes={
            "by_size": lambda order, sizes, node: {n for n in order if sizes[n] > node},
            "backwards": lambda order, sizes, node: solution_t5(order[::-1], sizes, node),
            "by_stride": _by_stride,
            "size_one": _with_groups_of_one,
            "full_node": _with_full_nodes,
        },
        sets=20,
    ),
    Exercise(
        "b10",
        level=1,
        draw=lambda draw: {"cp": draw.choice((2, 3, 4, 8))},
        oracle=_deal,
        solution=solution_b10,
        mistakes={
            "contiguous": lambda cp: [(2 * rank, 2 * rank + 1) for rank in range(cp)],
            "striped": lambda cp: [(rank, rank + cp) for rank in range(cp)],
            "copies": lambda cp: [(0, 2 * cp - 1)] * cp,
            "no_pairs": lambda cp: [*range(2 * cp)],
        },
        fault=_deal_fault,
        same=_balanced,
    ),
]

FIGURES = {
    "w10": {"nvlink_share": Figure(0.218), "network_share": Figure(0.731)},
    "w10.change": {"share": Figure(0.310)},
    "b04": {"crossover_tokens": Figure(30_633, 0.001)},
    "b04.change": {"tokens": Figure(15_081, 0.001)},
    "t5": {"tp_across_over_inside": Figure(2.82, 0.1)},
    "t5.change": {"times": Figure(2.76, 0.1)},
    "b10": {"busiest_over_mean": Figure(15 / 8, 1e-9), "zigzag_over_mean": Figure(1.0, 1e-9)},
}

TRIES = {
    "t5.follow_ups.1": """\
from dataclasses import replace

import simlab as sl

model, cube = sl.load_model("llama-3-70b"), sl.load_cluster("dgx-h100", nodes=64)
inside = sl.Plan(dp=8, tp=8, pp=8, microbatches=32, sequence_parallel=True, zero=1)
wide = replace(inside, tp=16, dp=4, microbatches=64)  # the batch stays
across = replace(inside, order="pp-cp-dp-tp")
assert wide.dp * wide.microbatches == inside.dp * inside.microbatches
times = []
for plan in (wide, across):
    hops = round(plan.tp * sl.crossing(plan, cube.gpus_per_node).tp)
    times.append(sl.predict(model, plan, cube).step_s / sl.predict(model, inside, cube).step_s)
    print(f"tp {plan.tp}: {hops} of {plan.tp} hops cross, the step is {times[-1]:.2f} times as long")
assert 1.15 < times[0] < 1.35 and times[1] > 2.5
""",
    "w10.follow_ups.2": """\
import simlab as sl

model, nodes = sl.load_model("llama-3-70b"), sl.load_cluster("dgx-h100", nodes=8)
shares = {}
for tp in (4, 8, 16):
    step = sl.predict(model, sl.Plan(tp=tp, dp=64 // tp, sequence_parallel=True), nodes)
    shares[tp] = step.waterfall_s.tp / (step.waterfall_s.tp + step.waterfall_s.compute)
    print(f"tp {tp}: {shares[tp]:.0%} of the time in layers is waiting")
assert shares[16] > 1.5 * shares[8], "leaving the node does not hurt"
""",
}
