"""What lesson 9 asks about long sequences, executed: predictions, exercises, figures."""

from random import Random
from typing import Any

from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.lowering.context import context_chunks
from simlab.memory.activations import UNSCALED, layer_tensors
from simlab.spec.model import Model
from simlab.spec.plan import Plan

PREDICTIONS = [
    Prediction("b11", {"times": Number("x")}),
    Prediction("b11.change", {"busiest": Number("x")}),
    Prediction("b12", {"wrong": Number("%")}),
    Prediction("b12.change", {"wrong": Number("%")}),
    Prediction("b10.executed", {"longest": Choice("ring", "all_to_all", "all_gather")}),
    Prediction("d16", {"share": Number("%")}),
    Prediction("d16.change", {"share": Number("%")}),
    Prediction("d17", {"updates": Number()}),
    Prediction("d17.change", {"updates": Number()}),
]


def most_over_mean(ranks: int) -> float:
    """How many times the mean the last of `ranks` contiguous chunks of a causal sequence has to do,
    in closed form.

    Chunk r, counted from 0, meets r whole blocks and half of its own: r + 1/2 of `ranks` ** 2 / 2.
    """
    return 2 - 1 / ranks


# b12
# ---------------------------------------------------------------------------------------------


def _held(draw: Random) -> dict[str, Any]:
    cp = draw.choice((2, 4, 8))
    layout = draw.choice(("contiguous", "zigzag"))
    return {
        "rank": draw.randrange(1, cp),
        "tokens": draw.choice((4, 8)),
        "cp": cp,
        "layout": layout,
    }


def _positions(rank: int, tokens: int, cp: int, layout: str) -> list[int]:
    """By the chunks that simulator and executor deal out."""
    chunks = context_chunks(rank, cp, layout)
    sequence = list(range(cp * tokens))
    part = tokens // len(chunks)
    return [at for chunk in chunks for at in sequence[chunk * part : (chunk + 1) * part]]


def solution_b12(rank, tokens, cp, layout):  # type: ignore[no-untyped-def]
    """One range, or two of half the length."""
    if layout == "contiguous":
        return list(range(rank * tokens, (rank + 1) * tokens))
    half = tokens // 2
    return [c * half + k for c in (rank, 2 * cp - 1 - rank) for k in range(half)]


def _one_chunk_off(rank: int, tokens: int, cp: int, layout: str) -> list[int]:
    if layout == "contiguous":
        return _positions(rank, tokens, cp, layout)
    half = tokens // 2
    return [c * half + k for c in (rank, 2 * cp - rank) for k in range(half)]


def _striped(rank: int, tokens: int, cp: int, layout: str) -> list[int]:
    if layout == "contiguous":
        return _positions(rank, tokens, cp, layout)
    return [rank + cp * k for k in range(tokens)]


# d16
# ---------------------------------------------------------------------------------------------


def _layer(draw: Random) -> dict[str, Any]:
    return {
        "ffn": draw.choice((2, 4, 8)),
        "t": draw.choice((2, 4, 8)),
        "sequence_parallel": draw.choice((True, False)),
    }


def _kept(ffn: int, t: int, sequence_parallel: bool) -> float:
    """By the tensors that the simulator's memory counts."""
    hidden, tokens = 64, 128
    model = Model(
        layers=1, hidden=hidden, heads=8, ffn=ffn * hidden, vocab=64, seq=tokens, positions=tokens
    )
    plan = Plan(tp=t, sequence_parallel=sequence_parallel, precision="fp32", dropout=False)
    tensors = layer_tensors(model, plan, "none")
    counted = sum(size for name, size in tensors.items() if name not in UNSCALED)
    return counted / (4 * hidden * tokens)


def solution_d16(ffn, t, sequence_parallel):  # type: ignore[no-untyped-def]
    """Norms' inputs and outputs are divided by sequence parallelism only."""
    return 4 / (t if sequence_parallel else 1) + (4 + 2 * ffn) / t


EXERCISES = [
    Exercise(
        "b12",
        level=1,
        draw=_held,
        oracle=_positions,
        solution=solution_b12,
        mistakes={
            "contiguous": lambda rank, tokens, cp, layout: list(
                range(rank * tokens, (rank + 1) * tokens)
            ),
            "from_zero": lambda rank, tokens, cp, layout: list(range(tokens)),
            "one_chunk_off": _one_chunk_off,
            "striped": _striped,
        },
        sets=12,
    ),
    Exercise(
        "d16",
        level=2,
        draw=_layer,
        oracle=_kept,
        solution=solution_d16,
        mistakes={
            "all_divided": lambda ffn, t, sequence_parallel: (8 + 2 * ffn) / t,
            "never_divided": lambda ffn, t, sequence_parallel: 4 + (4 + 2 * ffn) / t,
            "nothing_outside": lambda ffn, t, sequence_parallel: (4 + 2 * ffn) / t,
            "heads_whole": lambda ffn, t, sequence_parallel: (
                (8 + 2 * ffn) / t if sequence_parallel else 8 + 2 * ffn / t
            ),
            "inner_once": lambda ffn, t, sequence_parallel: (
                4 / (t if sequence_parallel else 1) + (4 + ffn) / t
            ),
        },
        sets=10,
    ),
]
FIGURES = {
    "b11": {"backward_times": Figure(2.0, 1e-9), "busiest_contiguous": Figure(1.75, 1e-9)},
    "b12": {"wrong_share": Figure(0.75, 1e-9)},
    "d16": {"undivided_share": Figure(4 / 7, 1e-9), "counted_share": Figure(4 / 7, 0.02)},
    "d17": {"updates_alone": Figure(0.0, 1e-9)},
    "b11.change": {"busiest": Figure(31 / 16, 1e-9)},
    "b12.change": {"wrong": Figure(15 / 16, 1e-9)},
    "d16.change": {"share": Figure(0.4, 0.03)},
    "d17.change": {"updates": Figure(12, 0.0)},
}
TRIES = {
    "b11.follow_ups.2": """k_and_v = 2 * 2  # bytes for each number of K and of V, in 16 bits
assert (k_and_v + 2 * 2) / k_and_v == 2  # gradients in 16 bits, too
assert (k_and_v + 2 * 4) / k_and_v == 3  # gradients in fp32""",
    "b12.follow_ups.3": """import numpy as np


def in_bf16(x):
    bits = np.float32(x).view(np.uint32)  # bf16 is the upper half of a float32: round to it
    return (bits + np.uint32(2**15) >> 16 << 16).astype(np.uint32).view(np.float32)


assert in_bf16(255) == 255 and in_bf16(257) != 257""",
}
