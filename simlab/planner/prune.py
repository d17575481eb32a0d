"""Bounds by which a plan is rejected without a simulation: the least that it holds, and the least
time that it takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from simlab.cost.stage_times import StageCost
from simlab.cost.walk import Parts
from simlab.layer.parameters import counted
from simlab.layer.units import UnitKind, is_layer
from simlab.lowering.zero import autocasts, reduces_each_backward
from simlab.memory.activations import layer_activations_bytes
from simlab.memory.stage import Shape
from simlab.memory.step import rest_of
from simlab.schedules import SCHEDULES
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan

ORDER = "tp-cp-dp-pp"
"""The order of ranks in which the groups of a layer's communication depend on tp, cp and ep only."""


def memory_bound_bytes(model: Model, plan: Plan) -> float:
    """The least that a rank of `plan` holds at its peak, in bytes, by closed forms.

    It is what the first pipeline rank holds between two steps, and the activations of the layers of
    all microbatches that are in flight there (`Schedule.in_flight`). Leaves out embedding, head, buffers
    and gathered parameters.
    """
    return Bounds(model, None).memory_bytes(plan)


def time_bound_s(model: Model, plan: Plan, cluster: Cluster) -> float:
    """The least time that a step of `plan` takes, in seconds.

    The last pipeline rank computes all microbatches of its stages. Before its first forward, one
    microbatch goes through the p - 1 stages before it, and after its last backward, one goes back
    through them (not where the backward is split). What a layer takes has the exposed communication
    of tp, cp and ep within it, that of ep only without `Plan.ep_overlap`. Leaves out the optimizer, the exposed communication of data
    parallelism, and messages.
    """
    return Bounds(model, cluster).time_s(plan)


@dataclass
class Bounds:
    """Both bounds for the plans of one `Space`, which differ in what a search varies and in nothing
    else; what plans share is computed once."""

    model: Model
    cluster: Cluster | None
    _states: dict[Any, float] = field(default_factory=dict)
    _layer_bytes: dict[Any, float] = field(default_factory=dict)
    _unit_s: dict[Any, Parts] = field(default_factory=dict)
    _layers: dict[Any, list[int]] = field(default_factory=dict)

    def memory_bytes(self, plan: Plan) -> float:
        """See `memory_bound_bytes`."""
        layers = self._layers_of(plan)
        least = min(layers[stage] for stage in _first_rank(plan))
        held = SCHEDULES[plan.schedule].in_flight(plan.pp, plan.microbatches, plan.chunks)
        return self._states_bytes(plan) + held * least * self._layer(plan)

    def _layers_of(self, plan: Plan) -> list[int]:
        """[layers of each stage]"""
        key = plan.pp, plan.chunks, plan.stage_layers
        if key not in self._layers:
            self._layers[key] = plan.layers_of_stages(self.model.layers)
        return self._layers[key]

    def _states_bytes(self, plan: Plan) -> float:
        """What the first pipeline rank holds between two steps."""
        degrees = plan.dp, plan.tp, plan.pp, plan.cp, plan.ep, plan.etp, plan.zero
        key = *degrees, plan.chunks, plan.stage_layers, _first_rank(plan)
        if key not in self._states:
            layers, last = self._layers_of(plan), plan.stages - 1
            kinds = self.model.kinds_of_stages(layers)
            shapes = (Shape(kinds[s], s == 0, s == last) for s in _first_rank(plan))
            self._states[key] = sum(
                sum(rest_of(self.model, plan, shape).values()) for shape in shapes
            )
        return self._states[key]

    def _layer(self, plan: Plan) -> float:
        """Bytes that a layer keeps of a microbatch; 0 with activations on the host."""
        if plan.offload == "activations":
            return 0.0
        routed = plan.ep > 1, plan.etp, plan.expert_load
        key = plan.tp, plan.cp, plan.microbatch_size, plan.recompute, *routed
        if key not in self._layer_bytes:
            self._layer_bytes[key] = min(
                layer_activations_bytes(self.model.of_kind(kind), plan, plan.recompute)
                for kind in self.model.counts
            )
        return self._layer_bytes[key]

    def time_s(self, plan: Plan) -> float:
        """See `time_bound_s`."""
        layers, pp = self._layers_of(plan), plan.pp
        if SCHEDULES[plan.schedule].ends_together:
            # a rank has two stages, or half of the microbatches of each of them
            both_s = min(self._unit_s_of(plan, kind, "FB") for kind in self.model.counts)
            return plan.microbatches * min(layers) * plan.chunks * both_s
        kinds = self.model.kinds_of_stages(layers)
        last, before = slice(pp - 1, None, pp), slice(pp - 1)
        busy_s = self._layers_s(plan, "FB", kinds[last])
        busy_s += self._unit_s_of(plan, "head", "FB")
        passes = "FB" if SCHEDULES[plan.schedule].one_backward else "F"
        through_s = self._layers_s(plan, passes, kinds[before])
        return plan.microbatches * busy_s + through_s

    def _layers_s(self, plan: Plan, kinds: str, stages: Sequence[tuple[UnitKind, ...]]) -> float:
        """Seconds of ops of these kinds in the layers of some stages, for a microbatch."""
        counts = counted(tuple(chain.from_iterable(stages)))
        return sum(n * self._unit_s_of(plan, unit, kinds) for unit, n in counts.items())

    def _unit_s_of(self, plan: Plan, unit: UnitKind, kinds: str) -> float:
        """Seconds of ops of these kinds in a unit for a microbatch. Where forwards and backwards go side
        by side the all-to-alls of one, and its waits for the host, may all be beside the other."""
        spent = [self._unit(plan, unit, kind) for kind in kinds]
        hidden_s = sum(its.ep + its.host for its in spent) if plan.ep_overlap else 0.0
        return sum(its.total for its in spent) - hidden_s

    def _unit(self, plan: Plan, unit: UnitKind, kind: str) -> Parts:
        """`Parts` of the forward or the backward of a unit for a microbatch."""
        assert self.cluster is not None
        again = plan.recompute if is_layer(unit) and kind == "B" else ""
        # what torch's sharding copies, and what it adds to nothing
        sharded = not plan.habits.has_flat_gradients and (
            plan.zero == 3,
            reduces_each_backward(plan),
        )
        routed = plan.ep, plan.etp, plan.expert_load
        placed = (plan.order, plan.dp, plan.pp) if plan.order != ORDER else ()
        cast = autocasts(plan) and plan.microbatches
        sizes = plan.tp, plan.cp, plan.microbatch_size
        key = unit, kind, sizes, again, sharded, cast, routed, placed
        if key not in self._unit_s:
            cost = StageCost(self.model, plan, self.cluster)
            cost.collective_bytes_per_s = 0.0  # a bound: all of the memory's bandwidth
            self._unit_s[key] = cost.unit_parts(unit, kind)
        return self._unit_s[key]


def _first_rank(plan: Plan) -> range:
    """The stages of the first pipeline rank; of a V-shaped schedule the first one."""
    if plan.copies > 1:
        return range(0, plan.stages, plan.stages - 1)
    return range(0, plan.stages, plan.pp) if SCHEDULES[plan.schedule].chunked else range(1)
