"""Going on after a failure: the same plan on fewer nodes, another plan, or waiting for the repair; and
plans for GPUs of several speeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, TypedDict

from simlab.display import facts_of
from simlab.errors import (
    InputError,
    require_index,
    require_positive,
    require_seconds,
    require_whole,
)
from simlab.planner import Space, predicted, search
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan

FEWER, ANOTHER = "fewer replicas", "another plan"


class Way(NamedTuple):
    """One way to go on."""

    name: Annotated[str, (FEWER, ANOTHER)]
    plan: Plan
    nodes: int
    step_s: float
    speed: float
    """Steps in a second, as a part of those before the failure."""


class Degrees(TypedDict):
    """The degrees of a plan."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int


class WayFacts(TypedDict):
    """A `Way` as plain values."""

    name: Annotated[str, (FEWER, ANOTHER)]
    nodes: int
    degrees: Degrees
    step_s: float
    speed: float


class ReplannedFacts(TypedDict):
    """A `Replanned` as plain values."""

    before_s: float
    resize_s: float
    ways: list[WayFacts]


@dataclass(frozen=True, repr=False)
class Replanned:
    """What a training can do after it lost nodes."""

    before_s: float
    """The step before the failure, in seconds."""
    ways: tuple[Way, ...]
    """The ways to go on, the fastest first; none if the model fits no longer."""
    resize_s: float
    """A restart, on the same nodes or re-sharded to other ones."""

    def __repr__(self) -> str:
        ways = ", ".join(f"{way.name} {way.speed:.0%}" for way in self.ways) or "waiting only"
        return f"<Replanned: {ways} of the speed before>"

    def advice(self, repair_s: float) -> str:
        """'wait', or the name of the way that loses least training to a repair.

        Waiting loses the repair R and a restart r, when the node is back. Going on loses r now, the
        part 1 - speed of the R - r up to then, and r again: less by speed x (R - r), so it wins if
        R is longer than r, whatever the speed.
        """
        require_seconds("repair_s", repair_s)
        return self.ways[0].name if self.ways and repair_s > self.resize_s else "wait"

    def to_dict(self) -> ReplannedFacts:
        """All figures as plain values that JSON knows."""
        ways = [facts_of(way, WayFacts, degrees=facts_of(way.plan, Degrees)) for way in self.ways]
        return facts_of(self, ReplannedFacts, ways=ways)


def replan(
    model: Model, plan: Plan, cluster: Cluster, *, lost_nodes: int = 1, resize_s: float = 120.0
) -> Replanned:
    """What a training of `model` under `plan` on `cluster` can do without `lost_nodes` of its nodes.

    The global batch stays as it is, so the loss curve does, too. Raises `InputError` if no node would
    be left, or for a mixed cluster.
    """
    require_whole("lost_nodes", lost_nodes)
    require_seconds("resize_s", resize_s)
    cluster.check_alike("re-planning")
    if lost_nodes >= cluster.nodes:
        raise InputError(f"lost_nodes = {lost_nodes}: the cluster has {cluster.nodes} nodes in all")
    before_s = predicted(model, plan, cluster).step_s
    left = replace(cluster, nodes=cluster.nodes - lost_nodes)
    found = [_fewer_replicas(model, plan, left), _another_plan(model, plan, left)]
    ways = [
        Way(name, chosen, nodes, step_s, before_s / step_s)
        for name, chosen, nodes, step_s in filter(None, found)
    ]
    return Replanned(before_s, tuple(sorted(ways, key=lambda way: way.step_s)), resize_s)


_Found = tuple[str, Plan, int, float] | None


def _fewer_replicas(model: Model, plan: Plan, left: Cluster) -> _Found:
    """The same plan with as many replicas as fit on the nodes that are left and divide the batch."""
    replica = plan.tp * plan.pp * plan.cp
    each = plan.microbatches * plan.dp
    for dp in range(min(plan.dp, left.gpus // replica), 0, -1):
        if each % dp:
            continue
        nodes = -(-dp * replica // left.gpus_per_node)
        try:
            fewer = replace(plan, dp=dp, microbatches=each // dp)
            ranked = predicted(model, fewer, replace(left, nodes=nodes))
        except InputError:
            continue
        if ranked.fit.fits:
            return FEWER, fewer, nodes, ranked.step_s
    return None


def _another_plan(model: Model, plan: Plan, left: Cluster) -> _Found:
    """The fastest plan on all nodes that are left, or on fewer of them."""
    numbers = ("precision", "fp8_param_gather", "optimizer", "moment_bytes")
    kept = ("library", "attention", "dispatcher", "expert_load", *numbers)
    fixed = {name: getattr(plan, name) for name in kept}
    for nodes in range(left.nodes, 0, -1):
        part = replace(left, nodes=nodes)
        try:
            found = search(
                Space(model=model, cluster=part, global_batch=plan.global_batch, fixed=fixed),
                kept=1,
                layered=0,
            )
        except InputError:
            continue
        if found.plans:
            return ANOTHER, found.plans[0].plan, nodes, found.plans[0].step_s
    return None


def layers_by_speed(layer_s: Sequence[float], layers: int) -> tuple[int, ...]:
    """Layers for each stage of a pipeline whose stages are on GPUs of different speeds, so that the
    slowest stage is as fast as can be. layer_s: [per stage] seconds for one layer on its GPU.

    Each stage has at least one layer. Embedding and head are left out; give `Plan.stage_layers`.
    """
    require_whole("stages", len(layer_s))
    require_index("number of stages", len(layer_s), layers + 1)
    for seconds in layer_s:
        require_positive("layer_s", seconds)
    given = [1] * len(layer_s)
    for _ in range(layers - len(layer_s)):
        first = min(range(len(layer_s)), key=lambda at: (given[at] + 1) * layer_s[at])
        given[first] += 1
    return tuple(given)
