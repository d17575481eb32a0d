"""It searches the fastest plans: those that cannot fit or cannot win are rejected by bounds, and the
others are predicted, the most promising first."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, islice
from time import perf_counter
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar

from simlab.cost.roofline import assumptions
from simlab.display import facts_of, plain
from simlab.errors import InputError
from simlab.planner.prune import Bounds
from simlab.planner.rank import Ranked, RankedFacts, layered_s, predicted, simplicity
from simlab.planner.space import Rejection, Space
from simlab.spec.plan import Plan
from simlab.training.fit import reserve_bytes
from simlab.training.uncertainty import Uncertainty, uncertainty
from simlab.units import bytes_text

T = TypeVar("T")
Watch = Callable[[Sequence[T], str], Iterable[T]]
"""It gives the items of a sequence one after the other and may show how far it is; the text says what
is being done."""

KEPT = 20
"""The number of plans that a search ranks."""
LAYERED = 3
"""The number of plans that are also simulated layer by layer."""
BATCH = 8
"""The number of plans that are predicted at once. It is the same for each executor, so that all find
the same."""
EARLY = 4
"""The most plans of a group that are predicted before those of others, to keep one that fits. If the
search is interrupted while plans are rejected, there is something to show."""
DEGREES = ("dp", "tp", "pp", "cp", "ep")
VARIED = (
    *DEGREES,
    *("etp", "ep_overlap", "zero", "recompute", "schedule", "chunks", "microbatch_size"),
)
"""The fields of a plan in which what is found may differ."""
MEMORY = "a GPU has too little memory"
SLOW = "its least time is longer than that of the plans kept"
SLOWER = "it was predicted, and is slower than the plans kept"
REFUSED = "it cannot be simulated"


class FoundFacts(RankedFacts):
    """One of the plans of a `Search` as plain values."""

    tie: bool


class SearchFacts(TypedDict):
    """A `Search` as plain values, in SI base units."""

    model: str
    cluster: str
    gpus: int
    global_batch: int
    assumptions: list[str]
    uncertainty: Annotated[dict[str, Any], Uncertainty] | None
    plans: list[FoundFacts]
    rejected: dict[str, int]
    evaluated: int
    predictions: int
    seconds: float
    interrupted: bool


@dataclass
class Search:
    """What a search found; after an interruption, what it had found until then."""

    space: Space
    plans: list[Ranked] = field(default_factory=list)
    """The fastest plans that fit, the best first."""
    rejections: list[Rejection] = field(default_factory=list)
    """Each plan, or set of degrees, that was rejected before its prediction or did not fit."""
    families: dict[str, Ranked] = field(default_factory=dict)
    """{family: the fastest plan of it that was predicted and fits}, kept or not."""
    slow: list[tuple[float, Plan]] = field(default_factory=list)
    """(least time in seconds, plan) of those that were never predicted, for they cannot win."""
    predictions: int = 0
    """The number of plans that were predicted."""
    evaluated: int = 0
    """The number of candidates that were looked at."""
    seconds: float = 0.0
    """How long the search took."""
    interrupted: bool = False
    """Whether it was interrupted, so that better plans may be missing."""

    @property
    def rejected(self) -> dict[str, int]:
        """{reason: number of candidates}, the most frequent first. With `plans` they add up to
        `evaluated`, unless the search was interrupted."""
        counts = Counter(rejection.reason for rejection in self.rejections)
        fits = self.predictions - sum(bool(r.values.get("predicted")) for r in self.rejections)
        counts[SLOW] += len(self.slow)
        counts[SLOWER] += fits - len(self.plans)
        return {reason: count for reason, count in counts.most_common() if count}

    def is_tie(self, ranked: Ranked) -> bool:
        """Whether a plan is as fast as the best within the error of such predictions (`uncertainty`)."""
        return ranked.step_s <= self.plans[0].step_s * (1 + self.uncertainty.error)

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """How far predictions of published runs of this kind were off; `InputError` without a plan."""
        if not self.plans:
            raise InputError("no plan was found, so that no prediction can be off")
        return uncertainty(self.space.model, self.plans[0].plan, self.space.cluster)

    @property
    def ties(self) -> list[Ranked]:
        """The plans, other than the best, that are as fast as it within the error."""
        return [ranked for ranked in self.plans[1:] if self.is_tie(ranked)]

    @property
    def simplest(self) -> Ranked:
        """The simplest of the best plan and its `ties`, see `simlab.planner.rank.simplicity`."""
        return min([self.plans[0], *self.ties], key=lambda its: simplicity(its.plan))

    @property
    def roomiest(self) -> Ranked:
        """That of the best plan and its `ties` which leaves most memory free."""
        return min([self.plans[0], *self.ties], key=lambda its: its.fit.needed_bytes)

    @property
    def listed(self) -> list[Ranked]:
        """The plans: of those that tie the simplest and the roomiest first, then the others, the fastest
        first."""
        first = [self.simplest, self.roomiest] if self.plans else []
        return [*{id(its): its for its in (*first, *self.plans)}.values()]

    def to_dict(self) -> SearchFacts:
        """What was found as plain values that JSON knows, in SI base units."""
        space = self.space
        return facts_of(
            self,
            SearchFacts,
            model=space.model.name,
            cluster=space.cluster.name,
            gpus=space.cluster.gpus,
            global_batch=space.global_batch,
            assumptions=assumptions(space.cluster),
            uncertainty=plain(self.uncertainty) if self.plans else None,
            plans=[{**each.to_dict(), "tie": self.is_tie(each)} for each in self.plans],
        )


def search(
    space: Space,
    *,
    kept: int = KEPT,
    layered: int = LAYERED,
    executor: Executor | None = None,
    watch: Watch[Any] = lambda items, what: items,
) -> Search:
    """The `kept` fastest plans of `space` that fit.

    layered:  how many of them are simulated layer by layer, too.
    executor: any `concurrent.futures.Executor`, which rejects and predicts several plans at once, such
              as a pool of processes, or a Dask cluster's `client.get_executor()`.
    watch:    it shows how far the search is.

    A plan is rejected if the least that it holds, with the reserve of `simlab.training.fit`, is
    more than a GPU has, or if the least time that it takes is longer than the step of the plans
    that are kept. The most promising plan of each group is predicted early. A KeyboardInterrupt ends
    the search; what was found is returned.
    """
    found, begin_s = Search(space), perf_counter()
    try:
        queue = _pruned(found, kept, executor, watch)
        _rank(found, queue, kept, executor, watch)
        _simulate_layers(found, layered, executor)
    except KeyboardInterrupt:
        found.interrupted = True
    found.seconds = perf_counter() - begin_s
    return found


class _Group(NamedTuple):
    """What became of the candidates with one tp and one cp."""

    rejections: list[Rejection]
    queue: list[tuple[float, Plan]]
    """[(least seconds, plan)]"""
    smallest: tuple[float, Plan] | None
    """That of the queue which holds least."""


def _pruned(
    found: Search, kept: int, executor: Executor | None, watch: Watch[tuple[int, int]]
) -> list[tuple[float, Plan]]:
    """[(least seconds, plan)] of the plans that may fit, the most promising first, without those that
    were predicted early."""
    apply = executor.map if executor else map
    groups, queue = found.space.groups(), []
    parts = iter(apply(partial(_pruned_group, found.space), groups))
    for _ in watch(groups, "rejecting plans"):
        group = next(parts)
        found.evaluated += len(group.rejections) + len(group.queue)
        found.rejections += group.rejections
        queue += _early(found, group, kept)
    return sorted(queue, key=lambda pair: pair[0])


def _early(found: Search, group: _Group, kept: int) -> list[tuple[float, Plan]]:
    """The queue of a group, the most promising first, without those that were predicted early: the
    first ones and, if none of them fits, the one with the least memory, while none that is known can
    be faster."""
    queue = sorted(group.queue, key=lambda pair: pair[0])
    tried = queue[: EARLY - 1]
    if group.smallest and group.smallest not in tried and not found.plans:
        tried = [*tried, group.smallest]
    for pair in tried:
        if found.plans and pair[0] > found.plans[0].step_s:
            break
        queue.remove(pair)
        ranked = prediction(found.space, pair[1])
        _take(found, [ranked], kept)
        if isinstance(ranked, Ranked) and ranked.fit.fits:
            break
    return queue


def _pruned_group(space: Space, group: tuple[int, int]) -> _Group:
    """What becomes of the candidates with a (tp, cp), with balanced stages where these are searched."""
    bounds, rejections, queue = Bounds(space.model, space.cluster), [], []
    most_room, smallest = 0.0, None
    for candidate in space.of_group(*group):
        if isinstance(candidate, Rejection):
            rejections.append(candidate)
            continue
        try:
            held = bounds.memory_bytes(candidate)
            room = space.cluster.gpu_memory_bytes - held - reserve_bytes(candidate)
            if room < 0:
                rejections.append(_too_large(candidate, held, -room, "at least "))
                continue
            plan = candidate if "stage_layers" in space.fixed else bounds.balanced(candidate)
            queue.append((bounds.time_s(plan), plan))
            if room > most_room:
                most_room, smallest = room, queue[-1]
        except InputError as error:
            rejections.append(Rejection(_values(candidate), REFUSED, str(error)))
    return _Group(rejections, queue, smallest)


def _values(plan: Plan) -> dict[str, Any]:
    """{field: value} of what a search varies."""
    return {name: getattr(plan, name) for name in VARIED}


def _too_large(plan: Plan, held: float, missing: float, least: str, **more: Any) -> Rejection:
    """The rejection of a plan that misses memory."""
    detail = (
        f"{least}{bytes_text(held)} of tensors, {bytes_text(missing)} more than there is room for"
    )
    return Rejection({**_values(plan), **more}, MEMORY, detail, missing)


def _rank(
    found: Search,
    queue: list[tuple[float, Plan]],
    kept: int,
    executor: Executor | None,
    watch: Watch[list[tuple[float, Plan]]],
) -> None:
    """Predict the plans of `queue` in batches, until no other one can be among those kept."""
    apply = executor.map if executor else map
    space, done, batches = found.space, 0, [*batched(queue, BATCH)]
    predict_one = partial(prediction, space)
    for batch in watch(batches, "predicting plans"):
        limit_s = found.plans[kept - 1].step_s if len(found.plans) >= kept else float("inf")
        if batch[0][0] > limit_s:
            break
        results = list(apply(predict_one, [plan for _, plan in batch]))
        done += len(batch)
        _take(found, results, kept)
    found.slow = queue[done:]


def _take(found: Search, results: Iterable[Ranked | Rejection], kept: int) -> None:
    """Keep those of the predicted plans that are among the fastest, and say why others are not."""
    for ranked in results:
        found.predictions += 1
        if isinstance(ranked, Rejection):
            found.rejections.append(ranked)
        elif ranked.fit.fits:
            found.plans.append(ranked)
            first = found.families.setdefault(ranked.family, ranked)
            found.families[ranked.family] = min(first, ranked, key=lambda its: its.step_s)
        else:
            missing, held = ranked.fit.missing_bytes, ranked.memory_bytes
            found.rejections.append(_too_large(ranked.plan, held, missing, "", predicted=True))
    found.plans = sorted(found.plans, key=lambda ranked: ranked.step_s)[:kept]


def prediction(space: Space, plan: Plan) -> Ranked | Rejection:
    """The prediction of a plan, or of the one without balanced stages where it does not fit; what makes
    it impossible is a reason to reject this one only."""
    try:
        ranked, even = predicted(space.model, plan, space.cluster), space.evenly(plan)
        if ranked.fit.fits or even == plan:
            return ranked
        return predicted(space.model, even, space.cluster)
    except InputError as error:
        return Rejection({**_values(plan), "predicted": True}, REFUSED, str(error))


def _layered(space: Space, plan: Plan) -> float | None:
    """The step simulated layer by layer; None where that cannot be."""
    try:
        return layered_s(space.model, plan, space.cluster)
    except InputError:
        return None


def _simulate_layers(found: Search, count: int, executor: Executor | None) -> None:
    """Simulate the first `count` plans layer by layer."""
    apply = executor.map if executor else map
    first = found.plans[:count]
    times_s = apply(partial(_layered, found.space), [ranked.plan for ranked in first])
    for place, (ranked, time_s) in enumerate(zip(first, times_s)):
        found.plans[place] = replace(ranked, layers_s=time_s)


def batched(items: Sequence[T], size: int) -> Iterable[list[T]]:
    """`items` in lists of `size`, the last one shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def plan_text(plan: Plan) -> str:
    """The degrees of a plan and what else a search varies, in a line."""
    degrees = " ".join(
        f"{name}{getattr(plan, name)}" for name in DEGREES if getattr(plan, name) > 1
    )
    if layers := layers_text(plan):
        degrees += f" stage_layers={layers}"
    degrees += " etp1" * plan.spreads_experts + " ep-overlap" * plan.ep_overlap
    chunks = f" x {plan.chunks} chunks" if plan.chunks > 1 else ""
    schedule = f" {plan.schedule}{chunks}" if plan.pp > 1 else ""
    batch = f"{plan.microbatches} x {plan.microbatch_size}"
    return (
        f"{degrees or 'one GPU'} zero{plan.zero}{schedule} {batch} sequences, "
        f"recompute {plan.recompute}"
    )


def layers_text(plan: Plan) -> str:
    """'5x4+2x5+1x2', five stages of 4 layers, two of 5 and one of 2, of a plan with a number for each stage;
    '' of another."""
    if isinstance(plan.stage_layers, str):
        return ""
    return "+".join(f"{len([*its])}x{count}" for count, its in groupby(plan.stage_layers))
