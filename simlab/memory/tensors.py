"""The parameters of each unit, tensor by tensor, on one tensor-parallel rank."""

from typing import NamedTuple

from simlab.schedules import SCHEDULES
from simlab.spec.model import Model
from simlab.spec.parameters import LAYERS, expert_parameters, unit_parameters
from simlab.spec.plan import Plan


class Padded(NamedTuple):
    """Numbers of a group of tensors."""

    whole: float
    padded: float
    """With each tensor's rows a multiple of the ranks that share them."""
    last: float
    """Of the tensor that is defined last."""
    own: float
    """Of `padded`, those of one rank."""


def numbers_of(model: Model, plan: Plan, unit: str) -> float:
    """Parameters of a 'layer' or a 'dense layer', the 'embedding' or the 'head' (with its matrix,
    tied or not)."""
    if unit in LAYERS:
        return unit_parameters(model, plan, unit)
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
    experts = expert_parameters(model, plan, 1) if "layer" in units else 0.0
    own = cut / shards if not experts else (cut - experts) / shards + experts / plan.expert_holders
    return Padded(sum(whole), cut, whole[-1] if whole else 0.0, own)


def heads_on_first_rank(model: Model, plan: Plan) -> bool:
    """Whether a tied head and the embedding are one table of one rank, but of different stages."""
    return model.tied_head and SCHEDULES[plan.schedule].ends_together


def unit_tensors(model: Model, plan: Plan, unit: str) -> list[tuple[float, float]]:
    """[(rows, entries per row)] of a unit's parameters, in the order of their definition."""
    if unit == "dense layer":
        return unit_tensors(model.dense, plan, "layer")
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
    if model.kv_rank:
        return _latent_attention(model, plan)
    q, kv = model.heads * d / plan.tp, max(1, model.kv_heads / plan.tp) * d
    ins = [q + 2 * kv] if model.positions else [q, kv, kv]
    norms = [(d, 1)] * (2 * model.qk_norm)
    return [*(t for rows in ins for t in _linear(rows, h, bias)), *norms, *_linear(h, q, bias)]


def _latent_attention(model: Model, plan: Plan) -> list[tuple[float, float]]:
    h, heads = model.hidden, model.heads / plan.tp
    each = model.head_size - model.rope_size + model.value_width
    down = [(model.q_rank, h), (model.q_rank, 1)] if model.q_rank else []
    return [
        *down,
        (heads * model.head_size, model.q_rank or h),
        (model.kv_rank + model.rope_size, h),
        (model.kv_rank, 1),
        (heads * each, model.kv_rank),
        (h, heads * model.value_width),
    ]


def _mlp(model: Model, plan: Plan) -> list[tuple[float, float]]:
    if not model.experts:
        return _products(model, model.ffn / plan.tp, 1)
    shared = []
    if model.shared_experts:
        shared = _products(model, model.shared_experts * model.expert_width / plan.tp, 1)
    return [
        (model.experts, model.hidden),
        *_products(model, model.expert_width / plan.etp, model.experts / plan.ep),
        *shared,
    ]


def _products(model: Model, width: float, experts: float) -> list[tuple[float, float]]:
    """The matrices, and biases, of so many MLPs of a width."""
    h, bias = model.hidden, model.bias
    ups = [t for _ in range(1 + model.gated_mlp) for t in _linear(experts * width, h, bias)]
    return ups + _linear(experts * h, width, bias)
