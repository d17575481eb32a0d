"""It runs programs and plans on a warm pool of processes, for lessons and scripts, and gives the
traces back."""

import tempfile
from collections.abc import Iterable
from typing import Any, NamedTuple

from realrun.launch.pool import Pool
from realrun.report.traces import load_traces
from realrun.run.job import Job, plan_fields
from realrun.run.job.pipelines import choose_compute, program_texts
from simlab.program import Program
from simlab.spec.plan import Plan
from simlab.trace import Trace

SPREAD = 0.25
"""How much longer the longest of some measured steps may take than the shortest, as a part of it."""


class Run(NamedTuple):
    """One executed program: the trace that was predicted before (None: none was), the trace of the median step that
    was measured, and the report's figures."""

    predicted: Trace | None
    measured: Trace
    report: dict[str, Any]


class PlanRun(NamedTuple):
    """One executed plan: the trace that was predicted before (None: none was), the trace of the
    median step that was measured, and the run's facts."""

    predicted: Trace | None
    measured: Trace
    facts: dict[str, Any]


def execute(
    pool: Pool, programs: Iterable[Program], *, out: str | None = None, **fields: Any
) -> list[Run]:
    """A `Run` of each program, which are executed one after the other on `pool`'s processes.

    programs: valid `simlab.Program`s with as many ranks as the pool. out: a folder for everything
    that is written; None: a temporary one. fields: those of `realrun.Job`, such as forward_s,
    link_s and steps. Where forward_s or backward_s is given, compute is padded.
    """
    padded = "forward_s" in fields or "backward_s" in fields
    compute, why = choose_compute(
        pool.ranks, asked=fields.pop("compute", None), padded_time_given=padded, device=pool.device
    )
    with tempfile.TemporaryDirectory(prefix="realrun-") as temporary:
        job = Job(
            programs=program_texts(programs),
            compute=compute,
            why_compute=why,
            out=out or temporary,
            **fields,
        )
        reports = pool.run(job)["runs"]
        traces = [load_traces(job, run) for run in job.runs]
    return [Run(its.predicted, its.measured, report) for its, report in zip(traces, reports)]


def disturbed(runs: Iterable[Run | PlanRun]) -> bool:
    """Whether something else used this machine while it measured: a calibration was disturbed, or the
    steps of a run are further apart than `SPREAD`. Then the figures say little."""
    facts = [run.report if isinstance(run, Run) else run.facts for run in runs]
    return any(
        its.get("disturbed_by") or max(its["steps_s"]) > (1 + SPREAD) * min(its["steps_s"])
        for its in facts
    )


def demonstrate(pool: Pool, name: str, plan: Plan, **arguments: Any) -> list[Any]:
    """What `realrun.lessons.demonstrations`' function `name` answers on each rank, called by the
    rank with its `Mesh` of `plan` and `arguments`."""
    place = "realrun.lessons.demonstrations:DEMONSTRATIONS"
    return pool.call(place, name, plan, **arguments)


def execute_plan(
    pool: Pool,
    plan: Plan,
    *,
    cluster: str | None = None,
    nodes: int = 1,
    model: str | None = None,
    time_scale: float | None = None,
    out: str | None = None,
    **fields: Any,
) -> PlanRun:
    """The `PlanRun` of a whole `simlab.Plan` on `pool`'s processes.

    cluster: the name of one of the catalogue; None: the plan runs as fast as this machine. With a
    name it runs in a box, with the times that `model`'s layers take there on sequences of
    `plan.seq` tokens, `time_scale` times as slow. fields: those of `realrun.Job`: sizes,
    predict_on, backend, steps, warmup, check, timeout_s.
    """
    box = (
        None
        if cluster is None
        else {
            "cluster": cluster,
            "nodes": nodes,
            "model": model,
            "seq": plan.seq,
            "time_scale": time_scale,
        }
    )
    with tempfile.TemporaryDirectory(prefix="realrun-") as temporary:
        job = Job(plan=plan_fields(plan), box=box, out=out or temporary, **fields)
        facts = pool.run(job)
        traces = load_traces(job, job.runs[0])
    return PlanRun(traces.predicted, traces.measured, facts)
