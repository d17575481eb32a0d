"""Parameters of units that are sharded tensor by tensor, with padding."""

from typing import NamedTuple

from simlab.layer.parameters import expert_parameters, unit_tensors
from simlab.layer.units import UnitKind, is_layer
from simlab.schedules import SCHEDULES
from simlab.spec.model import Model
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


def padded(model: Model, plan: Plan, units: tuple[UnitKind, ...]) -> Padded:
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
    experts = expert_parameters(model, plan, [unit for unit in units if is_layer(unit)])
    own = cut / shards if not experts else (cut - experts) / shards + experts / plan.expert_holders
    return Padded(sum(whole), cut, whole[-1] if whole else 0.0, own)


def heads_on_first_rank(model: Model, plan: Plan) -> bool:
    """Whether a tied head and the embedding are one table of one rank, but of different stages."""
    return model.tied_head and SCHEDULES[plan.schedule].ends_together
