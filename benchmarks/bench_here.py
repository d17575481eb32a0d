"""Whole plans at full speed on this machine, nothing padded: predicted from what `realrun measure`
finds, against measured.

`make bench-here`; by both backends, on a quiet machine. One rank a core (or GPU), at most 4, of a
model that is large enough for kernels to count. No promise is made: what the simulator knows of
this machine is a quick measurement of kernels and messages by themselves.
"""

import json
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from statistics import median

from realrun.cli.main import main as realrun
from realrun.cli.measure import choose_ranks
from realrun.launch.pool import Pool
from realrun.run.job import Job

SIZES = {"layers": 4, "hidden": 512, "heads": 8, "seq": 256}
SEQUENCES = 16
PLANS = [
    {"dp": 1},
    {"dp": 1, "zero": 1},
    {"dp": 1, "zero": 2},
    {"dp": 1, "zero": 3},
    {"dp": 1, "zero": 3, "recompute": "full"},
    {"tp": 1},
    {"tp": 1, "sequence_parallel": True},
    {"pp": 1, "schedule": "gpipe"},
    {"pp": 1, "schedule": "1f1b"},
    {"pp": 1, "schedule": "zb-h1"},
]
"""With all ranks in the first dimension."""


def row(pool, plan, machine, backend, folder):
    """One run's facts."""
    dimension, ranks = next(iter(plan)), pool.ranks
    microbatches = SEQUENCES // 4 // (ranks if dimension == "dp" else 1)
    plan = plan | {dimension: ranks, "microbatches": microbatches, "microbatch_size": 4}
    job = Job(
        plan=plan,
        sizes=SIZES,
        predict_on=machine,
        backend=backend,
        steps=3,
        check=False,
        out=folder,
    )
    return pool.run(job) | {"given": plan}


def ranked(rows):
    """(pairs of runs that are measured in the order in which they are predicted, pairs that are not
    predicted alike)."""
    pairs = [
        (a, b) for a, b in combinations(rows, 2) if a["predicted_step_s"] != b["predicted_step_s"]
    ]
    return sum(
        (a["predicted_step_s"] < b["predicted_step_s"])
        == (a["measured_step_s"] < b["measured_step_s"])
        for a, b in pairs
    ), len(pairs)


def main():
    """Measure, predict and run all, print the table. With a path, write the rows there as JSON."""
    ranks, device = choose_ranks(None, "auto")
    ranks = min(ranks, 4)  # layers
    rows = []
    with tempfile.TemporaryDirectory() as folder, Pool(ranks, device=device) as pool:
        machine = f"{folder}/machine.json"
        if realrun(["measure", "--quick", "--ranks", str(ranks), "--out", machine]):
            return 1
        about = json.loads(Path(machine).read_text())["measured"]
        for plan in PLANS:
            for backend in ("native", "torch"):
                rows.append(row(pool, plan, machine, backend, folder))
                facts = rows[-1]
                times = f"{facts['predicted_step_s']:8.3f} {facts['measured_step_s']:8.3f}"
                print(
                    f"{facts['name']:<24} {times} s {facts['error']:+7.1%}  {facts['given']}",
                    flush=True,
                )
    errors = {
        backend: [facts["error"] for facts in rows if facts["backend"] == backend]
        for backend in ("native", "torch")
    }
    for backend, its in errors.items():
        print(
            f"{backend}: {len(its)} plans, median error {median(map(abs, its)):.1%}, {min(its):+.1%} to {max(its):+.1%}"
        )
    agreed, pairs = ranked([facts for facts in rows if facts["backend"] == "native"])
    print(f"of {pairs} pairs of plans {agreed} are in the order in which they were predicted")
    if len(sys.argv) > 1:
        kept = (
            "name",
            "backend",
            "given",
            "predicted_step_s",
            "measured_step_s",
            "steps_s",
            "error",
        )
        about = {name: value for name, value in about.items() if name not in ("samples",)}
        found = {
            "machine": about,
            "sizes": SIZES,
            "runs": [{name: facts[name] for name in kept} for facts in rows],
        }
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
