"""Bounds by which a plan is rejected without a simulation: the least that it holds, and the least
time that it takes."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from simlab.cost.stage_times import StageCost
from simlab.layer.parameters import counted
from simlab.layer.units import UnitKind
from simlab.memory.activations import layer_activations_bytes
from simlab.memory.stage import Shape
from simlab.memory.step import rest_of
from simlab.planner.reads import ByReads
from simlab.schedules import SCHEDULES
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan

WORTH = 0.02
"""The part of its time that the slowest rank has to save for layers to be divided unequally: less is within the
error of predictions, and even stages are simpler."""


def memory_bound_bytes(model: Model, plan: Plan) -> float:
    """The least that a rank of `plan` holds at its peak, in bytes, by closed forms.

    It is what the first pipeline rank holds between two steps, and the activations of the layers of
    all microbatches that are in flight there (`Schedule.in_flight`). Leaves out embedding, head, buffers
    and gathered parameters.
    """
    return Bounds(model, None).memory_bytes(plan)


def time_bound_s(model: Model, plan: Plan, cluster: Cluster) -> float:
    """The least time that a step of `plan` takes, in seconds.

    The last pipeline rank, and that with most layers, computes all microbatches of its stages. Before its
    first forward, one microbatch goes through the stages before it, and after its last backward, one goes
    back through them (not where the backward is split). What a layer takes has the exposed communication
    of tp, cp and ep within it, that of ep only without `Plan.ep_overlap`. Leaves out the optimizer, the exposed communication of data
    parallelism, and messages.
    """
    return Bounds(model, cluster).time_s(plan)


class Bounds:
    """Both bounds for many plans; what plans share is computed once."""

    def __init__(self, model: Model, cluster: Cluster | None) -> None:
        self.model, self.cluster = model, cluster
        self._layers_of = ByReads(lambda plan: plan.layers_of_stages(model.layers))
        self._states_bytes = ByReads(self._states)
        self._layer_bytes = ByReads(self._layer)
        self._unit_s = ByReads(self._unit)
        self._balanced: dict[Hashable, tuple[int, ...] | None] = {}

    def memory_bytes(self, plan: Plan) -> float:
        """See `memory_bound_bytes`."""
        layers = self._layers_of(plan)
        least = min(layers[stage] for stage in _first_rank(plan))
        held = SCHEDULES[plan.schedule].in_flight(plan.pp, plan.microbatches, plan.chunks)
        return self._states_bytes(plan) + held * least * self._layer_bytes(plan)

    def _states(self, plan: Plan) -> float:
        """What the first pipeline rank holds between two steps."""
        kinds, last = self.model.kinds_of_stages(self._layers_of(plan)), plan.stages - 1
        shapes = (Shape(kinds[s], s == 0, s == last) for s in _first_rank(plan))
        return sum(sum(rest_of(self.model, plan, shape).values()) for shape in shapes)

    def _layer(self, plan: Plan) -> float:
        """Bytes that a layer keeps of a microbatch; 0 with activations on the host."""
        if plan.offload == "activations":
            return 0.0
        return min(
            layer_activations_bytes(self.model.of_kind(kind), plan, plan.recompute)
            for kind in self.model.counts
        )

    def time_s(self, plan: Plan) -> float:
        """See `time_bound_s`."""
        layers, pp = self._layers_of(plan), plan.pp
        if SCHEDULES[plan.schedule].ends_together:
            # a rank has two stages, or half of the microbatches of each of them
            both_s = min(self._unit_s(plan, kind, "FB") for kind in self.model.counts)
            return plan.microbatches * min(layers) * plan.chunks * both_s
        most = max(range(pp), key=lambda rank: (sum(layers[rank::pp]), rank))
        return max(self._rank_s(plan, layers, rank) for rank in {pp - 1, most})

    def _rank_s(self, plan: Plan, layers: Sequence[int], rank: int) -> float:
        """Seconds in which a pipeline rank computes all microbatches, and one goes through the ranks
        before it, without the embedding."""
        kinds = self.model.kinds_of_stages(layers)
        busy_s = self._layers_s(plan, "FB", kinds[rank :: plan.pp])
        if rank == plan.pp - 1:
            busy_s += self._unit_s(plan, "head", "FB")
        passes = "FB" if SCHEDULES[plan.schedule].one_backward else "F"
        return plan.microbatches * busy_s + self._layers_s(plan, passes, kinds[:rank])

    def balanced(self, plan: Plan) -> Plan:
        """The same plan with the layers of stages with which the slowest pipeline rank has least to
        compute, embedding and head included; as it is where that saves less than `WORTH` of it.

        With 1F1B no other division was more than 1% faster where all were tried; GPipe and ZB-V wait for more
        than the slowest rank, and with them none was more than 4% faster (`tests/simlab/planner`).
        """
        folds, last = SCHEDULES[plan.schedule].ends_together, plan.stages - 1
        ranks = [min(s, last - s) if folds else s % plan.pp for s in range(plan.stages)]
        if len({*ranks}) == 1:
            return plan
        units = {*self.model.counts, "embedding", "head"}
        unit_s = {unit: self._unit_s(plan, unit, "FB") for unit in units}
        layers = self._layers_of(plan)
        key = *ranks, *layers, *unit_s.items()
        if key not in self._balanced:
            self._balanced[key] = self._balance(layers, ranks, unit_s)
        counts = self._balanced[key]
        return replace(plan, stage_layers=counts) if counts else plan

    def _balance(
        self, layers: Sequence[int], ranks: Sequence[int], unit_s: Mapping[UnitKind, float]
    ) -> tuple[int, ...] | None:
        """The layers of each stage, of those on `ranks`. One layer after the other goes from the slowest
        rank to the fastest one, which is a late one if several are, for early ones hold more
        microbatches; until no rank would be the better for it."""
        last = len(layers) - 1
        stages_s = self._stages_s(layers, unit_s)
        even_s = ranks_s = _summed(stages_s, ranks)
        while True:
            fast, *_, slow = sorted({*ranks}, key=lambda rank: (ranks_s[rank], -rank))
            giving = [s for s in _held(ranks, slow) if layers[s] > (s not in (0, last))]
            if not giving:
                break
            gives = max(giving, key=lambda stage: stages_s[stage])
            takes = min(_held(ranks, fast), key=lambda stage: (stages_s[stage], -stage))
            moved = [n - (at == gives) + (at == takes) for at, n in enumerate(layers)]
            moved_s = self._stages_s(moved, unit_s)
            after_s = _summed(moved_s, ranks)
            if sorted(after_s, reverse=True) >= sorted(ranks_s, reverse=True):
                break
            layers, stages_s, ranks_s = moved, moved_s, after_s
        return tuple(layers) if max(ranks_s) < (1 - WORTH) * max(even_s) else None

    def _stages_s(self, layers: Sequence[int], unit_s: Mapping[UnitKind, float]) -> list[float]:
        """[seconds of each stage for a microbatch], forward and backward"""
        kinds = self.model.kinds_of_stages(layers)
        stages_s = [sum(n * unit_s[unit] for unit, n in counted(its).items()) for its in kinds]
        stages_s[0] += unit_s["embedding"]
        stages_s[-1] += unit_s["head"]
        return stages_s

    def _layers_s(self, plan: Plan, kinds: str, stages: Sequence[tuple[UnitKind, ...]]) -> float:
        """Seconds of ops of these kinds in the layers of some stages, for a microbatch."""
        counts = counted(tuple(chain.from_iterable(stages)))
        return sum(n * self._unit_s(plan, unit, kinds) for unit, n in counts.items())

    def _unit(self, plan: Plan, unit: UnitKind, kinds: str) -> float:
        """Seconds of ops of these kinds in a unit for a microbatch. Where forwards and backwards go side
        by side the all-to-alls of one, and its waits for the host, may all be beside the other."""
        assert self.cluster is not None
        cost = StageCost(self.model, plan, self.cluster)
        cost.collective_bytes_per_s = 0.0  # a bound: all of the memory's bandwidth
        spent = [cost.unit_parts(unit, kind) for kind in kinds]
        hidden_s = sum(its.ep + its.host for its in spent) if plan.ep_overlap else 0.0
        return sum(its.total for its in spent) - hidden_s


def _held(ranks: Sequence[int], rank: int) -> list[int]:
    """[the stages of `rank`], where `ranks` has that of each stage"""
    return [stage for stage, its in enumerate(ranks) if its == rank]


def _summed(stages_s: Sequence[float], ranks: Sequence[int]) -> list[float]:
    """[seconds of each rank] of stages on `ranks`, without what rounding leaves."""
    return [
        round(sum(stages_s[stage] for stage in _held(ranks, rank)), 12)
        for rank in range(max(ranks) + 1)
    ]


def _first_rank(plan: Plan) -> range:
    """The stages of the first pipeline rank; of a V-shaped schedule the first one."""
    if plan.copies > 1:
        return range(0, plan.stages, plan.stages - 1)
    return range(0, plan.stages, plan.pp) if SCHEDULES[plan.schedule].chunked else range(1)
