"""It says why the best plan wins, what would change the choice, and what would have to change where
no plan fits."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, TypedDict

from simlab.display import facts_of
from simlab.errors import InputError
from simlab.planner.rank import Ranked, RankedFacts, family_of, idle_text, most_held, waterfall_s
from simlab.planner.search import (
    DEGREES,
    MEMORY,
    SLOW,
    SLOWER,
    VARIED,
    Search,
    plan_text,
    prediction,
    search,
)
from simlab.planner.space import Rejection, Space
from simlab.spec.cluster import Cluster
from simlab.spec.plan import Plan
from simlab.training import Waterfall
from simlab.training.fit import judged
from simlab.training.uncertainty import Uncertainty

TRIED = 4
"""How many of the plans that miss least are looked at."""
MOST_TRIED = 64
"""How many plans of a family are predicted to find one that fits."""
MOST_TIMES = 64
"""The most times as many nodes that are tried where no plan fits."""
LEFT_TO_SEARCH = (
    *DEGREES[1:],
    *("etp", "ep_overlap", "zero", "recompute", "microbatch_size", "schedule", "chunks", "dp"),
)
PARTS = {
    "host": "waiting for the host",
    "tp": "tp communication",
    "cp": "cp communication",
    "ep": "ep all-to-alls",
    "dp": "dp communication",
    "pp": "pp messages",
    "offload": "offload copies",
}
"""{part of a `Waterfall`: what it is, in words}; those that are left out are words themselves."""


class RivalFacts(RankedFacts):
    """A `Rival` as plain values."""

    slower_s: float
    difference_s: dict[str, float]


class ChangeFacts(TypedDict):
    """A `Change` as plain values."""

    change: str
    same: bool
    best: RankedFacts | None


class AdviceFacts(TypedDict):
    """An `Advice` as plain values."""

    missing_bytes: float
    nearest: str
    change: str
    best: RankedFacts | None


class ExplanationFacts(TypedDict):
    """An `Explanation` as plain values, in SI base units."""

    waterfall_s: Annotated[dict[str, float], Waterfall]
    binds: str
    idle: str
    uncertainty: Annotated[dict[str, Any], Uncertainty]
    ties: int
    simplest: RankedFacts
    roomiest: RankedFacts
    runner_up: RivalFacts | None
    families: dict[str, RivalFacts]
    changes: list[ChangeFacts]


class Rival(NamedTuple):
    """Another plan beside the best one."""

    ranked: Ranked
    difference_s: dict[str, float]
    """{part of the waterfall: by how many seconds it takes longer than in the best plan}."""

    def to_dict(self, best: Ranked) -> RivalFacts:
        """As plain values that JSON knows."""
        slower_s = self.ranked.step_s - best.step_s
        return {**self.ranked.to_dict(), "slower_s": slower_s, "difference_s": self.difference_s}


class Change(NamedTuple):
    """The best plan after a change."""

    change: str
    """What is changed, such as 'network x2'."""
    best: Ranked | None
    """The best plan then; None if there is none."""
    same: bool
    """Whether it is the plan that is best without the change, or its microbatches differ only."""

    def to_dict(self) -> ChangeFacts:
        """As plain values that JSON knows."""
        return facts_of(self, ChangeFacts, best=self.best and self.best.to_dict())


class Advice(NamedTuple):
    """What to do where no plan fits."""

    missing_bytes: float
    """The bytes that the plan which misses least is short of; 0 if memory is not what is missing."""
    nearest: str
    """That plan, or why no plan can be split, in words."""
    change: str
    """The cheapest change that would make a plan fit, in words; '' if none of those tried does."""
    best: Ranked | None
    """The best plan with that change."""

    def to_dict(self) -> AdviceFacts:
        """As plain values that JSON knows."""
        return facts_of(self, AdviceFacts, best=self.best and self.best.to_dict())


@dataclass
class Explanation:
    """Why the best plan of a search wins."""

    best: Ranked
    waterfall_s: Waterfall
    """What the step of the best plan is spent on."""
    uncertainty: Uncertainty
    """How far such predictions were off."""
    simplest: Ranked
    """The simplest of the plans that tie with the best, or the best."""
    roomiest: Ranked
    """That of them which leaves most memory free."""
    idle: str = ""
    """Why the pipeline of the best plan idles, in a sentence; '' if it does not."""
    runner_up: Rival | None = None
    """The second plan; None if there is no other."""
    families: dict[str, Rival] = field(default_factory=dict)
    """{dimensions that split the model: the best plan found that splits just these}, without the
    family of the best plan."""
    ties: int = 0
    """The number of plans, of those kept, that are as fast as the best within the error of
    predictions."""
    more_ties: bool = False
    """Whether all plans that were kept are ties and others were not kept, so that there may be more."""
    changes: list[Change] = field(default_factory=list)
    """What would be best with another network, memory or batch."""

    @property
    def binds(self) -> str:
        """What costs the best plan most time besides computing, if that is 1% of the step, and how
        full its memory is."""
        rest = {name: s for name, s in self.waterfall_s._asdict().items() if name != "compute"}
        part = max(rest, key=lambda name: rest[name])
        fit, step_s = self.best.fit, sum(self.waterfall_s)
        used = fit.needed_bytes / fit.capacity_bytes
        share = rest[part] / step_s
        most = f", {PARTS.get(part, part)} {share:.0%}" if share >= 0.01 else ""
        return (
            f"compute is {self.waterfall_s.compute / step_s:.0%} of the step{most}; "
            f"memory is {used:.0%} full with its reserve"
        )

    def to_dict(self) -> ExplanationFacts:
        """As plain values that JSON knows, in SI base units."""
        return facts_of(
            self,
            ExplanationFacts,
            simplest=self.simplest.to_dict(),
            roomiest=self.roomiest.to_dict(),
            runner_up=self.runner_up and self.runner_up.to_dict(self.best),
            families={name: its.to_dict(self.best) for name, its in self.families.items()},
            changes=[change.to_dict() for change in self.changes],
        )


def explanation(found: Search, *, full: bool = True) -> Explanation:
    """Why the best plan of `found` wins; `InputError` if no plan fits.

    full: also the best of each family, for which more plans are predicted, and the searches for what would
          change the choice. A KeyboardInterrupt ends it; what is known is returned.
    """
    if not found.plans:
        raise InputError("no plan fits, so that none wins: see `advice`")
    best, space = found.plans[0], found.space
    ties = found.ties
    more = len(ties) == len(found.plans) - 1 and not {SLOW, SLOWER}.isdisjoint(found.rejected)
    parts = waterfall_s(space.model, best.plan, space.cluster)
    why = Explanation(best, parts, found.uncertainty, found.simplest, found.roomiest)
    why.ties, why.more_ties = len(ties), more
    why.idle = idle_text(space.model, best.plan, space.cluster)
    if len(found.plans) > 1:
        why.runner_up = _rival(space, why, found.plans[1])
    if full:
        try:
            for name, ranked in _families(found).items():
                why.families[name] = _rival(space, why, ranked)
            for text, changed in _changed(space):
                why.changes.append(_change(best, text, changed))
        except KeyboardInterrupt:
            found.interrupted = True
    return why


def _rival(space: Space, why: Explanation, ranked: Ranked) -> Rival:
    parts = waterfall_s(space.model, ranked.plan, space.cluster)
    pairs = zip(parts._fields, parts, why.waterfall_s)
    return Rival(ranked, {name: its - best for name, its, best in pairs})


def _families(found: Search) -> dict[str, Ranked]:
    """{family: its best plan}, without that of the best plan: also of the plans that the search did not
    predict, those whose least time is shorter than that of their family's best. A family of which
    `MOST_TRIED` of these do not fit is left out."""
    space, families, tried = found.space, dict(found.families), Counter[str]()
    for least_s, plan in found.slow:
        name = family_of(plan)
        if least_s >= families[name].step_s if name in families else tried[name] == MOST_TRIED:
            continue
        tried[name] += 1
        ranked = prediction(space, plan)
        if isinstance(ranked, Ranked) and ranked.fit.fits:
            first = families.setdefault(name, ranked)
            families[name] = min(first, ranked, key=lambda its: its.step_s)
    del families[found.plans[0].family]
    return dict(sorted(families.items(), key=lambda item: item[1].step_s))


def _changed(space: Space) -> list[tuple[str, Space]]:
    """[(what is changed, the space after it)]"""
    cluster = space.cluster
    inter = replace(cluster.inter, bandwidth_bytes_per_s=2 * cluster.inter.bandwidth_bytes_per_s)
    return [
        ("network x2", replace(space, cluster=replace(cluster, inter=inter))),
        ("memory x2", replace(space, cluster=_with_memory(cluster, 2))),
        ("batch x2", replace(space, global_batch=2 * space.global_batch)),
    ]


def _with_memory(cluster: Cluster, times: float) -> Cluster:
    gpu = replace(cluster.gpu, memory_bytes=times * cluster.gpu.memory_bytes)
    return replace(cluster, gpu=gpu)


def _change(best: Ranked, text: str, space: Space) -> Change:
    found = search(space, kept=1, layered=0)
    first = found.plans[0] if found.plans else None
    return Change(text, first, first is not None and _same(first.plan, best.plan))


def _same(plan: Plan, other: Plan) -> bool:
    return all(getattr(plan, name) == getattr(other, name) for name in VARIED)


def advice(found: Search) -> Advice:
    """What to do where no plan of `found` fits: the bytes missing, and the cheapest change with which
    a plan fits. Changes are tried in this order: leave more to the search, keep the optimizer's
    states on the hosts, and 2 to 64 times as many nodes, of which the number is then halved down."""
    missing_bytes, nearest = _nearest(found)
    if (
        len(same := {(its.reason, its.detail) for its in found.rejections}) == 1
        and not missing_bytes
    ):
        every = f"every candidate is rejected for the same reason: {same.pop()[1]}"
        return Advice(0.0, every, "", None)
    for text, space in _wider(found.space):
        try:
            wider = search(space, kept=1, layered=0)
        except InputError:
            continue
        if wider.plans and space.cluster.nodes > found.space.cluster.nodes:
            return Advice(missing_bytes, nearest, *_fewest_nodes(space, wider.plans[0]))
        if wider.plans:
            return Advice(missing_bytes, nearest, text, wider.plans[0])
    return Advice(missing_bytes, nearest, "", None)


def _fewest_nodes(space: Space, best: Ranked) -> tuple[str, Ranked]:
    """(the change, the best plan) of the fewest nodes with which a plan fits, from half those of `space`
    on, where more nodes are no worse than fewer. best: with those of `space`."""
    few, many = space.cluster.nodes // 2, space.cluster.nodes
    while many - few > 1:
        nodes = (few + many) // 2
        cluster = replace(space.cluster, nodes=nodes)
        found = search(replace(space, cluster=cluster), kept=1, layered=0)
        if found.plans:
            many, best = nodes, found.plans[0]
        else:
            few = nodes
    return f"take {many} nodes", best


def _nearest(found: Search) -> tuple[float, str]:
    """(bytes missing, the plan) that misses least, or (0, why no plan can be split)."""
    too_large = [r for r in found.rejections if r.reason == MEMORY]
    if not too_large:
        first = next(iter(found.rejections), Rejection({}, "", "there is no plan at all"))
        return 0.0, first.detail
    space, fits = found.space, []
    for rejection in sorted(too_large, key=lambda r: r.missing_bytes)[:TRIED]:
        plan = _plan_of(space, rejection.values)
        fits.append((judged(plan, space.cluster, most_held(space.model, plan)), plan))
    fit, plan = min(fits, key=lambda pair: pair[0].missing_bytes)
    return fit.missing_bytes, f"{plan_text(plan)} {fit}"


def _plan_of(space: Space, values: Mapping[str, Any]) -> Plan:
    """The plan of a rejection for want of memory."""
    return next(
        plan
        for plan in replace(space, fixed={**space.fixed, **_searched(values)}).candidates()
        if isinstance(plan, Plan)
    )


def _searched(values: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in values.items() if n in LEFT_TO_SEARCH}


def _wider(space: Space) -> list[tuple[str, Space]]:
    """[(change in words, the space with it)], the cheapest change first."""
    fixed, spaces = dict(space.fixed), []
    chosen = [name for name in LEFT_TO_SEARCH if name in fixed]
    if not space.model.experts:
        chosen = [name for name in chosen if name not in ("ep", "etp", "ep_overlap")]
    for name in chosen:
        rest = {n: v for n, v in fixed.items() if n != name}
        spaces.append((f"leave {name} to the search", replace(space, fixed=rest)))
    if len(chosen) > 1:
        rest = {n: v for n, v in fixed.items() if n not in chosen}
        spaces.append((f"leave {', '.join(chosen)} to the search", replace(space, fixed=rest)))
    if "offload" not in fixed:
        with suppress(InputError):  # of a cluster that does not say how its hosts are reached
            hosts = replace(space, fixed=fixed | {"offload": "optimizer"})
            spaces.append(("keep the optimizer's states on the hosts (offload: optimizer)", hosts))
    rest = {name: value for name, value in fixed.items() if name != "dp"}
    times = 2
    while times <= MOST_TIMES:
        nodes = times * space.cluster.nodes
        cluster = replace(space.cluster, nodes=nodes)
        spaces.append((f"take {nodes} nodes", replace(space, cluster=cluster, fixed=rest)))
        times *= 2
    return spaces
