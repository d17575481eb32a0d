"""How many parameters a unit or a stage has on one rank, before anything is sharded over data
parallelism."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from simlab.layer.operation import Cut, Operation, OperationKind, Weight
from simlab.layer.units import (
    MODULE,
    UnitKind,
    embedding_operations,
    head_operations,
    is_layer,
    layer_operations,
)
from simlab.optimizers import Matrix
from simlab.schedules import SCHEDULES
from simlab.spec.model import Model
from simlab.spec.plan import Plan


def unit_operations(model: Model, unit: UnitKind) -> tuple[Operation, ...]:
    """The operations of a unit, with a fused kernel of attention and without dropout."""
    if unit == "embedding":
        return embedding_operations(model)
    if unit == "head":
        return head_operations(model)
    return layer_operations(model.of_kind(unit))


Layers = int | Sequence[UnitKind]
"""The layers of a stage: the kind of each, or how many that are as the model says."""


def counted(layers: Layers) -> Mapping[UnitKind, int]:
    """{kind: how many of them there are} of `Layers`."""
    return {"layer": layers} if isinstance(layers, int) else _counted(tuple(layers))


@lru_cache(4096)
def _counted(layers: tuple[UnitKind, ...]) -> Mapping[UnitKind, int]:
    return Counter(layers)


class Numbers(NamedTuple):
    """Parameters of a unit on one tensor-parallel rank."""

    all: float
    experts: float
    """Of experts."""
    copied: float
    """Of heads of which several ranks have a copy each, and what every rank has whole of each head's norm:
    it meets a rank's own heads only."""
    whole: float
    """Of what every rank has whole, but for a router."""
    router: float
    products: float
    """Of matrices, but for a router's: in a layer, what is computed in 8 bits where anything is."""


def numbers_of(model: Model, plan: Plan, unit: UnitKind) -> Numbers:
    """The `Numbers` of a unit, a head's with its matrix."""
    return _numbers(model, unit, plan.tp, plan.etp, plan.ep)


@lru_cache(4096)  # every stage of every plan of a search asks for them
def _numbers(model: Model, unit: UnitKind, tp: int, etp: int, ep: int) -> Numbers:
    found = dict.fromkeys(Numbers._fields, 0.0)
    for operation in unit_operations(model, unit):
        for weight in operation.weights:
            numbers = on_rank(weight, tp, etp, ep).numbers
            found["all"] += numbers
            if weight.columns > 1 and operation.kind is not OperationKind.ROUTER:
                found["products"] += numbers
            if weight.experts:
                found["experts"] += numbers
            elif weight.cut is Cut.WHOLE:
                of_heads = (
                    operation.kind is OperationKind.NORM and operation.reads[0].cut is Cut.HEADS
                )
                router = operation.kind is OperationKind.ROUTER
                found["copied" if of_heads else "router" if router else "whole"] += numbers
            elif weight.least * tp > weight.rows:
                found["copied"] += numbers
    return Numbers(**found)


def on_rank(weight: Weight, tp: int, etp: int, ep: int) -> Weight:
    """What a rank has of a weight."""
    if weight.cut is Cut.WHOLE:
        return weight
    if weight.experts:
        weight = weight._replace(experts=weight.experts / ep)
    parts = {Cut.COPIES: 1, Cut.EXPERTS: etp}.get(weight.cut, tp)
    if weight.by_columns:
        return weight._replace(columns=weight.columns / parts)
    return weight._replace(rows=max(weight.rows / parts, weight.least))


def unit_tensors(model: Model, plan: Plan, unit: UnitKind) -> list[tuple[float, float]]:
    """[(rows, entries per row)] of each parameter of a unit on one rank, in the order of their
    definition; of a head with its matrix, tied or not."""
    return [*_tensors(model, unit, plan.tp, plan.etp, plan.ep)]


@lru_cache(4096)
def _tensors(
    model: Model, unit: UnitKind, tp: int, etp: int, ep: int
) -> tuple[tuple[float, float], ...]:
    tensors: list[tuple[float, float]] = []
    for operation in unit_operations(model, unit):
        own = [on_rank(weight, tp, etp, ep) for weight in operation.weights]
        found = [(its.rows * (its.experts or 1), its.columns) for its in own]
        if operation.joined:  # a matrix, then its bias
            widths = sorted({row for _, row in found}, reverse=True)
            found = [(sum(rows for rows, its in found if its == row), row) for row in widths]
        tensors += found
    return tuple(tensors)


def stage_parameters(
    model: Model, plan: Plan, layers: Layers, *, first: bool = False, last: bool = False
) -> float:
    """Parameters of a stage on one tensor-parallel rank, before ZeRO: its layers, embedding, head.

    With expert parallelism the rank has an ep-th of the experts, cut by `Plan.etp` ranks. A tied head on another rank than
    the embedding is a copy of it; V-shaped schedules and DualPipe have both on one.
    """
    kinds = counted(layers).items()
    count = sum(number * numbers_of(model, plan, kind).all for kind, number in kinds)
    if first or (last and copies_embedding(model, plan, layers, first=first)):
        count += numbers_of(model, plan, "embedding").all
    if last:
        count += unit_parameters(model, plan, "head", first=first)
        count += counted(layers).get(MODULE, 0) * numbers_of(model, plan, "head").whole
    return count


def copies_embedding(model: Model, plan: Plan, layers: Layers, *, first: bool) -> bool:
    """Whether a last stage has a copy of the embedding for modules that predict one more token: where it
    is on another rank than the embedding, and has no tied head, which is such a copy."""
    elsewhere = not first and not SCHEDULES[plan.schedule].ends_together
    return MODULE in counted(layers) and elsewhere and not model.tied_head


class Matrices(NamedTuple):
    """{parameter of a rank: how many alike it has}"""

    shared: Counter[Matrix]
    """Of those that all ranks have which hold the same part of the model."""
    experts: Counter[Matrix]
    """Of experts that only an 'edp' group has."""


def stage_matrices(
    model: Model, plan: Plan, layers: Layers, *, first: bool, last: bool
) -> Matrices:
    """The parameters that `stage_parameters` counts, one by one: the matrices of a joined product each
    by itself, and each expert's."""
    found = Matrices(Counter(), Counter())
    kinds = counted(layers)
    copies = last and copies_embedding(model, plan, layers, first=first)
    heads = last * (1 + kinds.get(MODULE, 0))
    tied = model.tied_head and (first or SCHEDULES[plan.schedule].ends_together)
    for unit, count in {"embedding": int(first or copies), **kinds, "head": heads}.items():
        for matrix, alike, experts in _matrices(model, unit, plan.tp, plan.etp, plan.ep):
            if unit == "head" and matrix.columns > 1:  # which all heads have in common
                count = int(last and not tied)
            if count:
                (found.experts if experts else found.shared)[matrix] += count * alike
    return found


@lru_cache(4096)
def _matrices(
    model: Model, unit: UnitKind, tp: int, etp: int, ep: int
) -> list[tuple[Matrix, int, bool]]:
    """[(parameter, how many of it, whether only an 'edp' group has it)] of a unit"""
    found = []
    for operation in unit_operations(model, unit):
        for weight in operation.weights:
            own = on_rank(weight, tp, etp, ep)
            matrix = Matrix(own.rows, own.columns, is_layer(unit) and own.columns > 1)
            found.append((matrix, int(own.experts) or 1, bool(own.experts) and ep > 1))
    return found


def product_parameters(model: Model, plan: Plan, layers: Layers) -> float:
    """Of `stage_parameters`, those of the matrices of layers' products, which are computed in 8 bits
    where anything is: without norms, routers and biases, and without embedding and head."""
    kinds = counted(layers).items()
    return sum(number * numbers_of(model, plan, kind).products for kind, number in kinds)


def expert_parameters(model: Model, plan: Plan, layers: Layers) -> float:
    """Of `stage_parameters`, those of experts that only the ranks of an 'edp' group have: 0 without
    expert parallelism, where all ranks that hold the same part of the model have all experts."""
    if plan.ep == 1:
        return 0.0
    kinds = counted(layers).items()
    return sum(number * numbers_of(model, plan, kind).experts for kind, number in kinds)


def partial_parameters(
    model: Model, plan: Plan, layers: Layers, *, first: bool = False, last: bool = False
) -> float:
    """Of `stage_parameters`, those whose gradients are summed over tp: copies of key and value heads,
    which meet only a rank's own query heads, and under sequence parallelism norms, biases that are
    added after a scatter, products down to latents, and the router where experts are not cut.

    Every tensor-parallel rank has the latter whole, but they meet only its own tokens. Leaves out
    that only tp / kv_heads ranks have copies of the same head: they are taken to be summed over all.
    """
    of_layers = [
        (number, numbers_of(model, plan, kind)) for kind, number in counted(layers).items()
    ]
    if not plan.sequence_parallel:
        return sum(number * its.copied for number, its in of_layers)
    each = (
        number * (its.copied + its.whole + its.router * plan.spreads_experts)
        for number, its in of_layers
    )
    heads = last * (1 + counted(layers).get(MODULE, 0))
    return sum(each) + heads * numbers_of(model, plan, "head").whole


def unit_parameters(model: Model, plan: Plan, unit: UnitKind, *, first: bool = False) -> float:
    """Parameters of a layer of a kind, the 'embedding' or the 'head', of which a tied one
    has no matrix on the `first` stage."""
    if unit == "head":
        shared = model.tied_head and (first or SCHEDULES[plan.schedule].ends_together)
        head = numbers_of(model, plan, unit)
        return head.whole if shared else head.all
    return numbers_of(model, plan, unit).all
