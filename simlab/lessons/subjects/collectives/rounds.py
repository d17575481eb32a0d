"""Exercises on rounds of transfers: all-reduce by doubling (b03), bytes (w03), a star (t1), tori (d23)."""

from collections.abc import Sequence
from random import Random
from typing import Any

from simlab.collectives import Transfer, ring_all_gather, ring_reduce_scatter
from simlab.collectives.all_reduce import all_reduce_rounds
from simlab.collectives.replay import most_sent_bytes, replay
from simlab.engine.network import Network, run_rounds
from simlab.errors import InputError
from simlab.lessons.exercise import Exercise
from simlab.spec.hardware import Link

# b03
# ---------------------------------------------------------------------------------------------


def _doubling(n: int) -> list[list[int]]:
    """Partners at growing distances."""
    return [[rank ^ (1 << k) for rank in range(n)] for k in range(n.bit_length() - 1)]


def _sums(found: Any, expected: Any) -> bool:
    """Whether rounds of partners leave the whole sum everywhere, in as few rounds as expected: the
    transfers are carried out. Partners exchange, so each must be the other's."""
    if found == expected:
        return True
    if _partners_fault(found) or not isinstance(found, Sequence) or len(found) != len(expected):
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


def _partners_fault(found: Any, **_: Any) -> str:
    """A rank whose partner names another one, or who meets the same partner again."""
    try:
        mutual = all(row[row[rank]] == rank for row in found for rank in range(len(row)))
        again = any(len({*partners}) < len(partners) for partners in zip(*found))
    except (TypeError, IndexError, KeyError):
        return ""
    return "one_way" if not mutual else "same_partner" if again else ""


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


def _own_buffer(n: int, alpha: float, size: float, bandwidth: float) -> float:
    star = 2 * alpha + 2 * n * size / bandwidth
    return star / (2 * (n - 1) * (alpha + size / n / bandwidth))


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
            "one_way": lambda n: [
                [(rank + 2**k) % n for rank in range(n)] for k in range(n.bit_length() - 1)
            ],
        },
        fault=_partners_fault,
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
            "whole_ring": lambda n, parameters, gradient_bytes: 2 * parameters * gradient_bytes,
            "whole_each_round": lambda n, parameters, gradient_bytes: (
                2 * n * parameters * gradient_bytes
            ),
            "whole_in_rounds": lambda n, parameters, gradient_bytes: (
                2 * (n - 1) * parameters * gradient_bytes
            ),
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
            "own_buffer": _own_buffer,
            "one_by_one": lambda n, alpha, size, bandwidth: (
                (alpha + size / bandwidth) / (alpha + size / n / bandwidth)
            ),
            "upside_down": lambda **case: 1 / _star_over_ring(**case),
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
            "no_product": lambda p, dimensions: (
                min(dimensions, 2) * (p ** -((dimensions - 1) / dimensions) - 1 / p)
            ),
        },
        sets=8,
    ),
]
