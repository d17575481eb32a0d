"""Model states: the bytes that parameters, gradients and optimizer take on each data-parallel rank,
under ZeRO's stages.

Rajbhandari, Rasley, Ruwase and He 2020, ZeRO (arXiv 1910.02054), section 5 and Table 1. What a rank
holds for good between two steps; transient memory (buckets, gathered layers, temporaries of the
optimizer) and activations are not in it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from simlab.errors import InputError, number, require_whole
from simlab.layer.parameters import stage_matrices
from simlab.lowering.zero import SHARDED_FROM
from simlab.optimizers import ADAM, ONE, OPTIMIZERS
from simlab.spec.model import Model
from simlab.spec.plan import Plan

STAGES = {
    0: "plain data parallelism",
    1: "optimizer sharded",
    2: "and gradients",
    3: "and parameters",
}


@dataclass(frozen=True)
class Recipe:
    """Bytes per parameter of each kind of state, before any sharding."""

    parameters: float
    gradients: float
    optimizer: float
    stages: tuple[int, ...]
    """The ZeRO stages that it is defined for."""
    text: str
    """Whose count it is, and what is in it."""


EVERY = (0, 1, 2, 3)
RECIPES = {
    "zero": Recipe(
        2,
        2,
        12,
        EVERY,
        "the ZeRO paper's mixed-precision Adam: fp16 weight, gradient; fp32 weight, momentum, variance",
    ),
    "megatron": Recipe(
        2,
        4,
        12,
        EVERY,
        "Megatron-LM's: as zero, with gradients summed in fp32; ZeRO-1 is its distributed optimizer",
    ),
    "deepspeed": Recipe(
        2,
        6,
        12,
        (2, 3),
        "DeepSpeed's estimators: 2 + 18/N for ZeRO-2, 18/N and the largest layer for ZeRO-3",
    ),
    "fp32": Recipe(4, 4, 8, EVERY, "Adam in fp32: weight, gradient, momentum, variance"),
}


ADAMS = ADAM.states(ONE)
"""The numbers that Adam keeps of each parameter, which recipes count."""


class ModelStates(NamedTuple):
    """Bytes on one rank, by category; `transient` only where the recipe's estimator counts it."""

    parameters: float
    gradients: float
    optimizer: float
    transient: float = 0.0

    @property
    def total(self) -> float:
        """All of them, bytes."""
        return sum(self)


def model_states(
    parameters: float,
    dp: int = 1,
    *,
    zero: int = 0,
    recipe: str = "zero",
    largest_layer: float = 0,
    states: float = ADAMS,
) -> ModelStates:
    """`ModelStates` of each of `dp` data-parallel ranks of a model with `parameters` parameters.

    zero:          the stage. 1 shards the optimizer over the ranks, 2 the gradients too, 3 the
                   parameters too. With recipe "zero"
                   the sums are 16, 4 + 12/N, 2 + 14/N and 16/N bytes per parameter (Table 1).
    recipe:        a name in `RECIPES`.
    largest_layer: parameters of the largest layer; DeepSpeed's estimator for ZeRO-3 adds 4 bytes
    each for gathering it.
    states:        numbers in fp32 that the optimizer keeps of each parameter, see `states_of`.

    Derivation: each category is its bytes per parameter times the parameters, divided by N from its
    stage on. Leaves out that shards are padded to equal size, and that an optimizer of whole matrices
    cannot cut them equally. Raises `InputError` for a count below
    1, an unknown stage or recipe, or one that does not go with it.
    """
    require_whole("dp", dp)
    if not _positive(parameters):
        raise InputError(f"{parameters!r} parameters: give a number above 0, such as 7.5e9")
    if not _positive(largest_layer) and largest_layer != 0:
        raise InputError(
            f"largest_layer = {largest_layer!r}: give a number of parameters, 0 or more"
        )
    if recipe not in tuple(RECIPES):
        raise InputError(f"unknown recipe {recipe!r}; there is {', '.join(RECIPES)}")
    if isinstance(zero, bool) or zero not in tuple(STAGES):
        raise InputError(f"ZeRO stage {zero!r}: give 0 (none), 1, 2 or 3")
    bytes_of = RECIPES[recipe]
    if zero not in bytes_of.stages:
        raise InputError(
            f"recipe {recipe} knows ZeRO stages {' and '.join(map(str, bytes_of.stages))}, not {zero}"
        )
    per_rank = [parameters / (dp if zero >= stage else 1) for stage in SHARDED_FROM.values()]
    found = ModelStates(
        *(
            count * size
            for count, size in zip(
                per_rank,
                (
                    bytes_of.parameters,
                    bytes_of.gradients,
                    bytes_of.optimizer + 4 * (states - ADAMS),
                ),
            )
        )
    )
    if recipe == "deepspeed" and zero == 3:
        return found._replace(parameters=0.0, transient=4.0 * largest_layer)
    return found


def states_of(optimizer: str, model: Model | None = None) -> float:
    """How many numbers an optimizer keeps of each parameter, in the mean over those of `model`, on which
    it depends where an optimizer tells matrices apart. Raises `InputError` if it is needed and not
    given."""
    its = OPTIMIZERS[optimizer]
    if not its.whole:
        return its.states(ONE)
    if model is None:
        raise InputError(
            f"optimizer = {optimizer!r}: what it keeps depends on the shapes of matrices; give a model"
        )
    ends = {"first": True, "last": True}
    whole, _ = stage_matrices(model, Plan(), model.layer_kinds, **ends)
    kept = sum(count * its.kept(matrix) for matrix, count in whole.items())
    return kept / sum(count * matrix.numbers for matrix, count in whole.items())


def most_parameters(
    memory_bytes: float, dp: int = 1, *, zero: int = 0, recipe: str = "zero", mp: int = 1
) -> float:
    """The largest model whose states fit into `memory_bytes` per rank, in parameters; `mp`: over
    how many ranks each layer is split.

    (ZeRO, Table 2, left half: 32 GB, N = 64.) No room is left for activations.
    """
    _memory(memory_bytes)
    require_whole("mp", mp)
    return mp * memory_bytes / model_states(1.0, dp, zero=zero, recipe=recipe).total


def zero_curves(
    parameters: float, ranks: Iterable[int], *, recipe: str = "zero", states: float = ADAMS
) -> dict[int, list[float]]:
    """{stage: [bytes of states on each rank, for each number of `ranks`]} of every stage that the
    recipe is defined for. states: see `model_states`."""
    return {
        stage: [
            model_states(parameters, dp, zero=stage, recipe=recipe, states=states).total
            for dp in ranks
        ]
        for stage in RECIPES[recipe].stages
    }


def fewest_ranks(
    parameters: float, memory_bytes: float, *, zero: int = 0, recipe: str = "zero"
) -> int | None:
    """The smallest number of ranks on which the states fit into `memory_bytes` each; None if no
    number is enough.

    What a stage shards is divided by N, the rest is not: N >= sharded / (memory - rest). Nothing is
    left for activations.
    """
    _memory(memory_bytes)
    rest, one = (model_states(parameters, dp, zero=zero, recipe=recipe).total for dp in (_MANY, 1))
    if one <= memory_bytes:
        return 1
    return (
        None
        if rest >= memory_bytes or zero == 0
        else ceil((one - rest) / (memory_bytes - rest) - 1e-9)
    )


_MANY = 10**15
"""Ranks: what is sharded is nothing."""


def _positive(value: float) -> bool:
    return number(value) and 0 < value < float("inf")


def _memory(value: float) -> None:
    if not _positive(value):
        raise InputError(f"memory_bytes = {value!r}: give a number of bytes above 0")


SUFFIXES = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
"""{suffix of a number of parameters: what it stands for}"""


def parameter_count(text: str) -> float:
    """The number in `text`: "7.5e9", "7.5B", "350M", "1T", "1_000"."""
    match = re.fullmatch(r"\s*([0-9_.]+(?:[eE][+-]?\d+)?)\s*([kKmMbBtT]?)\s*", text)
    wrong = InputError(f"{text!r} parameters: give a number such as 7.5e9, 7.5B or 350M")
    if match is None:
        raise wrong
    try:
        return float(match[1]) * SUFFIXES[match[2].upper()]
    except ValueError as error:
        raise wrong from error
