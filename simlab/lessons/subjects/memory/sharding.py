"""Exercises on what is divided and sent: GPUs needed (w01), states held (w04), traffic (w05)."""

from collections.abc import Callable
from random import Random
from typing import Any

from simlab.collectives import most_sent_by_calls, zero_calls
from simlab.lessons.exercise import Exercise
from simlab.lowering.zero import shards_of
from simlab.memory.model_states import model_states
from simlab.spec.plan import Plan

# w01: how many GPUs, for memory and for time
# ---------------------------------------------------------------------------------------------


def _gpus_case(draw: Random) -> dict[str, Any]:
    """One hidden set of parameters: fine-tuning of large models, pre-training of small ones."""
    return {
        "parameters": draw.choice((7e9, 13e9, 70e9, 180e9)),
        "tokens": draw.choice((1e8, 1e9, 2e12, 15e12)),
        "days": draw.choice((7, 30)),
        "flops_per_s": draw.choice((1.5e14, 4e14)),
        "memory_bytes": draw.choice((40e9, 80e9)),
        "activations_bytes": draw.choice((5e9, 20e9)),
    }


def _gpus(
    parameters: float,
    tokens: float,
    days: float,
    flops_per_s: float,
    memory_bytes: float,
    activations_bytes: float,
) -> int:
    """By trying: double, then halve the interval."""

    def enough(gpus: int) -> bool:
        held = model_states(parameters, gpus, zero=3).total + activations_bytes
        forward = 2 * parameters * tokens
        return held <= memory_bytes and 3 * forward / (gpus * flops_per_s) <= days * 86400

    low, high = 0, 1
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def fewest_gpus(
    parameters: float,
    tokens: float,
    days: float,
    flops_per_s: float,
    memory_bytes: float,
    activations_bytes: float,
) -> int:
    """The solution of w01."""
    from math import ceil

    for_memory = 16 * parameters / (memory_bytes - activations_bytes)  # ZeRO-3 divides the states
    for_time = 6 * parameters * tokens / flops_per_s / (days * 86400)  # forward 2, backward 4
    return ceil(max(for_memory, for_time))


def _gpus_with(
    states_bytes: float, flops: float, *, activations: str = "whole", down: bool = False
) -> Callable[..., float]:
    """The solution, before it is rounded, with other bytes and FLOPs per parameter; `activations`: "whole" on every GPU,
    "divided" or "forgotten"; `down`: rounded down."""

    def wrong(
        parameters: float,
        tokens: float,
        days: float,
        flops_per_s: float,
        memory_bytes: float,
        activations_bytes: float,
    ) -> float:
        divided = activations_bytes if activations == "divided" else 0.0
        whole = activations_bytes if activations == "whole" else 0.0
        for_memory = (states_bytes * parameters + divided) / (memory_bytes - whole)
        for_time = flops * parameters * tokens / flops_per_s / (days * 86400)
        return int(max(for_memory, for_time)) if down else max(for_memory, for_time)

    return wrong


# w04: what each rank holds
# ---------------------------------------------------------------------------------------------


def _held_case(draw: Random) -> dict[str, Any]:
    """One hidden set of parameters: a stage, and ranks that share a copy in groups."""
    group = draw.choice((4, 8, 16))
    return {
        "parameters": draw.choice((1.5e9, 7e9, 70e9)),
        "zero": draw.choice((1, 2, 3)),
        "ranks": group * draw.choice((1, 4, 8)),
        "group": group,
    }


def _held(parameters: float, zero: int, ranks: int, group: int) -> float:
    """Each kind of state over the ranks that the plan's own groups have."""
    plan = Plan(dp=ranks, zero=zero, hybrid=0 if group == ranks else group)
    whole = model_states(parameters)
    return (
        whole.parameters / shards_of(plan, "parameters")
        + whole.gradients / shards_of(plan, "gradients")
        + whole.optimizer / shards_of(plan, "optimizer")
    )


def states_bytes(parameters: float, zero: int, ranks: int, group: int) -> float:
    """The solution of w04."""
    held = 0.0
    for bytes_each, from_stage in ((2, 3), (2, 2), (12, 1)):  # weights, gradients, optimizer
        sharers = group if zero >= from_stage else 1
        held += bytes_each * parameters / sharers
    return held


def _held_with(stages: tuple[int, int, int], *, by_all: bool = False) -> Callable[..., float]:
    """The solution with other stages; `by_all`: over all ranks, not those of a group."""

    def wrong(parameters: float, zero: int, ranks: int, group: int) -> float:
        sharers = ranks if by_all else group
        sizes = zip((2, 2, 12), stages)
        return sum(size * parameters / (sharers if zero >= stage else 1) for size, stage in sizes)

    return wrong


# w05: what a rank sends
# ---------------------------------------------------------------------------------------------


def _sent_case(draw: Random) -> dict[str, Any]:
    """One hidden set of parameters: a stage, ranks and microbatches."""
    return {
        "parameters": draw.choice((1e9, 7e9, 70e9)),
        "zero": draw.choice((0, 1, 2, 3)),
        "ranks": draw.choice((2, 4, 8, 64)),
        "microbatches": draw.choice((1, 2, 4, 16)),
    }


def _sent(parameters: float, zero: int, ranks: int, microbatches: int) -> float:
    """Counted, transfer by transfer, on rings."""
    return most_sent_by_calls(zero_calls(parameters, zero, microbatches=microbatches), ranks)


def sent_bytes(parameters: float, zero: int, ranks: int, microbatches: int) -> float:
    """The solution of w05."""
    m = microbatches
    times = {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[zero]  # each: a reduce-scatter or an all-gather
    return times * 2 * parameters * (ranks - 1) / ranks


def _sent_with(
    times: Callable[[int], tuple[float, ...]], *, ring: bool = True
) -> Callable[..., float]:
    """The solution with other numbers of collectives, or without the ring's (N - 1) / N."""

    def wrong(parameters: float, zero: int, ranks: int, microbatches: int) -> float:
        share = (ranks - 1) / ranks if ring else 1.0
        return times(microbatches)[zero] * 2 * parameters * share

    return wrong


EXERCISES = [
    Exercise(
        "w01",
        level=2,
        draw=_gpus_case,
        oracle=_gpus,
        solution=fewest_gpus,
        mistakes={
            "memory_only": _gpus_with(16, 0),
            "time_only": _gpus_with(0, 6),
            "forward_only": _gpus_with(16, 2),
            "activations_divided": _gpus_with(16, 6, activations="divided"),
            "no_activations": _gpus_with(16, 6, activations="forgotten"),
            "rounded_down": _gpus_with(16, 6, down=True),
        },
    ),
    Exercise(
        "w04",
        level=1,
        draw=_held_case,
        oracle=_held,
        solution=states_bytes,
        mistakes={
            "everything": _held_with((1, 1, 1)),
            "parameters_first": _held_with((1, 2, 3)),
            "all_ranks": _held_with((3, 2, 1), by_all=True),
            "number_of_groups": lambda parameters, zero, ranks, group: states_bytes(
                parameters, zero, ranks, ranks // group
            ),
        },
        unit="GB",
        scale=1e-9,
    ),
    Exercise(
        "w05",
        level=2,
        draw=_sent_case,
        oracle=_sent,
        solution=sent_bytes,
        mistakes={
            "no_accumulation": _sent_with(lambda m: (2, 2, 2, 3)),
            "every_microbatch": _sent_with(lambda m: (2 * m, 2 * m, 2 * m, 3 * m)),
            "gathers_once": _sent_with(lambda m: (2, 2, m + 1, 2 * m)),
            "whole_ring": _sent_with(lambda m: (2, 2, m + 1, 3 * m), ring=False),
        },
        sets=12,
        unit="GB",
        scale=1e-9,
    ),
]
