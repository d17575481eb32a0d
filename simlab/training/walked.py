"""A step in time: the walks of its ranks, which `simlab.engine.simulate` asks op by op, and the end
of the step, where gradients become complete and the optimizer follows."""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from simlab.cost.groups import host_sharers
from simlab.cost.optimizer import own_parameters, update_s
from simlab.cost.rank_walk import Meeting, Outlines, RankWalk
from simlab.cost.stage_times import StageCost
from simlab.lowering.instructions import RankLowering
from simlab.lowering.zero import reduces_each_backward
from simlab.memory.states import optimizer_bytes, state_bytes
from simlab.program import Program
from simlab.spec.hardware import Link
from simlab.spec.model import Model
from simlab.spec.plan import Plan
from simlab.trace import OPTIMIZER, Span, Trace

SHOWN = {
    "all_gather": "parameters",
    "all_reduce": "gradients",
    "reduce_scatter": "gradients",
    "replicas": "sum over replicas",
}
"""{kind of a collective, or the dimension of replicas: what a picture calls it}"""


class StepEnd(NamedTuple):
    """When a step's last parts are over, s."""

    reduced_s: float
    """The moment at which the gradients of all ranks are complete."""
    end_s: float
    """The moment at which all parameters are updated."""
    copying_s: float
    """The seconds of copies to and from the host and its drives, on the rank that copies most."""


def rank_walks(
    model: Model, plan: Plan, program: Program, costs: Sequence[StageCost]
) -> list[RankWalk]:
    """[`RankWalk` of each pipeline rank], at the begin of a step. costs: `StageCost` of each."""
    outlines: dict[int, Outlines] = {}
    return [
        RankWalk(
            RankLowering(model, plan, program, rank, kernels=cost.kernels),
            cost,
            outlines.setdefault(id(cost), {}),
        ).begins()
        for rank, cost in enumerate(costs)
    ]


def step_end(
    walks: Sequence[RankWalk],
    trace: Trace,
    optimizer_s: float,
    links: dict[tuple[int, int], Link],
) -> StepEnd:
    """`StepEnd` of a step whose ops are in `trace`. optimizer_s: seconds of the update. links:
    {(rank, other rank): the `Link` between them}.

    A rank goes through the end of its list by itself, but for the communication between pipeline
    ranks, which begins when all that take part are there. It begins when the message of its last
    op, if that has one, no longer keeps it.
    """
    over = [0.0] * len(walks)
    for rank, ends in zip(*(trace.columns("compute")[at] for at in (0, 3))):
        over[rank] = max(over[rank], ends)
    for rank, walk in enumerate(walks):
        over[rank] += _last_message_s(walk.lowering, rank, links)
    tails = [walk.ends(now_s, optimizer_s) for walk, now_s in zip(walks, over)]
    meetings: dict[int, Meeting] = {}
    for rank, tail in enumerate(tails):
        _go_on(meetings, rank, tail)
    while meetings:
        # of the two ends before that of all: the lists have them in this order
        ends = {rank for rank, meeting in meetings.items() if meeting.dimension == "ends"}
        members = ends or set(meetings)
        ready_s = max(meetings[rank].ready_s for rank in members)
        for rank in members:
            _go_on(meetings, rank, tails[rank], ready_s)
    return StepEnd(
        max(walk.reduced_s for walk in walks),
        max(walk.end_s for walk in walks),
        max(sum((copy.end_s - copy.start_s for copy in walk.copies), 0.0) for walk in walks),
    )


def _last_message_s(lowering: RankLowering, rank: int, links: dict[tuple[int, int], Link]) -> float:
    """The seconds that sending the result of its last op keeps a rank."""
    program = lowering.program
    user = program.user(lowering.ops[-1])
    pair = rank, rank if user is None else program.rank_of[user]
    return links[pair].overhead_s if pair in links else 0.0


def _go_on(
    meetings: dict[int, Meeting],
    rank: int,
    tail: Generator[Meeting, float, None],
    ready_s: float | None = None,
) -> None:
    """Walk on until the rank's next meeting, if there is one."""
    meetings.pop(rank, None)
    try:
        meetings[rank] = next(tail) if ready_s is None else tail.send(ready_s)
    except StopIteration:
        pass


def end_spans(walks: Sequence[RankWalk], end: StepEnd) -> list[Span]:
    """The spans of each rank after its reductions: its copies between GPU, host and drives, and as
    the optimizer's what is between them, with the norm of all gradients."""
    spans: list[Span] = []

    def add_optimizer(rank: int, what: str, start_s: float, end_s: float) -> None:
        if end_s > start_s:
            spans.append(Span(rank, OPTIMIZER, what, start_s, end_s, kind=OPTIMIZER))

    for rank, walk in enumerate(walks):
        now_s, what = end.reduced_s, "norm" if walk.copies else "step"
        for copy, start_s, end_s in walk.copies:
            add_optimizer(rank, what, now_s, start_s)
            size_bytes = int(copy.size_bytes)
            spans.append(
                Span(rank, copy.dimension, copy.name, start_s, end_s, size_bytes, kind=copy.kind)
            )
            now_s, what = end_s, "step"
        add_optimizer(rank, what, now_s, walk.end_s)
    return spans


def shown_spans(walks: Sequence[RankWalk]) -> list[Span]:
    """A `Span` for each stage and kind of communication over the ranks that hold the same part of
    the model, from the first one's begin to the last one's end."""
    plan = walks[0].lowering.plan
    # {(rank, stage, stream, kind): (start, end, bytes)}
    found: dict[tuple[int, int, str, str], tuple[float, float, float]] = {}
    for rank, walk in enumerate(walks):
        stage_of = {
            unit.name: stage for stage, units in walk.lowering.units.items() for unit in units
        }
        for instruction, start_s, end_s in walk.carried:
            stream = instruction.dimension
            scatters = stream in ("dp", "edp") and instruction.kind == "reduce_scatter"
            if scatters and reduces_each_backward(plan):
                continue  # each op has its own
            key = rank, stage_of[instruction.unit], stream, instruction.kind
            was = found.get(key, (start_s, end_s, 0.0))
            found[key] = (
                min(start_s, was[0]), max(end_s, was[1]), was[2] + instruction.size_bytes
            )  # fmt: skip
    return [
        Span(
            rank,
            stream,
            f"{stage} {SHOWN.get(stream) or SHOWN[kind]}",
            start_s,
            end_s,
            int(size_bytes),
            kind=kind,
            stage=stage,
        )
        for (rank, stage, stream, kind), (start_s, end_s, size_bytes) in found.items()
    ]


def optimizer_s(
    costs: Sequence[StageCost], program: Program, parameters: Sequence[float], layers: list[int]
) -> float:
    """Seconds of the update on the rank for which it takes longest. parameters, layers: of each
    stage."""
    return max(update_s(cost, program, parameters, layers) for cost in costs)


def host_bytes(cost: StageCost, program: Program, parameters: Sequence[float]) -> float:
    """Bytes of its GPUs' states that a node's host holds: moments, the fp32 copy and gradients;
    parameters too if they are offloaded."""
    plan = cost.plan
    if plan.offload not in ("optimizer", "parameters") or plan.offload_to != "host":
        return 0.0
    states = state_bytes(plan)
    each = optimizer_bytes(plan) + states.gradient
    if plan.offload == "parameters":
        each += states.parameter
    return each * own_parameters(plan, program, parameters) * host_sharers(plan, cost.cluster)
