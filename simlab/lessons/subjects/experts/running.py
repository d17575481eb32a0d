"""What experts cost while they run, and how they are laid out: questions e05 to e08."""

from collections.abc import Sequence
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


def _loads(draw: Random) -> dict[str, Any]:
    loads = [draw.randint(0, 40) for _ in range(draw.choice((4, 8)))]
    return {"loads": loads, "factor": draw.choice((1.0, 1.25, 1.5))}


def _taken(loads: Sequence[int], factor: float) -> tuple[int, int]:
    """Token by token: it takes a slot, or is dropped."""
    room = [int(factor * sum(loads) / len(loads))] * len(loads)
    lost = 0
    for expert, load in enumerate(loads):
        for _ in range(load):
            if room[expert]:
                room[expert] -= 1
            else:
                lost += 1
    return lost, sum(room)


def solution_e05(loads, factor):  # type: ignore[no-untyped-def]
    """All experts have room for as many."""
    capacity = int(factor * sum(loads) / len(loads))
    lost = sum(max(0, load - capacity) for load in loads)
    empty = sum(max(0, capacity - load) for load in loads)
    return lost, empty


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
        level=1,
        draw=_loads,
        oracle=_taken,
        solution=solution_e05,
        mistakes={
            "no_factor": lambda loads, factor: _taken(loads, 1.0),
            "one_pool": lambda loads, factor: (
                max(0, sum(loads) - len(loads) * int(factor * sum(loads) / len(loads))),
                max(0, len(loads) * int(factor * sum(loads) / len(loads)) - sum(loads)),
            ),
            "of_the_busiest": lambda loads, factor: (
                0,
                len(loads) * max(loads) - sum(loads),
            ),
        },
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
