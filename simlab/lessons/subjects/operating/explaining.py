"""Lesson 12 on explaining a step (d18) and changing the size of a job (d15): predictions, exercises,
figures, code that answers follow-ups, and the step that hides a fault."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from simlab.cost import OpTimes
from simlab.diagnosis import Graph, Need, Work
from simlab.engine import simulate
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.program import Op
from simlab.schedules import generate
from simlab.spec.hardware import Link
from simlab.trace import Trace

CAUSES = ("slow_gpu", "loss", "slow_link")
PREDICTIONS = [
    Prediction("d18", {"forwards": Number("%"), "messages": Number("%"), "first": Number("%")}),
    Prediction("d18.change", {"saved": Number("%")}),
    Prediction("d18.blind", {"rank": Choice("0", "1", "2", "3"), "cause": Choice(*CAUSES)}),
    Prediction(
        "d15",
        {"static": Number("h"), "reactive": Number("h"), "best": Choice("static", "reactive")},
    ),
    Prediction("d15.change", {"reactive": Number("h"), "best": Choice("static", "reactive")}),
]

# d18: what a faster op saves
# ---------------------------------------------------------------------------------------------

Works = Mapping[str, tuple[float, Sequence[str]]]
"""{name: (seconds, names of what must have ended)}, each after what it needs."""


def _step(draw: Random) -> dict[str, Any]:
    """A random step of seven works, and the name of one of them."""
    names = [f"op {at}" for at in range(7)]
    works = {
        name: (float(draw.randrange(1, 12)), draw.sample(names[:at], min(at, draw.randrange(1, 3))))
        for at, name in enumerate(names)
    }
    return {"works": works, "name": draw.choice(names)}


def graph_of(works: Works) -> Graph:
    """The graph of some works, each on a rank of its own."""
    ends: dict[str, float] = {}
    made = []
    for name, (seconds, needs) in works.items():
        start_s = max((ends[need] for need in needs), default=0.0)
        ends[name] = start_s + seconds
        numbers = tuple(Need(list(works).index(need)) for need in needs)
        made.append(Work(0, "compute", name, "", start_s, ends[name], seconds, numbers))
    return Graph.of(made, 1)


def _saved_s(works: Works, name: str) -> float:
    return graph_of(works).saved_s(lambda work: work.name == name, 0.5)


def _end_s(works: Works) -> float:
    return graph_of(works).step_s


def _on_path(works: Works) -> set[str]:
    graph = graph_of(works)
    return {graph.works[link.number].name for link in graph.critical_path()}


def solution_d18(works, name):  # type: ignore[no-untyped-def]
    """The step's end before and after, each by going through the works in order."""

    def end_s(seconds_of):  # type: ignore[no-untyped-def]
        ends = {}
        for one, (_, needs) in works.items():
            ends[one] = max((ends[need] for need in needs), default=0.0) + seconds_of[one]
        return max(ends.values())

    seconds = {one: seconds for one, (seconds, _) in works.items()}
    return end_s(seconds) - end_s(seconds | {name: seconds[name] / 2})


def _of_total(works: Works, name: str) -> float:
    """As if the works followed each other."""
    total_s = sum(seconds for seconds, _ in works.values())
    return works[name][0] / 2 * _end_s(works) / total_s


# d18: a step that hides a fault
# ---------------------------------------------------------------------------------------------

RANKS, MICROBATCHES = 4, 8
FORWARD_S, BACKWARD_S = 0.020, 0.040
MESSAGE_BYTES = 10_000_000


@dataclass(frozen=True)
class Hidden:
    """A step with a fault in it: what can be seen of it, and the answer.

    rank:  the rank that is at fault, or that sends over the slow link. cause: one of `CAUSES`.
    trace: the step. healthy: the same step without the fault.
    """

    rank: int
    cause: str
    trace: Trace
    healthy: Trace

    def stacks(self) -> list[tuple[str, str]]:
        """[(rank, what it did in the middle of the step)], as a dump of all stacks shows it."""
        middle_s = self.trace.step_s / 2
        found = []
        for rank in range(RANKS):
            now = [s.op for s in self.trace.compute(rank) if s.start_s <= middle_s < s.end_s]
            found.append((f"rank {rank}", f"computes {now[0]}" if now else "waits in recv"))
        return found


def hidden(seed: int) -> Hidden:
    """The step that the number `seed` stands for: 1F1B on 4 ranks with 8 microbatches, where one GPU
    is slow, or the last stage has the loss besides, or one link is slow.

    Its losses are those of a healthy training: none of these faults changes what is computed.
    """
    draw = Random(seed)
    cause = draw.choice(CAUSES)
    last = RANKS - 1
    rank = {"slow_gpu": draw.randrange(last), "loss": last, "slow_link": draw.randrange(last)}[
        cause
    ]
    return Hidden(rank, cause, _faulty(cause, rank, draw.uniform(1.4, 1.8)), _faulty("", 0, 1.0))


def _faulty(cause: str, rank: int, factor: float) -> Trace:
    slow = [factor if cause in ("slow_gpu", "loss") and at == rank else 1.0 for at in range(RANKS)]
    times = OpTimes(
        forward_s=tuple(FORWARD_S * one for one in slow),
        backward_s=tuple(BACKWARD_S * one for one in slow),
    )
    pairs = [(at, at + step) for at in range(RANKS) for step in (-1, 1) if 0 <= at + step < RANKS]
    links = {
        pair: Link(bandwidth_bytes_per_s=3e8 if (cause, rank) == ("slow_link", pair[0]) else 1e10)
        for pair in pairs
        if pair[0] != pair[1]
    }
    program = generate("1f1b", RANKS, MICROBATCHES)
    return simulate(program, times, link=links, message_bytes=MESSAGE_BYTES)


def works_of(graph: Graph, kind: str, rank: int | None = None) -> float:
    """By which fraction the step gets shorter if all works of `kind` ('F', 'B', 'message'), of all
    ranks or of one, take half their time."""
    saved_s = graph.saved_s(lambda work: work.kind == kind and rank in (None, work.rank), 0.5)
    return saved_s / graph.step_s


def op_saves(graph: Graph, op: Op) -> float:
    """By which fraction the step gets shorter if one op takes half its time, and its message as long as before."""
    saved_s = graph.saved_s(lambda work: (work.kind, work.name) == (op.kind, str(op)), 0.5)
    return saved_s / graph.step_s


# d15: does a resize pay?
# ---------------------------------------------------------------------------------------------


def _resize(draw: Random) -> dict[str, Any]:
    model_ranks = draw.choice((4, 8, 16))
    now = model_ranks * draw.choice((2, 4, 6))
    return {
        "gpus": now + draw.randrange(1, 6 * model_ranks),
        "gpus_now": now,
        "model_ranks": model_ranks,
        "batch": draw.choice((96, 120, 240)),
        "step_s": float(draw.choice((8, 12, 20))),
        "steps_left": draw.choice((100, 1000, 10_000)),
        "resize_s": float(draw.choice((120, 600, 1800))),
    }


def _replicas(gpus: int, model_ranks: int, batch: int) -> int:
    """The most replicas that divide the batch."""
    return max(dp for dp in range(1, gpus // model_ranks + 1) if batch % dp == 0)


def _gain_s(
    gpus: int,
    gpus_now: int,
    model_ranks: int,
    batch: int,
    step_s: float,
    steps_left: int,
    resize_s: float,
    *,
    valid: bool = True,
    costs: bool = True,
    may_refuse: bool = True,
) -> float:
    """Seconds that a resize saves; 0 where it would save none and so is not done."""
    dp = _replicas(gpus, model_ranks, batch) if valid else gpus / model_ranks
    after_s = step_s * (gpus_now // model_ranks) / dp
    gain_s = steps_left * (step_s - after_s) - (resize_s if costs else 0.0)
    return max(0.0, gain_s) if may_refuse else gain_s


def _uneven(gpus: int, model_ranks: int, **case: Any) -> float:
    """With as many whole replicas as there is room for, whether they divide the batch or not."""
    whole = gpus // model_ranks * model_ranks
    return _gain_s(gpus=whole, model_ranks=model_ranks, valid=False, **case)


def solution_d15(gpus, gpus_now, model_ranks, batch, step_s, steps_left, resize_s):  # type: ignore[no-untyped-def]
    """The most replicas that divide the batch; then what is saved, less what the resize costs."""
    now = gpus_now // model_ranks
    then = max(dp for dp in range(1, gpus // model_ranks + 1) if batch % dp == 0)
    saved = steps_left * (step_s - step_s * now / then) - resize_s
    return max(0.0, saved)


EXERCISES = [
    Exercise(
        "d18",
        level=2,
        draw=_step,
        oracle=_saved_s,
        solution=solution_d18,
        mistakes={
            "half": lambda works, name: works[name][0] / 2,
            "path_only": lambda works, name: works[name][0] / 2 if name in _on_path(works) else 0.0,
            "share": _of_total,
        },
        sets=16,
    ),
    Exercise(
        "d15",
        level=2,
        draw=_resize,
        oracle=_gain_s,
        solution=solution_d15,
        mistakes={
            "any_replicas": partial(_gain_s, valid=False),
            "uneven": _uneven,
            "free": partial(_gain_s, costs=False),
            "always": partial(_gain_s, may_refuse=False),
        },
        sets=16,
        unit="h",
        scale=1 / 3600,
    ),
]

FIGURES = {
    "d18": {"forwards_percent": Figure(15.9, 0.2)},
    "d18.change": {"saved_percent": Figure(0.58, 0.01)},
    "d15": {"static_h": Figure(10.74, 0.05), "reactive_h": Figure(6.45, 0.05)},
    "d15.change": {"reactive_h": Figure(11.0, 0.05), "predictive_h": Figure(7.5, 0.05)},
}

TRIES = {
    "d18.follow_ups.1": """\
import simlab as sl
from simlab.diagnosis import trace_graph

times = sl.OpTimes(forward_s=0.020, backward_s=0.040)
graph = trace_graph(sl.simulate(sl.generate("1f1b", 4, 8), times))
for scale in (0.5, 0.0):
    saved_s = graph.saved_s(lambda work: work.kind == "F", scale)
    print(f"forwards times {scale}: {saved_s / graph.step_s:.0%} saved")
both_s = graph.saved_s(lambda work: work.kind in "FB", 0.5)
assert both_s > graph.saved_s(lambda work: work.kind == "F", 0.5)""",
    "d15.follow_ups.1": """\
from simlab.operations import random_jobs, simulate_queue

jobs = random_jobs(40, nodes=16, mean_gap_s=1800, mean_work_node_s=8 * 3600)
for resize_s in (60, 600, 3600):
    found = [simulate_queue(jobs, nodes=16, policy=p, resize_s=resize_s) for p in ("reactive", "predictive")]
    print(resize_s, *(f"{one.policy}: {one.resizes} resizes" for one in found))
assert found[1].resizes < found[0].resizes / 4, "the predictive policy resizes rarely when it is dear\"""",
}
