"""Exercises on making room: the break-even of offload (w07), the fastest plan that fits (d11)."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random
from typing import Any

from simlab.errors import InputError
from simlab.lessons.exercise import Exercise
from simlab.spec.cluster import load_cluster
from simlab.spec.model import catalogue, load_model
from simlab.spec.plan import Plan
from simlab.studies.offload import offload_step
from simlab.training import predict

# w07: from which number of tokens on can offload hide
# ---------------------------------------------------------------------------------------------


def _even_case(draw: Random) -> dict[str, Any]:
    """One hidden set of parameters: a model, a link and a host."""
    model = load_model(draw.choice(("gpt2-xl", "llama-7b", "megatron-7.5b")))
    return {
        "parameters": model.parameters,
        "pcie_bytes_per_s": draw.choice((16e9, 32e9, 64e9)),
        "host_adam_s": draw.choice((1e-10, 2.8e-10)),
        "gpu_s_per_token": draw.choice((4e-5, 9e-5, 2e-4)),
    }


def _even(
    parameters: int, pcie_bytes_per_s: float, host_adam_s: float, gpu_s_per_token: float
) -> float:
    """What a simulated step takes over the GPU's work, with nothing overlapped, in tokens."""
    model = next(one for one in catalogue().values() if one.parameters == parameters)
    node = load_cluster("dgx-h100")
    one = replace(node, gpus_per_node=1, nics_per_node=1, pcie_bytes_per_s=pcie_bytes_per_s)
    plan = Plan(gradient_bytes=2)
    step = offload_step(model, plan, one, overlap="none", host_adam_s=host_adam_s)
    return step.exposed_s / gpu_s_per_token


def break_even_tokens(
    parameters: float, pcie_bytes_per_s: float, host_adam_s: float, gpu_s_per_token: float
) -> float:
    """The solution of w07."""
    out_s = 2 * parameters / pcie_bytes_per_s  # 16-bit gradients
    back_s = 2 * parameters / pcie_bytes_per_s  # 16-bit weights
    update_s = host_adam_s * parameters  # the states never leave the host
    return (out_s + update_s + back_s) / gpu_s_per_token


def _even_with(moved_bytes: float, *, updates: bool = True) -> Callable[..., float]:
    """The solution with other bytes over PCIe, or without the host's update."""

    def wrong(
        parameters: float, pcie_bytes_per_s: float, host_adam_s: float, gpu_s_per_token: float
    ) -> float:
        seconds = moved_bytes / pcie_bytes_per_s + (host_adam_s if updates else 0)
        return seconds * parameters / gpu_s_per_token

    return wrong


def _overlapped(
    parameters: float, pcie_bytes_per_s: float, host_adam_s: float, gpu_s_per_token: float
) -> float:
    """The longest part alone."""
    return max(2 / pcie_bytes_per_s, host_adam_s) * parameters / gpu_s_per_token


# d11: the fastest plan that fits
# ---------------------------------------------------------------------------------------------

ASKED = ((4, 64, 8192), (4, 64, 2048), (2, 32, 4096), (4, 128, 1024), (2, 64, 2048))
"""(nodes, sequences in a step, tokens of a sequence) that the exercise asks for."""
SPACE = tuple(product((1, 2, 4, 8), (1, 2, 4), (1, 3), ("none", "full")))
"""(tp, pp, zero, recompute) of the plans among which it asks for the fastest."""
SLOWER = 1.1
"""How many times the fastest step a plan may take."""


def _plan_case(draw: Random) -> dict[str, Any]:
    """One hidden set of parameters: a cluster, a batch and a sequence length."""
    nodes, sequences, seq = draw.choice(ASKED)
    return {"nodes": nodes, "sequences": sequences, "seq": seq}


@cache
def _plans(nodes: int, sequences: int, seq: int) -> tuple[tuple[float, float, bool, Plan], ...]:
    """(step in s, bytes held, whether it fits, plan) of every plan of the exercise's space."""
    model, cluster = load_model("llama-3-70b"), load_cluster("dgx-h100", nodes=nodes)
    found = []
    for tp, pp, zero, again in SPACE:
        dp = cluster.gpus // (tp * pp)
        if dp == 0 or sequences % dp:
            continue
        try:
            plan = Plan(
                dp=dp,
                tp=tp,
                pp=pp,
                zero=zero,
                recompute=again,
                sequence_parallel=tp > 1,
                microbatches=sequences // dp,
                seq=seq,
            )
            step = predict(model, plan, cluster)
        except InputError:
            continue
        found.append((step.step_s, sum(step.memory_bytes.values()), step.fits, plan))
    return tuple(found)


def _best(nodes: int, sequences: int, seq: int) -> tuple[int, int, int, float]:
    """What is asked, and the step of the fastest plan that fits."""
    fitting = [found[0] for found in _plans(nodes, sequences, seq) if found[2]]
    return nodes, sequences, seq, min(fitting)


def _same_plan(found: Any, expected: Any) -> bool:
    """Whether a plan fits what is asked and is at most a tenth slower than the fastest; of two
    plans, whether they are the same."""
    if not isinstance(found, Plan) or isinstance(expected, Plan):
        return bool(found == expected)
    nodes, sequences, seq, best_s = expected
    cluster = load_cluster("dgx-h100", nodes=nodes)
    if (found.gpus, found.global_batch, found.seq) != (cluster.gpus, sequences, seq):
        return False
    step = predict(load_model("llama-3-70b"), found, cluster)
    return step.fits and found.offload == "none" and step.step_s <= SLOWER * best_s


def fastest_plan(nodes: int, sequences: int, seq: int) -> Plan | None:
    """The solution of d11, after `from simlab import *` and `from itertools import product`."""
    model, cluster = load_model("llama-3-70b"), load_cluster("dgx-h100", nodes=nodes)
    best, best_s = None, float("inf")
    for tp, pp, zero, again in product((1, 2, 4, 8), (1, 2, 4), (1, 3), ("none", "full")):
        dp = cluster.gpus // (tp * pp)
        if dp == 0 or sequences % dp:
            continue
        try:
            plan = Plan(
                dp=dp,
                tp=tp,
                pp=pp,
                zero=zero,
                recompute=again,
                sequence_parallel=tp > 1,
                microbatches=sequences // dp,
                seq=seq,
            )
            step = predict(model, plan, cluster)
        except InputError:
            continue
        if step.fits and step.step_s < best_s:
            best, best_s = plan, step.step_s
    return best


def _plan_fault(found: Any, nodes: int, sequences: int, seq: int) -> str:
    """Why a plan is not the one that is asked for."""
    if not isinstance(found, Plan):
        return ""
    cluster = load_cluster("dgx-h100", nodes=nodes)
    if (found.gpus, found.global_batch, found.seq) != (cluster.gpus, sequences, seq):
        return "not_asked"
    step = predict(load_model("llama-3-70b"), found, cluster)
    return "slow" if step.fits else "does_not_fit"


def _without_seq(nodes: int, sequences: int, seq: int) -> Plan:
    """The fastest plan that fits, for the model's own sequences."""
    return replace(_first(nodes, sequences, seq), seq=None)


def _least_memory(nodes: int, sequences: int, seq: int) -> Plan:
    """The plan that holds least."""
    return min(_plans(nodes, sequences, seq), key=lambda found: found[1])[3]


def _fastest_of_all(nodes: int, sequences: int, seq: int) -> Plan:
    """The fastest plan, whether it fits or not."""
    return min(_plans(nodes, sequences, seq), key=lambda found: found[0])[3]


def _first(nodes: int, sequences: int, seq: int) -> Plan:
    """The first plan that fits."""
    return next(found[3] for found in _plans(nodes, sequences, seq) if found[2])


EXERCISES = [
    Exercise(
        "w07",
        level=2,
        draw=_even_case,
        oracle=_even,
        solution=break_even_tokens,
        mistakes={
            "states_moved": _even_with(2 + 2 + 24),
            "one_way": _even_with(2),
            "no_update": _even_with(4, updates=False),
            "fp32_gradients": _even_with(6),
            "overlapped": _overlapped,
        },
        unit="tokens",
    ),
    Exercise(
        "d11",
        level=3,
        draw=_plan_case,
        oracle=_best,
        solution=fastest_plan,
        mistakes={
            "slow": _first,
            "least_memory": _least_memory,
            "does_not_fit": _fastest_of_all,
            "not_asked": _without_seq,
        },
        fault=_plan_fault,
        same=_same_plan,
        sets=3,
        limit_s=60.0,  # it searches
    ),
]
