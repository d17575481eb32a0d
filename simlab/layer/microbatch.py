"""The tokens and elements of a microbatch on one rank, of which all kernels are made, and how many
tokens, and copies of them, go where in a layer with experts."""

from functools import cache
from itertools import chain, combinations
from math import ceil, comb
from typing import NamedTuple

from simlab.layer.operation import Operation
from simlab.layer.saved import Share
from simlab.layer.units import layer_operations
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


def plan_operations(model: Model, plan: Plan) -> tuple[Operation, ...]:
    """The operations of a layer under `plan`."""
    keys = (plan.seq or model.seq) if plan.attention == "unfused" else 0
    return layer_operations(model, keys=keys, dropout=plan.dropout)


def share_of(model: Model, plan: Plan) -> Share:
    """The `Share` of a rank in a microbatch."""
    routed = routed_tokens(model, plan) if model.experts else 0
    tokens = sizes(model, plan).tokens
    return Share(tokens, plan.tp, plan.sequence_parallel, routed, plan.etp)


# experts
# ------------------------------------------------------------------------------------------


def evenly_routed(tokens: int, experts: int) -> tuple[int, ...]:
    """The tokens of each expert that has any, where a router spreads `tokens` evenly."""
    each, more = divmod(tokens, experts)
    return tuple(each + (expert < more) for expert in range(min(tokens, experts)))


def own_tokens(model: Model, plan: Plan) -> int:
    """The tokens of a microbatch that a rank sends to routed experts: all of its context-parallel
    part, or where tensor-parallel ranks have experts of their own a tp-th of them."""
    tokens = sizes(model, plan).tokens
    return tokens // plan.tp if plan.spreads_experts else tokens


def routed_tokens(model: Model, plan: Plan) -> int:
    """The copies of tokens that a rank's experts compute: of its own tokens, or with expert
    parallelism as many of those of its group, on the busiest rank `Plan.expert_load` times as
    many."""
    return ceil(own_tokens(model, plan) * model.experts_per_token * plan.expert_load)


def sent_tokens(model: Model, plan: Plan) -> int:
    """What a rank sends to the experts of its group, in tokens: a copy for each expert of a token, or
    with the dispatcher 'once-a-node' one for each rank that has any of them (`visited`)."""
    if plan.dispatcher == "all-to-all":
        return routed_tokens(model, plan)
    reached = visited(model, plan.ep)
    return ceil(own_tokens(model, plan) * reached * plan.expert_load)


def visited(model: Model, parts: int) -> float:
    """In how many of `parts`, over which the experts are spread evenly, the experts of a token are, on
    average: see `_visited`, whose router this model has."""
    groups, taken = model.expert_groups or 1, model.groups_per_token or 1
    return _visited(model.experts, model.experts_per_token, groups, taken, parts)


@cache
def _visited(experts: int, chosen: int, groups: int, taken: int, parts: int) -> float:
    """A router that spreads tokens evenly takes g of G groups of experts, any g as often as any other, and
    of their E experts it chooses k, any k as often as any other. None of them is in a part that has x of
    these E in C(E - x, k) of C(E, k) cases. Summed over the parts, and averaged over the C(G, g) choices
    of groups, the rest is how many a token visits. Without groups x is the experts of a part. Parts that do
    not divide the experts differ by one of them.
    """
    of_group = experts // groups
    left, missed = taken * of_group, 0
    for part in range(parts):
        start, end = part * experts // parts, (part + 1) * experts // parts
        own = [_overlap(start, end - start, at, of_group) for at in range(0, experts, of_group)]
        whole = own.count(of_group)
        cut = [size for size in own if 0 < size < of_group]  # at most the first and the last one
        for some in chain.from_iterable(combinations(cut, n) for n in range(len(cut) + 1)):
            for among in range(min(whole, taken - len(some)) + 1):
                others = comb(groups - whole - len(cut), taken - len(some) - among)
                x = among * of_group + sum(some)
                missed += comb(whole, among) * others * comb(left - x, chosen)
    return parts - missed / (comb(left, chosen) * comb(groups, taken))


def _overlap(start: int, size: int, other: int, its: int) -> int:
    """How many numbers are in both of two ranges."""
    return max(0, min(start + size, other + its) - max(start, other))
