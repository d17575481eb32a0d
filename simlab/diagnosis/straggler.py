"""The rank that holds up the others, and whether that is only because its stage has more to do."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, NamedTuple

from simlab.diagnosis.graph import COMPUTE, DATA, HOST, Graph, Work
from simlab.diagnosis.launched import LARGER, MORE, difference

SLOWER = 1.05
"""A rank is a straggler only if its work takes this many times as long as that of its peers."""
LEAST_SAVED = 0.02
"""... and the step would be shorter by this fraction."""
PARTS = (COMPUTE, DATA, HOST)
HEAD = "head"
"""The unit of a model that holds the last norm, the head and the loss."""
UNKNOWN_SHAPES = (
    "as many operators take longer there than on other ranks: a slower GPU, or more in each, which "
    "record_shapes=True records"
)
LOSS, GPU, UNKNOWN = "loss", "gpu", "unknown"
SLOW_DATA, SLOW_HOST = "data", "host"


class Straggler(NamedTuple):
    """The rank whose slowness costs most.

    rank:    the rank.
    slower:  how many times as long its work takes as that of the ranks that do alike.
    saved_s: by how many seconds one step would be shorter if it were as fast as they.
    cause:   'more' if it launches more operators, or 'larger' if more goes into them, as a profile
             says; 'gpu' if the same work takes longer there; 'loss' if it is only that its stage has the
             head and the loss besides; 'data' or 'host' if that is what takes longer; 'unknown' if it
             holds the last stage and the trace has whole ops, from which nobody can tell 'loss' from
             'gpu'.
    detail:  of what it has more, for people; '' if of nothing.
    """

    rank: int
    slower: float
    saved_s: float
    cause: Annotated[str, (GPU, LOSS, SLOW_DATA, SLOW_HOST, MORE, LARGER, UNKNOWN)]
    detail: str = ""

    def __str__(self) -> str:
        why = {
            GPU: self.detail or "the same work takes longer there than on other ranks",
            LOSS: "its layers are as fast as others: its stage has the head and the loss besides",
            SLOW_DATA: "it loads its data more slowly",
            SLOW_HOST: "its host is slower",
            MORE: self.detail,
            LARGER: self.detail,
            UNKNOWN: "it holds the last stage: its head and loss, or a slow GPU (whole ops do not say)",
        }[self.cause]
        return f"rank {self.rank}, {self.slower:.2f} times as slow: {why}"


def straggler(graph: Graph) -> Straggler | None:
    """The `Straggler` of a step; None if no rank is slower than the others by more than 5%, or if the
    step would be no shorter without it.

    Work is compared with the lower median of the ranks that do the same kind of it: those of the same
    stage, where a stage has several ranks, else those of all stages.
    """
    replicated = _replicated(graph)
    totals: _Totals = defaultdict(lambda: defaultdict(float))
    own: list[list[tuple[int, Alike]]] = [[] for _ in range(graph.ranks)]
    for number, work in enumerate(graph.works):
        if work.part in PARTS:
            key = _alike(work, replicated)
            totals[key][work.rank] += work.own_s
            own[work.rank].append((number, key))
    each = (_of_rank(graph, rank, own[rank], totals, replicated) for rank in range(graph.ranks))
    found = [one for one in each if one]
    best = max(found, key=lambda one: one.saved_s, default=None)
    if best is None or best.saved_s < LEAST_SAVED * graph.step_s / graph.steps:
        return None
    return best


Alike = tuple[str, str, int, str]
"""What works share that should take equally long: part, kind, stage and unit; -1 and '' where the work
of different stages is compared, whose layers are alike."""


_Totals = dict[Alike, dict[int, float]]
"""{key of works that should take equally long: {rank: seconds of all of them}}."""


def _alike(work: Work, replicated: bool) -> Alike:
    where = (work.stage, work.unit) if replicated else (-1, "")
    return work.part, work.kind, *where


def _of_rank(
    graph: Graph,
    rank: int,
    own: Sequence[tuple[int, Alike]],
    totals: "_Totals",
    replicated: bool,
) -> Straggler | None:
    """The `Straggler` that a rank would be. own: (number, key) of its works; totals: see `_Totals`."""
    scale = {key: _scale(totals[key], rank) for key in totals if rank in totals[key]}
    changed = {number: graph.works[number].own_s * scale[key] for number, key in own}
    took_s = sum(graph.works[number].own_s for number, _ in own)
    ideal_s = sum(changed.values())
    if not ideal_s or took_s < SLOWER * ideal_s:
        return None
    saved_s = graph.replayed_s - graph.replay(changed).step_s
    lost = {
        part: sum(
            graph.works[at].own_s - s for at, s in changed.items() if graph.works[at].part == part
        )
        for part in PARTS
    }
    worst = max(lost, key=lost.__getitem__)
    cause = {DATA: SLOW_DATA, HOST: SLOW_HOST}.get(worst) or _why(graph, rank, replicated)
    slower, detail = took_s / ideal_s, ""
    if cause != SLOW_DATA:
        if found := difference(graph.launched, rank, slower, took_s - ideal_s):
            cause, detail = found
        elif cause == GPU and graph.launched and not graph.launched[rank].numbers:
            detail = UNKNOWN_SHAPES
    return Straggler(rank, slower, saved_s / graph.steps, cause, detail)


def _replicated(graph: Graph) -> bool:
    """Whether each stage has several ranks."""
    ranks: dict[int, set[int]] = defaultdict(set)
    for work in graph.works:
        if work.part == COMPUTE:
            ranks[work.stage].add(work.rank)
    return all(len(its) > 1 for its in ranks.values())


def _scale(total_s: dict[int, float], rank: int) -> float:
    """By how much the work of `rank` would be multiplied to take as long as the lower median's."""
    middle_s = sorted(total_s.values())[(len(total_s) - 1) // 2]
    return min(1.0, middle_s / total_s[rank]) if total_s[rank] else 1.0


def _why(graph: Graph, rank: int, replicated: bool) -> str:
    """Why a rank's compute takes longer."""
    last = max((work.stage for work in graph.works), default=-1)
    stages = {work.stage for work in graph.works if work.rank == rank and work.part == COMPUTE}
    if replicated or last <= 0 or last not in stages:
        return GPU
    of_layers: dict[bool, list[float]] = {True: [], False: []}
    for work in graph.works:
        if work.part == COMPUTE and work.unit and work.unit not in ("embedding", HEAD):
            of_layers[work.rank == rank].append(work.own_s)
    if not all(of_layers.values()):
        return UNKNOWN
    return GPU if fmean(of_layers[True]) > SLOWER * fmean(of_layers[False]) else LOSS
