"""What lesson 4 asks about collectives and data parallelism: predictions, exercises, figures."""

from collections.abc import Sequence
from random import Random
from typing import Any

from simlab.collectives import Transfer, ring_all_gather, ring_reduce_scatter
from simlab.collectives.all_reduce import all_reduce_rounds
from simlab.collectives.replay import most_sent_bytes, replay
from simlab.engine.network import Network, run_rounds
from simlab.errors import InputError
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.lowering.traffic import traffic
from simlab.spec.hardware import Link
from simlab.spec.model import Model
from simlab.spec.plan import Plan

REMEDIES = Choice("overlap", "buckets", "topology", "inside")
PREDICTIONS = [
    Prediction("b03", {"size": Number("KiB")}),
    Prediction("b03.change", {"size": Number("KiB")}),
    Prediction("w03", {"factor": Number("x")}),
    Prediction("w03.change", {"gib": Number("GiB")}),
    Prediction("t1", {"times": Number("x")}),
    Prediction("t1.change", {"times": Number("x")}),
    Prediction("w06", {"times": Number("x")}),
    Prediction("w06.change", {"times": Number("x")}),
    Prediction("d08", {"best": REMEDIES}),
    Prediction("d08.change", {"best": REMEDIES}),
    Prediction("d10", {"strong": Number()}),
    Prediction("d10.change", {"strong": Number()}),
    Prediction("d23", {"times": Number("x")}),
    Prediction("d23.change", {"times": Number("x")}),
]

# b03
# ---------------------------------------------------------------------------------------------


def _doubling(n: int) -> list[list[int]]:
    """Partners at growing distances."""
    return [[rank ^ (1 << k) for rank in range(n)] for k in range(n.bit_length() - 1)]


def _sums(found: Any, expected: Any) -> bool:
    """Whether rounds of partners leave the whole sum everywhere, in as few rounds as expected: the
    transfers are carried out."""
    if found == expected:
        return True
    if not isinstance(found, Sequence) or len(found) != len(expected):
        return False
    n = len(expected[0])
    try:
        rounds = [
            [Transfer(int(partner), rank, 1.0, (0,), True) for rank, partner in enumerate(row)]
            for row in found
        ]
        return bool(expected == _doubling(n) and replay(rounds, range(n))[-1].done)
    except (InputError, TypeError, ValueError, IndexError, KeyError):
        return False


def solution_b03(n):  # type: ignore[no-untyped-def]
    """In round k with the rank 2 to the power of k away."""
    rounds, distance = [], 1
    while distance < n:
        rounds.append([rank ^ distance for rank in range(n)])
        distance *= 2
    return rounds


# w03
# ---------------------------------------------------------------------------------------------


def _replicas(draw: Random) -> dict[str, Any]:
    return {
        "n": draw.choice((2, 4, 8, 64)),
        "parameters": draw.choice((124_000_000, 1_500_000_000, 7_000_000_000)),
        "gradient_bytes": draw.choice((2, 4)),
    }


def _sent(n: int, parameters: int, gradient_bytes: int) -> float:
    """Counted in the rounds of a ring."""
    rounds = all_reduce_rounds("ring", range(n), float(parameters * gradient_bytes))
    return most_sent_bytes(rounds)


def solution_w03(n, parameters, gradient_bytes):  # type: ignore[no-untyped-def]
    """A reduce-scatter and an all-gather."""
    return 2 * (n - 1) / n * parameters * gradient_bytes


# t1
# ---------------------------------------------------------------------------------------------


def _ports(draw: Random) -> dict[str, Any]:
    return {
        "n": draw.choice((4, 8, 16)),
        "alpha": draw.choice((2e-6, 5e-6, 20e-6)),
        "size": draw.choice((64e3, 4e6, 1e9)),
        "bandwidth": draw.choice((12.5e9, 25e9)),
    }


def _star_over_ring(n: int, alpha: float, size: float, bandwidth: float) -> float:
    """With every message sent through ports that it shares."""
    ports: dict[Any, Link] = {}
    for rank in range(n):
        ports[rank, "up"] = Link(latency_s=alpha, bandwidth_bytes_per_s=bandwidth)
        ports[rank, "down"] = Link(bandwidth_bytes_per_s=bandwidth)
    network = Network(ports, lambda a, b: [(a, "up"), (b, "down")])
    star, ring = (
        run_rounds([all_reduce_rounds(name, range(n), size)], network)[0]
        for name in ("star", "ring")
    )
    return star / ring


def solution_t1(n, alpha, size, bandwidth):  # type: ignore[no-untyped-def]
    """The root's port carries n-1 buffers each way."""
    star = 2 * alpha + 2 * (n - 1) * size / bandwidth
    ring = 2 * (n - 1) * (alpha + size / n / bandwidth)
    return star / ring


def _one_phase(n: int, alpha: float, size: float, bandwidth: float) -> float:
    star = alpha + (n - 1) * size / bandwidth
    return star / (2 * (n - 1) * (alpha + size / n / bandwidth))


# w06
# ---------------------------------------------------------------------------------------------

SMALL = Model(layers=8, hidden=1024, heads=16, vocab=64, seq=64)


def _stages(draw: Random) -> dict[str, Any]:
    return {
        "zero": draw.choice((1, 2, 3, 3)),
        "m": draw.choice((2, 4, 8)),
        "n": draw.choice((2, 4, 8)),
    }


def _psi(zero: int, m: int, n: int) -> float:
    """By what the simulator's lists send, for one more layer: the embedding aside."""
    plan = Plan(dp=n, zero=zero, microbatches=m, precision="fp32")
    return traffic(SMALL, plan)[0].dp / (4 * SMALL.parameters)


def solution_w06(zero, m, n):  # type: ignore[no-untyped-def]
    """Gathers and scatters of a step."""
    return {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[zero] * (n - 1) / n


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


# d23
# ---------------------------------------------------------------------------------------------


def _shape(draw: Random) -> dict[str, Any]:
    return {"p": draw.choice((64, 729)), "dimensions": draw.choice((1, 2, 2, 3, 3))}


def _received(p: int, dimensions: int) -> float:
    """Counted in the rounds of rings."""
    side = round(p ** (1 / dimensions))
    if dimensions == 1:
        return most_sent_bytes(ring_all_gather(range(p), 1.0))
    block = 1 / side ** (dimensions - 1)
    gathered = 2 * most_sent_bytes(ring_all_gather(range(side), block))
    if dimensions == 2:
        return gathered
    return gathered + most_sent_bytes(ring_reduce_scatter(range(side), block))


def solution_d23(p, dimensions):  # type: ignore[no-untyped-def]
    """As many matrices as dimensions, each less the own part."""
    return dimensions * (p ** -((dimensions - 1) / dimensions) - 1 / p)


EXERCISES = [
    Exercise(
        "b03",
        level=2,
        draw=lambda draw: {"n": draw.choice((4, 8, 16))},
        oracle=_doubling,
        solution=solution_b03,
        mistakes={
            "same_partner": lambda n: [[rank ^ 1 for rank in range(n)]] * (n.bit_length() - 1),
            "one_short": lambda n: _doubling(n)[:-1],
            "too_many": lambda n: _doubling(n) + _doubling(n)[:1],
        },
        same=_sums,
    ),
    Exercise(
        "w03",
        level=1,
        draw=_replicas,
        oracle=_sent,
        solution=solution_w03,
        mistakes={
            "to_all": lambda n, parameters, gradient_bytes: (n - 1) * parameters * gradient_bytes,
            "one_way": lambda n, parameters, gradient_bytes: (
                (n - 1) / n * parameters * gradient_bytes
            ),
            "weights": lambda n, parameters, gradient_bytes: 2 * (n - 1) / n * parameters * 4,
        },
        sets=8,
        unit="GB",
        scale=1e-9,
    ),
    Exercise(
        "t1",
        level=2,
        draw=_ports,
        oracle=_star_over_ring,
        solution=solution_t1,
        mistakes={
            "just_n": lambda n, alpha, size, bandwidth: float(n),
            "one_phase": _one_phase,
            "upside_down": lambda **case: 1 / _star_over_ring(**case),
        },
        sets=8,
    ),
    Exercise(
        "w06",
        level=1,
        draw=_stages,
        oracle=_psi,
        solution=solution_w06,
        mistakes={
            "each_stage_more": lambda zero, m, n: (
                {1: 3, 2: m + 2, 3: 3 * m + 1}[zero] * (n - 1) / n
            ),
            "once_a_step": lambda zero, m, n: {1: 2, 2: m + 1, 3: 3}[zero] * (n - 1) / n,
            "forgot_second": lambda zero, m, n: {1: 2, 2: m + 1, 3: 2 * m}[zero] * (n - 1) / n,
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
    ),
    Exercise(
        "d23",
        level=3,
        draw=_shape,
        oracle=_received,
        solution=solution_d23,
        mistakes={
            "own_too": lambda p, dimensions: dimensions * p ** -((dimensions - 1) / dimensions),
            "one_matrix": lambda p, dimensions: p ** -((dimensions - 1) / dimensions) - 1 / p,
            "always_1d": lambda p, dimensions: 1 - 1 / p,
        },
        sets=8,
    ),
]

FIGURES = {
    "b03": {"crossing_kib": Figure(448, 0.05)},
    "w03": {"growth_8_to_256": Figure(1.1384, 0.001)},
    "t1": {"star_over_ring": Figure(64, 0.01)},
    "w06": {"zero3_over_dp": Figure(1.5, 1e-6)},
    "d08": {"placement_saved_ms": Figure(15, 1.0)},
    "d10": {"strong": Figure(0.626, 0.05), "weak": Figure(0.930, 0.05)},
    "d23": {"less_with_a_cube": Figure(7.0, 1e-6)},
}

TRIES = {
    "b03.follow_ups.1": """\
import simlab as sl
from simlab.engine.fabric import network_of
from simlab.engine.network import run_rounds

network = network_of(sl.load_cluster("dgx-a100", nodes=2))
nearest_first = [int(f"{rank:04b}"[::-1], 2) for rank in range(16)]  # 0, 8, 4, 12, ...
seconds = []
for ranks in (range(16), nearest_first):
    rounds = sl.all_reduce_rounds("halving-doubling", ranks, 2**30)
    seconds.append(run_rounds([rounds], network)[0])
print(f"farthest first {seconds[0] * 1e3:.1f} ms, nearest first {seconds[1] * 1e3:.1f} ms")
assert seconds[1] < seconds[0] / 3
""",
    "w06.follow_ups.2": """\
from dataclasses import replace

import simlab as sl

model, cluster = sl.load_model("llama-2-7b"), sl.load_cluster("dgx-a100", nodes=4)
slow = replace(cluster, inter=replace(cluster.inter, bandwidth_bytes_per_s=50e9 / 8))
step_s, states = {}, {}
for shards in (32, 8):
    plan = sl.Plan(dp=32, zero=3, hybrid=shards, microbatches=4)
    step = sl.predict(model, plan, slow)
    step_s[shards] = step.step_s
    states[shards] = sum(step.memory_bytes[part] for part in ("parameters", "gradients", "optimizer"))
    print(f"sharded over {shards}: {step.step_s:.1f} s, states {states[shards] / 2**30:.1f} GiB")
assert abs(states[8] / states[32] - 4) < 0.01 and step_s[8] < 0.75 * step_s[32]
""",
    "d08.follow_ups.1": """\
from dataclasses import replace

import simlab as sl

model, cluster = sl.load_model("llama-2-7b"), sl.load_cluster("dgx-a100", nodes=4)
plan = sl.Plan(dp=4, tp=8, order="tp-cp-dp-pp", microbatch_size=1)
step_s = {}
for mib in (1, 4, 16, 64, 128, 256, 1024, 4096):
    step_s[mib] = sl.predict(model, replace(plan, bucket_bytes=mib * 2**20), cluster).step_s
    print(f"{mib} MiB: {step_s[mib] * 1e3:.0f} ms")
assert 16 < min(step_s, key=step_s.get) < 1024
""",
}
"""{key of a follow-up: what its cell runs}"""
