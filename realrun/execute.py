"""For lessons and scripts: run programs on a warm pool and get the traces back."""

import tempfile
from typing import NamedTuple

from realrun.job import Job, choose_compute, program_texts
from realrun.plan_job import PlanJob, plan_fields
from realrun.report import run_report
from simlab.playback import whole_step_s
from simlab.trace import Trace


class Run(NamedTuple):
    """One executed program: what was predicted before, what was measured (the median step), and the report's figures."""

    predicted: Trace
    measured: Trace
    report: dict


def execute(pool, programs, *, out=None, **fields):
    """[`Run` of each program], executed one after the other on `pool`'s processes.

    programs: valid `simlab.Program`s with as many ranks as the pool.
    out:      folder for everything that is written; None: a temporary one.
    fields:   those of `realrun.Job`, e.g. forward_s, link_s, steps. Giving forward_s or backward_s means padded compute.
    """
    padded = "forward_s" in fields or "backward_s" in fields
    compute, why = choose_compute(pool.ranks, asked=fields.pop("compute", None), padded_time_given=padded, device=pool.device)
    with tempfile.TemporaryDirectory(prefix="realrun-") as temporary:
        job = Job(programs=program_texts(programs), compute=compute, why_compute=why, out=out or temporary, **fields)
        runs = [run_report(job, run) for run in pool.run(job)["runs"]]
    return [Run(predicted, measured, report) for report, predicted, measured in runs]


class PlanRun(NamedTuple):
    """One executed plan: what was predicted before (None: nothing was), what was measured (the median step), and the run's facts."""

    predicted: Trace | None
    measured: Trace
    facts: dict


def execute_plan(pool, plan, *, cluster=None, nodes=1, model=None, slow_down=None, out=None, **fields):
    """The `PlanRun` of a whole `simlab.Plan` on `pool`'s processes.

    cluster: of the catalogue, by name: run in a box, with the times that `model`'s layers take there on sequences of `plan.seq` tokens,
             `slow_down` times as slow; None: as fast as this machine.
    fields:  those of `realrun.PlanJob`: sizes, predict_on, engine, steps, warmup, check, timeout_s.
    """
    box = None if cluster is None else {"cluster": cluster, "nodes": nodes, "model": model, "seq": plan.seq, "slow_down": slow_down}
    with tempfile.TemporaryDirectory(prefix="realrun-") as temporary:
        job = PlanJob(plan=plan_fields(plan), box=box, out=out or temporary, **fields)
        facts = pool.run(job)
        traces = sorted((Trace.load(path) for path in job.folder.glob("measured-step-*.json")), key=whole_step_s)
        predicted = Trace.load(job.folder / "predicted.json") if job.is_predicted else None
    return PlanRun(predicted, traces[len(traces) // 2], facts)
