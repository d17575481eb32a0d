"""What one stage holds on a rank that has no other: a summary of the walk through a forward and a
backward of one microbatch."""

from typing import NamedTuple

from simlab.memory.ledger import CATEGORIES, STATES, Ledger
from simlab.memory.schemes import Use
from simlab.memory.stage import Shape, StageWalk
from simlab.memory.step import folded, rest_of, scheme_of
from simlab.spec.model import Model
from simlab.spec.plan import Plan


class StageMemory(NamedTuple):
    """Bytes on one rank."""

    parameters: float
    gradients: float
    """When the backward is over."""
    optimizer: float
    activations: float
    """Of one microbatch, from its forward to its backward."""
    buffers: float
    """All else when most is held, if one microbatch is on its way: gradients of activations,
    recomputed activations of a layer, gathered units and whole gradients."""


def stage_memory(
    model: Model, plan: Plan, layers: int, *, first: bool = False, last: bool = False
) -> StageMemory:
    """`StageMemory` of a stage of `layers` layers under `plan`."""
    shape = Shape(("layer",) * layers, first, last)
    walk = StageWalk(model, plan, shape, scheme_of(model, plan, shape))
    ledger = Ledger(dict.fromkeys(CATEGORIES, 0.0) | rest_of(model, plan, shape))
    keeps = plan.zero == 3 and not plan.reshard
    ledger.add(walk.op(Use("F", stays=keeps)))
    activations = ledger.held["activations"]
    ledger.add(walk.op(Use("B", gathered=keeps)))
    states = folded(ledger.held)
    buffers = ledger.peak - activations - sum(folded(ledger.at_peak)[name] for name in STATES)
    return StageMemory(*(states[name] for name in STATES), activations=activations, buffers=buffers)
