"""What experts cost while they run, and how they are laid out: questions e05 to e08."""

from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import Any

from simlab.errors import InputError
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Number, Prediction
from simlab.spec.plan import Plan

PREDICTIONS = [
    Prediction("e05", {"step": Number("x"), "dropped": Number("%")}),
    Prediction("e05.change", {"dropped": Number("%")}),
    Prediction("e06", {"alone": Number("%"), "shared": Number("%")}),
    Prediction("e06.change", {"share": Number("%")}),
    Prediction("e07", {"box": Number("x"), "deepseek": Number("x")}),
    Prediction("e07.change", {"deepseek": Number("x")}),
    Prediction("e08", {"gpus": Number("GPUs"), "step": Number("x")}),
    Prediction("e08.change", {"step": Number("x")}),
]


# e05
# ---------------------------------------------------------------------------------------------


MORE = 1.1
"""How many times the least possible load the busiest rank may have."""


def _loads(draw: Random) -> dict[str, Any]:
    experts, ranks = draw.choice(((8, 2), (8, 4), (9, 3)))
    loads = [draw.choice((1, 1, 2, 4)) * draw.randint(20, 60) for _ in range(experts)]
    return {"loads": loads, "ranks": ranks}


def _shares(placed: Sequence[int], loads: Sequence[int], ranks: int) -> list[int]:
    """The tokens of each rank."""
    return [sum(load for load, at in zip(loads, placed) if at == rank) for rank in range(ranks)]


def _least(loads: Sequence[int], ranks: int) -> tuple[list[int], int, int]:
    """What is asked, and the least that the busiest rank can have, by trying all that is possible."""

    def busiest(left: frozenset[int], ranks: int) -> int:
        if not left:
            return 0
        first, *others = sorted(left)
        return min(
            max(
                sum(loads[expert] for expert in (first, *some)),
                busiest(left - {first, *some}, ranks - 1),
            )
            for some in combinations(others, len(left) // ranks - 1)
        )

    return [*loads], ranks, busiest(frozenset(range(len(loads))), ranks)


def solution_e05(loads, ranks):  # type: ignore[no-untyped-def]
    """The largest first, each to the rank with the fewest tokens among those with room."""
    placed, tokens, experts = [0] * len(loads), [0] * ranks, [0] * ranks
    for expert in sorted(range(len(loads)), key=lambda e: -loads[e]):
        free = [rank for rank in range(ranks) if experts[rank] < len(loads) // ranks]
        rank = min(free, key=lambda r: tokens[r])
        placed[expert] = rank
        tokens[rank] += loads[expert]
        experts[rank] += 1
    return placed


def _placed_well(found: Any, expected: Any) -> bool:
    """Whether ranks have equally many experts, and the busiest few enough tokens; of two placements,
    whether they are the same."""
    if not isinstance(expected, tuple):
        return bool(found == expected)
    loads, ranks, least = expected
    if _placement_fault(found, loads, ranks) != "busy":
        return False
    return max(_shares(found, loads, ranks)) <= MORE * least


def _placement_fault(found: Any, loads: Sequence[int], ranks: int) -> str:
    """Why a placement is not the one that is asked for."""
    if not isinstance(found, Sequence) or len(found) != len(loads):
        return ""
    if {*found} - {*range(ranks)}:
        return "no_rank"
    if any(found.count(rank) != len(loads) // ranks for rank in range(ranks)):
        return "unequal"
    return "busy"


def _dealt(order: Sequence[int], ranks: int) -> list[int]:
    """Experts in `order`, dealt in turn to the ranks."""
    placed = [0] * len(order)
    for at, expert in enumerate(order):
        placed[expert] = at % ranks
    return placed


def _any_number(loads: Sequence[int], ranks: int) -> list[int]:
    """The solution without a limit to a rank's experts."""
    placed, tokens = [0] * len(loads), [0] * ranks
    for expert in sorted(range(len(loads)), key=lambda e: -loads[e]):
        placed[expert] = min(range(ranks), key=lambda r: tokens[r])
        tokens[placed[expert]] += loads[expert]
    return placed


# e06
# ---------------------------------------------------------------------------------------------


def _ridge(draw: Random) -> dict[str, Any]:
    return {
        "experts": draw.choice((64, 128, 256)),
        "k": draw.choice((2, 4, 8)),
        "ep": draw.choice((4, 8, 32)),
        "peak": draw.choice((312e12, 989e12)),
        "bandwidth": draw.choice((2.0e12, 3.35e12)),
    }


def _enough(experts: int, k: int, ep: int, peak: float, bandwidth: float) -> float:
    """By bisection: where computing an expert's product takes as long as reading its weights."""
    rows, columns = 4096, 1024
    low, high = 0.0, 1e9
    for _ in range(100):
        tokens = (low + high) / 2
        each = tokens * ep * k / experts
        reading_s, computing_s = 2 * rows * columns / bandwidth, 2 * each * rows * columns / peak
        low, high = (tokens, high) if computing_s < reading_s else (low, tokens)
    return low


def solution_e06(experts, k, ep, peak, bandwidth):  # type: ignore[no-untyped-def]
    """Two operations and two bytes for each weight: the chip's ratio is the number of tokens."""
    return peak / bandwidth * experts / (k * ep)


# e07
# ---------------------------------------------------------------------------------------------


def _pairs(draw: Random) -> dict[str, Any]:
    return {
        "m": draw.choice((2, 4, 8, 16)),
        "forward_s": draw.choice((2.0, 3.0)),
        "backward_s": draw.choice((5.0, 7.0)),
        "sent_forward_s": draw.choice((1.0, 2.0, 4.0)),
        "sent_backward_s": draw.choice((1.5, 3.0, 8.0)),
    }


def _paired(
    m: int, forward_s: float, backward_s: float, sent_forward_s: float, sent_backward_s: float
) -> float:
    """Slot by slot, of which each has perhaps a forward, perhaps a backward."""
    now_s = 0.0
    for slot in range(m + 1):
        parts = [(forward_s, sent_forward_s)] * (slot < m) + [(backward_s, sent_backward_s)] * (
            slot > 0
        )
        computed_s, sent_s = (sum(its) for its in zip(*parts))
        now_s += max(computed_s, sent_s) if len(parts) == 2 else computed_s + sent_s
    return now_s


def solution_e07(m, forward_s, backward_s, sent_forward_s, sent_backward_s):  # type: ignore[no-untyped-def]
    """Only a pair hides anything; the first forward and the last backward are alone."""
    ends_s = forward_s + sent_forward_s + backward_s + sent_backward_s
    pair_s = max(forward_s + backward_s, sent_forward_s + sent_backward_s)
    return ends_s + (m - 1) * pair_s


# e08
# ---------------------------------------------------------------------------------------------


def _degrees(draw: Random) -> dict[str, Any]:
    tp = draw.choice((2, 4, 8))
    return {
        "tp": tp,
        "cp": draw.choice((1, 2, 8)),
        "pp": draw.choice((2, 4, 8)),
        "ep": tp * draw.choice((1, 2, 8)),
        "etp": draw.choice((1, tp)),
    }


def _fewest(tp: int, cp: int, pp: int, ep: int, etp: int) -> int:
    """The first plan that the simulator takes, with more and more replicas."""
    for dp in range(1, 1025):
        try:
            return Plan(
                tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=etp, sequence_parallel=True, microbatches=8
            ).gpus
        except InputError:
            continue
    raise AssertionError("no number of replicas can share the experts")


def solution_e08(tp, cp, pp, ep, etp):  # type: ignore[no-untyped-def]
    """The experts are laid out over the same ranks as attention (all degrees are powers of two)."""
    return pp * max(tp * cp, etp * ep)


EXERCISES = [
    Exercise(
        "e05",
        version=2,
        level=2,
        draw=_loads,
        oracle=_least,
        solution=solution_e05,
        mistakes={
            "as_numbered": lambda loads, ranks: [
                expert * ranks // len(loads) for expert in range(len(loads))
            ],
            "sorted_blocks": lambda loads, ranks: [
                sorted(range(len(loads)), key=lambda e: -loads[e]).index(expert)
                * ranks
                // len(loads)
                for expert in range(len(loads))
            ],
            "dealt": lambda loads, ranks: _dealt(
                sorted(range(len(loads)), key=lambda e: -loads[e]), ranks
            ),
            "no_rank": lambda loads, ranks: [1 + at for at in solution_e05(loads, ranks)],
            "unequal": _any_number,
            "busy": lambda loads, ranks: _dealt(range(len(loads)), ranks),
        },
        fault=_placement_fault,
        same=_placed_well,
        sets=8,
    ),
    Exercise(
        "e06",
        level=2,
        draw=_ridge,
        oracle=_enough,
        solution=solution_e06,
        mistakes={
            "of_an_expert": lambda experts, k, ep, peak, bandwidth: peak / bandwidth,
            "without_ep": lambda ep, **case: _enough(ep=1, **case),
            "one_copy": lambda k, **case: _enough(k=1, **case),
            "one_operation": lambda **case: 2 * _enough(**case),
        },
        unit="tokens",
    ),
    Exercise(
        "e07",
        level=2,
        draw=_pairs,
        oracle=_paired,
        solution=solution_e07,
        mistakes={
            "nothing_hidden": lambda m, **its: m * sum(its.values()),
            "no_ends": lambda m, forward_s, backward_s, sent_forward_s, sent_backward_s: (
                m * max(forward_s + backward_s, sent_forward_s + sent_backward_s)
            ),
            "all_hidden": lambda m, forward_s, backward_s, sent_forward_s, sent_backward_s: (
                m * (forward_s + backward_s)
            ),
        },
        sets=12,
        unit="s",
    ),
    Exercise(
        "e08",
        level=2,
        draw=_degrees,
        oracle=_fewest,
        solution=solution_e08,
        mistakes={
            "product": lambda tp, cp, pp, ep, etp: pp * tp * cp * ep,
            "attention_only": lambda tp, cp, pp, ep, etp: pp * tp * cp,
            "experts_only": lambda tp, cp, pp, ep, etp: pp * ep * etp,
            "experts_uncut": lambda tp, cp, pp, ep, etp: pp * max(tp * cp, ep),
        },
        sets=16,
        unit="GPUs",
    ),
]

FIGURES = {
    "e05": {"step": Figure(1.67, 0.03), "dropped": Figure(0.102, 0.03)},
    "e05.change": {"dropped": Figure(0.0117, 0.03)},
    "e06": {
        "alone": Figure(0.33, 0.03),
        "shared": Figure(0.706, 0.03),
        "one_by_one": Figure(0.168, 0.03),
        "grouped": Figure(0.516, 0.03),
    },
    "e06.change": {"share": Figure(0.043, 0.03)},
    "e07": {"deepseek": Figure(0.739, 0.03)},
    "e07.change": {"deepseek": Figure(0.881, 0.03)},
    "e08": {
        "gpus": Figure(512, 0.0),
        "step": Figure(0.977, 0.01),
        "memory": Figure(0.587, 0.03),
    },
    "e08.change": {"step": Figure(2.18, 0.05)},
}
