"""The planner's order of plans against the order in which they are measured in a box. `make
bench-planner`; on a quiet machine, five minutes.

A box has a cluster's times, slowed down, in real processes; see `realrun.run.box`. The planner is
asked for the best plan of each way to split the model over the ranks, with either schedule where
there is a pipeline. Those plans are executed, and the two orders are compared. It proves that what
the planner counts (the order of ops, overlap, bubble, messages, recomputation) decides on real
processes as it says; it cannot prove that the times of kernels and links are right, since both have
them from the same catalogue.

Promise: Spearman's correlation is at least 0.9, and the plan that is measured to be the fastest takes
at most 3% less than the one that the planner puts first.
"""

import json
import sys
import tempfile
from pathlib import Path

from realrun.launch.pool import Pool
from realrun.report.summary import failures
from realrun.run.job import Job, plan_fields
from realrun.run.job.clusters import cut_model, filled_cluster
from simlab.planner import Space, search
from simlab.planner.search import plan_text
from simlab.planner.space import SEARCHED, divisors
from simlab.studies.published.ranks import rank_correlation, regret_pct

SPEARMAN, REGRET_PCT = 0.9, 3.0
RANKS, NODES, LAYERS, BATCH = 4, 2, 16, 16
CLUSTER, MODEL = "dgx-a100", "megatron-7.5b"
BEST_S = 4.0
"""How long the step of the planner's best plan takes in the box, in seconds."""


def space(ranks=RANKS, layers=LAYERS, batch=BATCH, **fixed):
    """The plans of the model on the cluster that the box has."""
    cluster = filled_cluster(CLUSTER, NODES, ranks)
    return Space(
        model=cut_model(MODEL, layers), cluster=cluster, global_batch=batch, fixed={"cp": 1} | fixed
    )


def best_of_each_split(ranks=RANKS, layers=LAYERS, batch=BATCH):
    """[`Ranked`], the planner's best plan for each (tp, pp) that splits the model over the ranks, and
    for each schedule where pp > 1; the fastest first."""
    found = []
    for tp in divisors(ranks):
        for pp in divisors(ranks // tp):
            for schedule in SEARCHED if pp > 1 else SEARCHED[:1]:
                fixed = {"tp": tp, "pp": pp} | ({"schedule": schedule} if pp > 1 else {})
                each = search(space(ranks, layers, batch, **fixed), kept=1, layered=0)
                found += each.plans
    return sorted(found, key=lambda ranked: ranked.step_s)


def measured(pool, ranked, time_scale, layers=LAYERS, steps=3):
    """What executing a plan in the box finds, with both step times in the cluster's own seconds."""
    box = {"cluster": CLUSTER, "nodes": NODES, "model": MODEL, "time_scale": time_scale}
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            plan=plan_fields(ranked.plan),
            sizes={"layers": layers},
            box=box,
            steps=steps,
            check=False,
            out=folder,
        )
        facts = pool.run(job)
    if wrong := failures(facts):
        raise SystemExit("; ".join(wrong))
    return {
        "plan": plan_text(ranked.plan),
        "planner_step_s": ranked.step_s,
        "box_step_s": facts["predicted_step_s"] / time_scale,
        "measured_step_s": facts["measured_step_s"] / time_scale,
    }


def agreement(rows):
    """{"spearman": of the planner's and the measured times, "regret_pct": by how much the planner's
    first takes longer than the measured best}"""
    pairs = [(row["planner_step_s"], row["measured_step_s"]) for row in rows]
    return {"spearman": rank_correlation(*zip(*pairs)), "regret_pct": regret_pct(pairs, 1)}


def broken(said):
    """Whether the promise is broken."""
    return said["spearman"] < SPEARMAN or said["regret_pct"] > REGRET_PCT


def main():
    """Execute them all, print the table; 1 if the promise is broken. With a path, write the rows
    there as JSON."""
    ranks, rows = best_of_each_split(), []
    scale = BEST_S / ranks[0].step_s
    with Pool(RANKS) as pool:
        for ranked in ranks:
            rows.append(measured(pool, ranked, scale))
            row = rows[-1]
            times = [row[f"{by}_step_s"] for by in ("planner", "box", "measured")]
            print(*(f"{time_s:8.4f}" for time_s in times), "s ", row["plan"], flush=True)
    said = agreement(rows)
    print(
        f"{len(rows)} plans: Spearman {said['spearman']:.3f}, regret {said['regret_pct']:.1f}%"
        f" (promised {SPEARMAN}, {REGRET_PCT:.0f}%)"
    )
    if len(sys.argv) > 1:
        kept = {"time_scale": scale, "agreement": said, "plans": rows}
        Path(sys.argv[1]).write_text(json.dumps(kept, indent=1) + "\n")
    return int(broken(said))


if __name__ == "__main__":
    sys.exit(main())
