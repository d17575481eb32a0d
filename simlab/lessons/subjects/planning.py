"""What lesson 11 asks, on choosing a plan: predictions, exercises, figures, and code that answers
follow-ups."""

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

from simlab.collectives import ring_all_reduce
from simlab.collectives.replay import most_sent_bytes
from simlab.cost.op_times import OpTimes
from simlab.engine import simulate
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.memory.model_states import model_states
from simlab.schedules import generate

PREDICTIONS = [
    Prediction(
        "w12", {"memory": Choice("few", "half", "most"), "reason": Choice("memory", "time")}
    ),
    Prediction("w12.change", {"largest": Number(), "longer": Number("x")}),
    Prediction("d19", {"longer": Number("x"), "factor": Number("x")}),
    Prediction(
        "d19.change", {"family": Choice("dp_only", "tp", "pp", "tp_pp"), "gain": Number("x")}
    ),
    Prediction("d21", {"equal": Choice("faster", "slower"), "layers": Number("layers")}),
    Prediction("d21.change", {"held": Number("GB"), "fits": Choice("yes", "no")}),
]

# w12: the least cut with which model states fit
# ---------------------------------------------------------------------------------------------


def _training(draw: Random) -> dict[str, Any]:
    return {
        "parameters": draw.choice((13e9, 18e9, 34e9, 70e9, 130e9)),
        "gpus": draw.choice((64, 128, 256)),
        "zero": draw.choice((0, 1, 2)),
        "room": draw.choice((24e9, 48e9, 60e9)),
    }


def _least_cut(parameters: float, gpus: int, zero: int, room: float) -> int:
    """The least power of two that fits by `simlab.memory.model_states`."""
    return next(
        cut
        for cut in (1 << power for power in range(gpus.bit_length()))
        if model_states(parameters / cut, gpus // cut, zero=zero, recipe="megatron").total <= room
        or cut == gpus
    )


def solution_w12(parameters, gpus, zero, room):  # type: ignore[no-untyped-def]
    """Cut more until it fits: 2 + 4 + 12 bytes a parameter, of which ZeRO shards some over dp."""
    cut = 1
    while cut < gpus:
        dp = gpus // cut
        optimizer = 12 / dp if zero >= 1 else 12
        gradients = 4 / dp if zero >= 2 else 4
        if parameters / cut * (2 + gradients + optimizer) <= room:
            break
        cut *= 2
    return cut


def _cut_with(parameters: float, gpus: int, room: float, kept: float, sharded: float) -> int:
    """The least cut where `kept` bytes of a parameter are on each rank and `sharded` are spread."""
    cut = 1
    while cut < gpus and parameters / cut * (kept + sharded * cut / gpus) > room:
        cut *= 2
    return cut


def _everything_sharded(parameters: float, gpus: int, zero: int, room: float) -> int:
    return _cut_with(parameters, gpus, room, 0 if zero else 18, 18 if zero else 0)


def _nothing_sharded(parameters: float, gpus: int, zero: int, room: float) -> int:
    return _cut_with(parameters, gpus, room, 18, 0)


def _weights_only(parameters: float, gpus: int, zero: int, room: float) -> int:
    return _cut_with(parameters, gpus, room, 2, 0)


def _all_gpus_shard(parameters: float, gpus: int, zero: int, room: float) -> int:
    sharded = (0, 12, 16)[zero] / gpus
    return _cut_with(parameters, gpus, room, (18, 6, 2)[zero] + sharded, 0)


def _weights_sharded(parameters: float, gpus: int, zero: int, room: float) -> int:
    return _cut_with(parameters, gpus, room, (18, 6, 0)[zero], (0, 12, 18)[zero])


def _no_power(parameters: float, gpus: int, zero: int, room: float) -> int:
    kept, sharded = (18, 6, 2)[zero], (0, 12, 16)[zero]
    cuts = range(1, gpus)
    fits = (cut for cut in cuts if parameters / cut * (kept + sharded / (gpus // cut)) <= room)
    return next(fits, gpus)


# d19: the network at which two plans are as fast
# ---------------------------------------------------------------------------------------------


def _two_plans(draw: Random) -> dict[str, Any]:
    return {
        "compute_s": draw.choice((0.6, 1.5, 3.0)),
        "gradient_bytes": draw.choice((4e9, 14e9, 40e9)),
        "gpus": draw.choice((4, 8, 16)),
        "microbatches": draw.choice((16, 32, 64)),
    }


def _break_even(compute_s: float, gradient_bytes: float, gpus: int, microbatches: int) -> float:
    """The bytes that a rank sends in a simulated ring, over what a simulated pipeline waits."""
    each_s = compute_s / microbatches
    times = OpTimes(forward_s=each_s / 3, backward_s=each_s * 2 / 3)
    waits_s = simulate(generate("1f1b", gpus, microbatches), times).step_s - compute_s
    return most_sent_bytes(ring_all_reduce(range(gpus), gradient_bytes)) / waits_s


def solution_d19(compute_s, gradient_bytes, gpus, microbatches):  # type: ignore[no-untyped-def]
    """The exposed all-reduce of the one is as long as the bubble of the other."""
    bubble_s = compute_s * (gpus - 1) / microbatches
    sent = 2 * (gpus - 1) / gpus * gradient_bytes
    return sent / bubble_s


def _bubble_of_the_step(
    compute_s: float, gradient_bytes: float, gpus: int, microbatches: int
) -> float:
    bubble_s = compute_s * (gpus - 1) / (microbatches + gpus - 1)
    return 2 * (gpus - 1) / gpus * gradient_bytes / bubble_s


def _all_bytes_twice(
    compute_s: float, gradient_bytes: float, gpus: int, microbatches: int
) -> float:
    return 2 * gradient_bytes / (compute_s * (gpus - 1) / microbatches)


# d21: layers by speed, as far as there is room
# ---------------------------------------------------------------------------------------------


def _stages(draw: Random) -> dict[str, Any]:
    count = draw.choice((2, 3))
    layers = draw.choice((24, 32, 40))
    layer_s = [draw.choice((0.01, 0.013, 0.025, 0.04)) for _ in range(count)]
    layer_s[0] = 0.01
    layer_s[-1] = draw.choice((0.025, 0.04))
    tight = layers * 6 // 10 if draw.random() < 0.6 else layers
    return {"layers": layers, "layer_s": layer_s, "most": [tight, *[layers] * (count - 1)]}


def _slowest_s(layers: int, layer_s: Sequence[float], most: Sequence[int]) -> float:
    """The least of all ways to give each stage a number of layers."""
    ways = product(*(range(min(layers, room) + 1) for room in most[1:]))
    cuts = ([layers - sum(rest), *rest] for rest in ways)
    return min(_longest(cut, layer_s) for cut in cuts if 0 <= cut[0] <= most[0])


def _longest(cut: Sequence[float], layer_s: Sequence[float]) -> float:
    return max(count * each for count, each in zip(cut, layer_s))


def solution_d21(layers, layer_s, most):  # type: ignore[no-untyped-def]
    """One layer after the other to the stage that is done first with it and has room."""
    held = [0] * len(layer_s)
    for _ in range(layers):
        free = [stage for stage, room in enumerate(most) if held[stage] < room]
        held[min(free, key=lambda stage: (held[stage] + 1) * layer_s[stage])] += 1
    return max(count * each for count, each in zip(held, layer_s))


def _equal(layers: int, layer_s: Sequence[float], most: Sequence[int]) -> float:
    return _longest([layers / len(layer_s)] * len(layer_s), layer_s)


def _without_memory(layers: int, layer_s: Sequence[float], most: Sequence[int]) -> float:
    return _slowest_s(layers, layer_s, [layers] * len(layer_s))


def _rounded(layers: int, layer_s: Sequence[float], most: Sequence[int]) -> float:
    total = sum(1 / each for each in layer_s)
    cut = [min(room, round(layers / each / total)) for each, room in zip(layer_s, most)]
    return _longest(cut, layer_s)


def _done_first_now(layers: int, layer_s: Sequence[float], most: Sequence[int]) -> float:
    held = [0] * len(layer_s)
    for _ in range(layers):
        free = [stage for stage, room in enumerate(most) if held[stage] < room]
        held[min(free, key=lambda stage: held[stage] * layer_s[stage])] += 1
    return _longest(held, layer_s)


def _parts_of_layers(layers: int, layer_s: Sequence[float], most: Sequence[int]) -> float:
    return layers / sum(1 / each for each in layer_s)


EXERCISES = [
    Exercise(
        "w12",
        level=2,
        draw=_training,
        oracle=_least_cut,
        solution=solution_w12,
        mistakes={
            "everything_sharded": _everything_sharded,
            "nothing_sharded": _nothing_sharded,
            "weights_only": _weights_only,
            "all_gpus_shard": _all_gpus_shard,
            "weights_sharded": _weights_sharded,
            "no_power": _no_power,
        },
        sets=20,
    ),
    Exercise(
        "d19",
        level=2,
        draw=_two_plans,
        oracle=_break_even,
        solution=solution_d19,
        mistakes={
            "once": lambda **case: _break_even(**case) / 2,
            "bubble_of_the_step": _bubble_of_the_step,
            "all_bytes_twice": _all_bytes_twice,
            "all_bytes_once": lambda **case: _all_bytes_twice(**case) / 2,
        },
        unit="GB/s",
        scale=1e-9,
    ),
    Exercise(
        "d21",
        level=2,
        draw=_stages,
        oracle=_slowest_s,
        solution=solution_d21,
        mistakes={
            "equal": _equal,
            "without_memory": _without_memory,
            "parts_of_layers": _parts_of_layers,
            "rounded": _rounded,
            "done_first_now": _done_first_now,
        },
        sets=12,
    ),
]

FIGURES = {
    "w12": {"memory_percent": Figure(87.1)},
    "w12.change": {"largest": Figure(32.0, 1e-9), "longer": Figure(1.834)},
    "d19": {"longer": Figure(1.173), "longer_h100": Figure(1.201)},
    "d19.change": {"gain": Figure(1.932), "tp": Figure(2.0, 1e-9), "pp": Figure(8.0, 1e-9)},
    "d21": {"equal_over_fast_alone": Figure(1.127), "best_over_equal": Figure(0.656)},
    "d21.change": {
        "held": Figure(93.1),
        "quickest": Figure(30.0),
        "fastest": Figure(27.0),
    },
}

TRIES = {
    "w12.follow_ups.1": """\
import simlab as sl
from simlab.planner import Space, search

space = Space(
    model=sl.load_model("llama-3-70b"),
    cluster=sl.load_cluster("dgx-a100-40gb", nodes=8),
    global_batch=256,
    fixed={"cp": 1, "schedule": "1f1b", "recompute": "none"},
)
found = search(space, kept=1, layered=0)
memory = found.rejected["a GPU has too little memory"]
print(f"without recomputation {memory} of {found.evaluated} do not fit")
assert memory > 0.9 * found.evaluated""",
    "d21.follow_ups.1": """\
import simlab as sl

model = sl.load_model("megatron-18b")
fast, slow = (sl.load_cluster(name, nodes=1) for name in ("dgx-h100", "dgx-a100"))
plan = sl.Plan(dp=8, tp=2, zero=1, microbatches=8)
step_s = {
    cluster.name: sl.predict(model, plan, cluster).step_s
    for cluster in (sl.Cluster.mixed(fast, slow), sl.load_cluster("dgx-a100", nodes=2))
}
print(step_s)
mixed_s, slow_s = step_s.values()
assert mixed_s > 0.95 * slow_s, "data-parallel ranks of both kinds go at the slow one's pace\"""",
}
