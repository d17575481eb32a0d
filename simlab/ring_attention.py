"""One layer's ring attention, step by step and rank by rank: an independent check of the closed form that a step's cost uses."""

from simlab.cost.context import ring_work
from simlab.cost.kernels import Attention, layer_kernels
from simlab.cost.stage_times import StageCost
from simlab.engine import run_tasks
from simlab.errors import InputError
from simlab.refinement import Task
from simlab.trace import COMPUTE, Span, Trace


def ring_trace(model, plan, cluster):
    """The forward attention of one layer and microbatch on the `plan.cp` ranks of a ring, a `Trace` with streams compute and cp.

    At step i a rank sends on the keys and values that it computes on, and receives the next ones into a second buffer: so message i waits
    for the computing of step i - 1 on both sides. What the mask leaves of the scores decides how long a step's computing lasts
    (`ring_work`); a step in which it leaves none has no span.
    """
    if plan.cp == 1 or plan.cp_kind != "ring":
        raise InputError(f"cp = {plan.cp}, cp_kind = {plan.cp_kind!r}: a ring takes cp of 2 or more and cp_kind = 'ring'")
    plan.check(model)
    cost, kernels = StageCost(model, plan, cluster), layer_kernels(model, plan).forward
    ring = next(kernel for kernel in kernels if getattr(kernel, "kind", "") == "ring")
    attention_s = cost.kernel_s(next(kernel for kernel in kernels if isinstance(kernel, Attention)))
    work = ring_work(plan.cp, plan.cp_layout)
    busiest = max(map(sum, work))
    tasks, computed, sent = [], {}, {}
    for step in range(plan.cp):
        for rank in range(plan.cp):
            before, after = (rank - 1) % plan.cp, (rank + 1) % plan.cp
            there = [sent[before, step - 1]] if step else []
            if step < ring.steps:
                free = [computed[at, step - 1] for at in (rank, after)] if step else []
                sent[rank, step] = len(tasks)
                needs = tuple({*there, *free})
                tasks.append(Task("", f"step {step}", f"cp {rank}", (rank,), cost.kernel_s(ring) / ring.steps, needs, ring.size_bytes))
            computed[rank, step] = len(tasks)
            seconds = attention_s * float(work[rank][step] / busiest)
            tasks.append(Task("", f"step {step}", COMPUTE, (rank,), seconds, tuple(there)))
    times = run_tasks(tasks)
    spans = [
        Span(task.ranks[0], task.stream.split()[0], task.op, start_s, end_s, int(task.size_bytes))
        for task, start_s, end_s in zip(tasks, times.starts, times.ends)
        if task.seconds
    ]
    name = f"ring attention, {plan.cp_layout}"
    return Trace(spans, [], {"name": name, "source": "simulated", "ranks": plan.cp, "level": "layers"})
