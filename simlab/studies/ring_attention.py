"""It simulates the ring attention of one layer, step by step and rank by rank.

This checks independently the closed form that the cost of a training step uses.
"""

from simlab.cost.stage_times import StageCost
from simlab.engine import run_tasks
from simlab.engine.tasks import Task
from simlab.errors import InputError
from simlab.lowering.context import ring_work
from simlab.lowering.kernels import Attention, Communication, layer_kernels
from simlab.spec.model import Model
from simlab.spec.named import AnyCluster, AnyModel, named
from simlab.spec.plan import Plan
from simlab.trace import COMPUTE, Span, Trace


def ring_trace(model: AnyModel, plan: Plan, cluster: AnyCluster) -> Trace:
    """The `Trace` of the forward attention of one layer and one microbatch on a ring of `plan.cp`
    ranks.

    It has the streams compute and cp. At step i a rank sends on the keys and values with which it
    computes, and receives the next ones into a second buffer. So message i waits for the
    computation of step i - 1 on both ranks. The computation of a step takes as long as the mask
    leaves scores to compute (`ring_work`). A step without scores has no span.

    Raises `InputError` unless the plan has ring attention on at least 2 ranks.
    """
    model, plan, cluster = named(model, plan, cluster)
    if plan.cp == 1 or plan.cp_kind != "ring":
        raise InputError(
            f"cp = {plan.cp}, cp_kind = {plan.cp_kind!r}: a ring takes cp of 2 or more and cp_kind = 'ring'"
        )
    plan.check(model)
    tasks, parts = _tasks(model, plan, StageCost(model, plan, cluster))
    times = run_tasks(tasks)
    spans = [
        _span(task, start_s, end_s, part)
        for task, start_s, end_s, part in zip(tasks, times.starts, times.ends, parts)
        if task.seconds
    ]
    name = f"ring attention, {plan.cp_layout}"
    return Trace(
        spans, [], {"name": name, "source": "simulated", "ranks": plan.cp, "level": "layers"}
    )


def _tasks(model: Model, plan: Plan, cost: StageCost) -> tuple[list[Task], list[str]]:
    """The messages and computations of all ranks and what each of them waits for; and for each whose
    queries meet whose keys, '' for messages."""
    kernels = layer_kernels(model, plan).forward
    ring = next(k for k in kernels if isinstance(k, Communication) and k.kind == "ring")
    attention_s = cost.kernel_s(next(kernel for kernel in kernels if isinstance(kernel, Attention)))
    message_s = cost.kernel_s(ring) / ring.steps
    work = ring_work(plan.cp, plan.cp_layout)
    busiest = max(map(sum, work))
    tasks: list[Task] = []
    parts: list[str] = []
    computed: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int, int], int] = {}
    for step in range(plan.cp):
        for rank in range(plan.cp):
            name = f"step {step}"
            before, after = (rank - 1) % plan.cp, (rank + 1) % plan.cp
            there = [sent[before, step - 1]] if step else []
            if step < ring.steps:
                free = [computed[at, step - 1] for at in (rank, after)] if step else []
                sent[rank, step] = len(tasks)
                needs = tuple({*there, *free})
                message = Task("", name, f"cp {rank}", (rank,), message_s, needs, ring.size_bytes)
                tasks.append(message)
                parts.append("")
            computed[rank, step] = len(tasks)
            seconds = attention_s * float(work[rank][step] / busiest)
            tasks.append(Task("", name, COMPUTE, (rank,), seconds, tuple(there)))
            parts.append(f"scores {rank}←{(rank - step) % plan.cp}")
    return tasks, parts


def _span(task: Task, start_s: float, end_s: float, part: str) -> Span:
    computes = task.stream == COMPUTE
    stream, kind = (COMPUTE, "F") if computes else ("cp", "ring")
    where = task.ranks[0], stream, task.op, start_s, end_s, int(task.size_bytes)
    return Span(*where, kind=kind, unit="layer 0", part=part)
