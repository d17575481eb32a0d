"""Exercises on what the forward keeps: the largest part (w02), layers to recompute (w09)."""

from collections.abc import Callable
from math import ceil
from random import Random
from typing import Any

from simlab.lessons.exercise import Exercise
from simlab.memory.model_states import model_states
from simlab.spec.model import catalogue, load_model

# w02: from how many sequences on are activations the largest part
# ---------------------------------------------------------------------------------------------

GPTS = ("gpt2-large", "gpt2-xl", "megatron-1.7b", "megatron-3.6b", "megatron-7.5b", "gpt3-175b")


def _overtake_case(draw: Random) -> dict[str, Any]:
    """One hidden set of parameters: a GPT and a sequence length."""
    model = load_model(draw.choice(GPTS))
    sizes = {"layers": model.layers, "hidden": model.hidden, "heads": model.heads}
    return {"parameters": model.parameters, **sizes, "seq": draw.choice((256, 512, 1024))}


def _overtake(parameters: int, layers: int, hidden: int, heads: int, seq: int) -> int:
    """By adding sequences to a microbatch until its activations are more."""
    model = next(one for one in catalogue().values() if one.parameters == parameters)
    optimizer, sequences = model_states(parameters).optimizer, 1
    while True:
        tensors = model.layer_activations(sequences, seq, flash=True, dropout=True)
        if layers * sum(tensors.values()) > optimizer:
            return sequences
        sequences += 1


def sequences_until_activations_lead(
    parameters: int, layers: int, hidden: int, heads: int, seq: int
) -> int:
    """The solution of w02."""
    optimizer = 12 * parameters  # fp32 weights and two moments
    a_sequence = layers * seq * (34 * hidden + 4 * heads)  # 34 bytes, and the softmax's statistics
    return int(optimizer / a_sequence) + 1


def _overtake_with(
    state: float, kept: Callable[[int, int, int, int], float], *, down: bool = False
) -> Callable[..., float]:
    """The solution, before it is rounded, with other bytes of a parameter's optimizer states, and
    of a token's activations, as a function of layers, hidden, heads and seq; `down`: rounded down."""

    def wrong(parameters: int, layers: int, hidden: int, heads: int, seq: int) -> float:
        sequences = state * parameters / (seq * kept(layers, hidden, heads, seq))
        return int(sequences) if down else sequences

    return wrong


# w09: how many layers to recompute
# ---------------------------------------------------------------------------------------------


def _layers_case(draw: Random) -> dict[str, Any]:
    """One hidden set of parameters: what a layer keeps and what there is room for."""
    layers, kept = draw.choice((24, 32, 80)), draw.choice((0.5e9, 1e9, 2e9))
    whole_input = kept / draw.choice((8, 16, 20))
    least = layers * whole_input + kept
    room = least + draw.uniform(0.1, 1.1) * (layers * kept - least)
    return {"layers": layers, "kept_bytes": kept, "input_bytes": whole_input, "room_bytes": room}


def _layers(layers: int, kept_bytes: float, input_bytes: float, room_bytes: float) -> int:
    """By walking through forward and backward with every number of layers."""

    def peak(recomputed: int) -> float:
        sizes = [input_bytes] * recomputed + [kept_bytes] * (layers - recomputed)
        held = most = sum(sizes)
        for at in reversed(range(layers)):
            if at < recomputed:  # the forward again, from the input
                most = max(most, held - input_bytes + kept_bytes)
            held -= sizes[at]
        return most

    return next(n for n in range(layers + 1) if peak(n) <= room_bytes * (1 + 1e-12))


def layers_to_recompute(
    layers: int, kept_bytes: float, input_bytes: float, room_bytes: float
) -> int:
    """The solution of w09."""
    from math import ceil

    too_much = layers * kept_bytes - room_bytes
    saved_by_a_layer = kept_bytes - input_bytes  # its input stays
    return max(0, ceil(too_much / saved_by_a_layer))


def _layers_with(saved: Callable[[float, float], float], more: int = 0) -> Callable[..., float]:
    """The solution with another saving of a layer, before it is rounded, or with some layers more."""

    def wrong(layers: int, kept_bytes: float, input_bytes: float, room_bytes: float) -> float:
        exact = (layers * kept_bytes - room_bytes) / saved(kept_bytes, input_bytes)
        return max(0, max(0, ceil(exact)) + more) if more else max(0.0, exact)

    return wrong


def _all_or_nothing(layers: int, kept_bytes: float, input_bytes: float, room_bytes: float) -> int:
    """Recompute every layer, or none."""
    return 0 if layers * kept_bytes <= room_bytes else layers


EXERCISES = [
    Exercise(
        "w02",
        level=2,
        draw=_overtake_case,
        oracle=_overtake,
        solution=sequences_until_activations_lead,
        mistakes={
            "fp32_adam": _overtake_with(8, lambda n, h, a, s: n * (34 * h + 4 * a)),
            "one_layer": _overtake_with(12, lambda n, h, a, s: 34 * h + 4 * a),
            "bytes_twice": _overtake_with(12, lambda n, h, a, s: n * (68 * h + 4 * a)),
            "rounded_down": _overtake_with(12, lambda n, h, a, s: n * (34 * h + 4 * a), down=True),
            "scores": _overtake_with(12, lambda n, h, a, s: n * (34 * h + 5 * a * s)),
        },
    ),
    Exercise(
        "w09",
        level=3,
        draw=_layers_case,
        oracle=_layers,
        solution=layers_to_recompute,
        mistakes={
            "input_forgotten": _layers_with(lambda kept, whole: kept),
            "one_more": _layers_with(lambda kept, whole: kept - whole, more=1),
            "rounded_down": _layers_with(lambda kept, whole: kept - whole, more=-1),
            "all_or_nothing": _all_or_nothing,
        },
    ),
]
