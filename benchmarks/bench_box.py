"""Plans in a box: predicted against measured step time, each prediction made before its run. `make
bench-box`; needs a quiet machine.

Promise: the median error is at most 3%, the worst at most 8%.
"""

import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from realrun.launch.pool import Pool
from realrun.report.summary import failures
from realrun.run.job import Job

MEDIAN, WORST = 0.03, 0.08
PLANS = [
    {"dp": 2, "microbatches": 2},
    {"dp": 4, "zero": 1, "microbatches": 2},
    {"dp": 4, "zero": 2, "microbatches": 2},
    {"dp": 4, "zero": 3, "microbatches": 2},
    {"dp": 4, "zero": 3, "microbatches": 2, "prefetch": 0},
    {"tp": 4},
    {"tp": 4, "sequence_parallel": True},
    {"cp": 4},
    {"cp": 2, "dp": 2, "zero": 3, "microbatches": 2},
    {"pp": 4, "microbatches": 8},
    {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "zb-h1", "zero": 2},
    {"pp": 2, "tp": 2, "microbatches": 4, "schedule": "interleaved-1f1b"},
    {"tp": 2, "dp": 2, "zero": 3, "recompute": "full", "microbatches": 2},
    {"dp": 2, "tp": 2, "pp": 2, "microbatches": 4},
    {"dp": 2, "tp": 2, "pp": 2, "microbatches": 4, "nodes": 2, "zero": 1},
    {"dp": 2, "pp": 2, "microbatches": 4, "schedule": "dualpipe", "zero": 1},
    {"dp": 4, "ep": 4, "microbatches": 4},
    {"dp": 4, "ep": 4, "microbatches": 4, "ep_overlap": True},
    {"dp": 2, "ep": 2, "pp": 2, "microbatches": 4, "schedule": "dualpipe", "ep_overlap": True},
]


def row(pools, plan):
    """One plan's facts."""
    plan = dict(plan)
    nodes = plan.pop("nodes", 1)
    with tempfile.TemporaryDirectory() as folder:
        box = {"cluster": "dgx-a100", "nodes": nodes}
        sizes = {"experts": 8} if "ep" in plan else {}
        box |= {"model": "mixtral-8x7b"} if "ep" in plan else {}
        job = Job(plan=plan, box=box, sizes=sizes, steps=3, check=False, out=folder)
        if job.ranks not in pools:
            pools[job.ranks] = Pool(job.ranks)
        facts = pools[job.ranks].run(job)
    if wrong := failures(facts):
        raise SystemExit("; ".join(wrong))
    return facts | {"nodes": nodes, "given": plan}


def main():
    """Run them all, print the table; 1 if the promise is broken. With a path, write the rows there
    as JSON."""
    pools, rows = {}, []
    try:
        for plan in PLANS:
            rows.append(row(pools, plan))
            facts = rows[-1]
            times = f"{facts['predicted_step_s']:8.3f} {facts['measured_step_s']:8.3f}"
            print(
                f"{facts['name']:<32} {facts['nodes']} {times} s {facts['error']:+7.1%}  x{facts['time_scale']:.0f}  {plan}",
                flush=True,
            )
    finally:
        for pool in pools.values():
            pool.close()
    errors = sorted(abs(facts["error"]) for facts in rows)
    print(
        f"{len(rows)} plans: median error {median(errors):.1%}, worst {errors[-1]:.1%} (promised {MEDIAN:.0%}, {WORST:.0%})"
    )
    if len(sys.argv) > 1:
        kept = (
            "name",
            "given",
            "nodes",
            "time_scale",
            "predicted_step_s",
            "measured_step_s",
            "steps_s",
            "error",
            "overhead_s",
        )
        Path(sys.argv[1]).write_text(
            json.dumps([{name: facts[name] for name in kept} for facts in rows], indent=1) + "\n"
        )
    return int(median(errors) > MEDIAN or errors[-1] > WORST)


if __name__ == "__main__":
    sys.exit(main())
