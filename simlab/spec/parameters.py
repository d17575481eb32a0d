"""How many parameters a stage has on one tensor-parallel rank, before anything is sharded over data
parallelism."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from simlab.schedules import SCHEDULES

if TYPE_CHECKING:
    from simlab.spec.model import Model
    from simlab.spec.plan import Plan

UnitKind = Literal["embedding", "dense layer", "layer", "head"]
"""What a model consists of: its embedding, its layers, and its head with the last norm. A 'dense
layer' is one of `Model.dense_layers`, which have no experts although the others have."""
LAYERS: tuple[UnitKind, ...] = ("dense layer", "layer")
"""The kinds of units that are layers."""


def stage_parameters(
    model: "Model",
    plan: "Plan",
    layers: int,
    *,
    first: bool = False,
    last: bool = False,
    dense: int = 0,
) -> float:
    """Parameters of a stage on one tensor-parallel rank, before ZeRO: its layers (norms, router,
    the products down to latents and what is added to a sum over the ranks whole), embedding, head.

    Where there are fewer key and value heads than ranks, each rank has a copy of one (`_copied_heads`).
    With expert parallelism the rank has an ep-th of the experts, cut by `Plan.etp` ranks. layers: how many the stage has,
    of which `dense` are of `Model.dense_layers`. A tied head on
    another rank than the embedding is a copy of it; V-shaped schedules and DualPipe have both on one.
    """
    parts = model.layer_parameters
    whole = parts["router"] + parts["norms"] + _added_biases(model) + model.latent_numbers
    mlp = parts["mlp"] / plan.tp
    if model.experts:
        mlp = parts["mlp"] / (plan.etp * plan.ep)
    copied = _copied_heads(model, plan)
    cut = sum(parts.values()) - whole - parts["mlp"] - copied * model.kv_heads
    count = (layers - dense) * (cut / plan.tp + mlp + whole + copied)
    if dense:
        count += stage_parameters(model.dense, plan, dense)
    if first:
        count += (model.vocab / plan.tp + model.positions) * model.hidden
    if last:
        count += model.hidden * (1 + model.bias)
        if not (model.tied_head and (first or SCHEDULES[plan.schedule].ends_together)):
            count += model.vocab / plan.tp * model.hidden
    return count


def _copied_heads(model: "Model", plan: "Plan") -> int:
    """The parameters of a layer that make a head's keys and values, where each of so many ranks has a
    copy of one; else 0."""
    if plan.tp <= model.kv_heads:
        return 0
    return 2 * model.head_size * (model.hidden + model.bias)


def _added_biases(model: "Model") -> int:
    """The biases of a layer that are added to a sum over tensor-parallel ranks: attention's, and that of
    a dense MLP. Those of experts are theirs."""
    return model.bias * model.hidden * (1 if model.experts else 2)


def expert_parameters(model: "Model", plan: "Plan", layers: int, *, dense: int = 0) -> float:
    """Of `stage_parameters`, those of experts that only the ranks of an 'edp' group have: 0 without
    expert parallelism, where all ranks that hold the same part of the model have all experts."""
    if plan.ep == 1 or not model.experts:
        return 0.0
    return (layers - dense) * model.layer_parameters["mlp"] / (plan.etp * plan.ep)


def partial_parameters(
    model: "Model", plan: "Plan", layers: int, *, first: bool = False, last: bool = False
) -> int:
    """Of `stage_parameters`, those whose gradients are summed over tp: copies of key and value heads,
    which meet only a rank's own query heads, and under sequence parallelism norms, biases that are
    added after a scatter, products down to latents, and the router where experts are not cut.

    Every tensor-parallel rank has the latter whole, but they meet only its own tokens. Leaves out
    that only tp / kv_heads ranks have copies of the same head: they are taken to be summed over all.
    """
    copied = layers * _copied_heads(model, plan)
    if not plan.sequence_parallel:
        return copied
    parts = model.layer_parameters
    each = parts["norms"] + _added_biases(model) + model.latent_numbers
    each += parts["router"] * plan.spreads_experts
    return copied + layers * each + last * model.hidden * (1 + model.bias)


def unit_parameters(model: "Model", plan: "Plan", unit: str, *, first: bool = False) -> float:
    """Parameters of a 'layer' or a 'dense layer', the 'embedding' or the 'head', of which a tied one has no matrix on
    the `first` stage."""
    if unit in LAYERS:
        return stage_parameters(model, plan, 1, dense=int(unit == "dense layer"))
    embedding = stage_parameters(model, plan, 0, first=True)
    if unit == "embedding":
        return embedding
    return stage_parameters(model, plan, 0, first=first, last=True) - first * embedding


def product_parameters(model: "Model", plan: "Plan", layers: int, *, dense: int = 0) -> float:
    """Of `stage_parameters`, those of the matrices of layers' products, which are computed in 8 bits
    where anything is: without norms, routers and biases, and without embedding and head."""
    bare = replace(model, bias=False) if model.bias else model
    each = stage_parameters(bare, plan, 1) - bare.layer_parameters["norms"]
    count = (layers - dense) * (each - bare.layer_parameters["router"])
    return count + (product_parameters(model.dense, plan, dense) if dense else 0.0)
