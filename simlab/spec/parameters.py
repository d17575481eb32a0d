"""How many parameters a stage has on one tensor-parallel rank, before anything is sharded over data
parallelism."""

from typing import TYPE_CHECKING, Literal

from simlab.spec.schedule_names import V_SHAPED

if TYPE_CHECKING:
    from simlab.spec.model import Model
    from simlab.spec.plan import Plan

UnitKind = Literal["embedding", "layer", "head"]
"""What a model consists of: its embedding, its layers, and its head with the last norm."""


def stage_parameters(
    model: "Model", plan: "Plan", layers: int, *, first: bool = False, last: bool = False
) -> float:
    """Parameters of a stage on one tensor-parallel rank, before ZeRO: its layers (norms, router and
    what is added to a sum over the ranks whole), embedding, head.

    A tied head on another rank than the embedding is a copy of it; V-shaped schedules have both on
    one.
    """
    parts = model.layer_parameters
    whole = parts["router"] + parts["norms"] + 2 * model.bias * model.hidden
    count = layers * ((sum(parts.values()) - whole) / plan.tp + whole)
    if first:
        count += (model.vocab / plan.tp + model.positions) * model.hidden
    if last:
        count += model.hidden * (1 + model.bias)
        if not (model.tied_head and (first or plan.schedule in V_SHAPED)):
            count += model.vocab / plan.tp * model.hidden
    return count


def partial_parameters(
    model: "Model", plan: "Plan", layers: int, *, first: bool = False, last: bool = False
) -> int:
    """Of `stage_parameters`, those whose gradients are summed over tp under sequence parallelism:
    norms, and biases that are added after a scatter.

    Every tensor-parallel rank has them whole, but they meet only its own tokens.
    """
    if not plan.sequence_parallel:
        return 0
    return layers * (
        model.layer_parameters["norms"] + 2 * model.bias * model.hidden
    ) + last * model.hidden * (1 + model.bias)


def unit_parameters(model: "Model", plan: "Plan", unit: str, *, first: bool = False) -> float:
    """Parameters of a 'layer', the 'embedding' or the 'head', of which a tied one has no matrix on
    the `first` stage."""
    if unit == "layer":
        return stage_parameters(model, plan, 1)
    embedding = stage_parameters(model, plan, 0, first=True)
    if unit == "embedding":
        return embedding
    return stage_parameters(model, plan, 0, first=first, last=True) - first * embedding
