"""The tokens and elements of a microbatch on one rank, of which all kernels are made."""

from typing import NamedTuple

from simlab.spec.model import Model
from simlab.spec.plan import Plan


class Sizes(NamedTuple):
    """Tokens and elements of a microbatch on one rank."""

    tokens: int
    """The tokens of the rank's part of the microbatch, b s / cp."""
    outside: float
    """The elements of a hidden state outside the tensor-parallel part: tokens x hidden, divided by
    tp with sequence parallelism (Korthikanti et al. 2022, section 4.2.2)."""
    width: int
    """The bytes of an element."""


def sizes(model: Model, plan: Plan) -> Sizes:
    """The `Sizes` of a microbatch of `model` under `plan`."""
    tokens = plan.microbatch_size * (plan.seq or model.seq) // plan.cp
    return Sizes(
        tokens,
        tokens * model.hidden / (plan.tp if plan.sequence_parallel else 1),
        plan.element_bytes,
    )


def hidden_bytes(model: Model, plan: Plan) -> float:
    """The bytes of the hidden states of all tokens of a microbatch that a context-parallel rank
    holds."""
    s = sizes(model, plan)
    return s.width * s.tokens * model.hidden
