"""For lessons and scripts: run programs on a warm pool and get the traces back."""

import tempfile
from typing import NamedTuple

from realrun.job import Job, choose_compute, program_texts
from realrun.report import run_report
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
