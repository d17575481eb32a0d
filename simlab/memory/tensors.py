"""The parameters of each unit, tensor by tensor, on one tensor-parallel rank."""

from typing import NamedTuple

from simlab.spec.model import Model
from simlab.spec.parameters import stage_parameters
from simlab.spec.plan import Plan
from simlab.spec.schedule_names import V_SHAPED


class Padded(NamedTuple):
    """Numbers of a group of tensors."""

    whole: float
    padded: float
    """With each tensor's rows a multiple of the ranks that share them."""
    last: float
    """Of the tensor that is defined last."""


def numbers_of(model: Model, plan: Plan, unit: str) -> float:
    """Parameters of a 'layer', the 'embedding' or the 'head' (with its matrix, tied or not)."""
    if unit == "layer":
        return stage_parameters(model, plan, 1)
    return sum(rows * row for rows, row in unit_tensors(model, plan, unit))


def padded(model: Model, plan: Plan, units: tuple[str, ...]) -> Padded:
    """`Padded` of the tensors of `units`, cut over `Plan.shards` ranks. A head that is tied to an
    embedding in the same group, or in another one of the same rank, has no matrix of its own."""
    tensors = []
    for unit in units:
        its = unit_tensors(model, plan, unit)
        tied = unit == "head" and model.tied_head
        shared = tied and ("embedding" in units or heads_on_first_rank(model, plan))
        tensors += its[:-1] if shared else its
    whole = [rows * row for rows, row in tensors]
    shards = plan.shards
    cut = sum(-(-rows // shards) * shards * row for rows, row in tensors)
    return Padded(sum(whole), cut, whole[-1] if whole else 0.0)


def heads_on_first_rank(model: Model, plan: Plan) -> bool:
    """Whether a tied head and the embedding are one table of one rank, but of different stages."""
    return model.tied_head and plan.schedule in V_SHAPED


def unit_tensors(model: Model, plan: Plan, unit: str) -> list[tuple[float, float]]:
    """[(rows, entries per row)] of a unit's parameters, in the order of their definition."""
    h = model.hidden
    norm = [(h, 1)] * (1 + model.bias)
    if unit == "embedding":
        positions = [(model.positions, h)] if model.positions else []
        return [(model.vocab / plan.tp, h), *positions]
    if unit == "head":
        return [*norm, (model.vocab / plan.tp, h)]
    return [*norm, *norm, *_attention(model, plan), *_mlp(model, plan)]


def _linear(rows: float, row: float, bias: bool) -> list[tuple[float, float]]:
    """A matrix and its bias."""
    return [(rows, row), (rows, 1)] if bias else [(rows, row)]


def _attention(model: Model, plan: Plan) -> list[tuple[float, float]]:
    h, d, bias = model.hidden, model.head_size, model.bias
    q, kv = model.heads * d / plan.tp, model.kv_heads * d / plan.tp
    ins = [q + 2 * kv] if model.positions else [q, kv, kv]
    return [t for rows in ins for t in _linear(rows, h, bias)] + _linear(h, q, bias)


def _mlp(model: Model, plan: Plan) -> list[tuple[float, float]]:
    h, f, bias, e = model.hidden, model.ffn / plan.tp, model.bias, max(1, model.experts)
    router = [(model.experts, h)] if model.experts else []
    ups = [t for _ in range(1 + model.gated_mlp) for t in _linear(e * f, h, bias)]
    return router + ups + _linear(e * h, f, bias)
