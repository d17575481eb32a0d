"""It says how near the planner comes to the best-known plans that others published.

    python -m benchmarks.published_plans

Each dense row of simlab/studies/published/plans.csv is searched with its model, cluster, batch,
precision, ZeRO stage and context-parallel degree, and with its recomputation where that was
published. A row is met if the published plan is among the first five, or its predicted step is within
5% of the first one's.
"""

import csv
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from simlab import Cluster, Model, Plan, cluster_of_gpu, load_cluster
from simlab.planner import Ranked, Space, search
from simlab.planner.rank import TIE
from simlab.planner.search import plan_text
from simlab.studies.published_runs import RUNS

PLANS = RUNS.with_name("plans.csv")
GPUS = {"A100": "A100-SXM-80GB", "H100": "H100-SXM-80GB", "B200": "B200-SXM"}
FIRST = 5
ROOMY = 10
"""How many times as much memory a plan that does not fit is given, to predict its step."""


class Met(NamedTuple):
    """A published plan beside the best one found."""

    name: str
    rank: int | None
    """Its place among the plans found; None if it is not among them."""
    slower: float | None
    """(its predicted step - the best one's) / the best one's; None if either cannot be."""
    fits: bool
    published: str
    best: str

    @property
    def is_met(self) -> bool:
        """Whether it is among the first five, or a tie with the first."""
        among = self.rank is not None and self.rank <= FIRST
        return among or (self.slower is not None and self.slower <= TIE)


def rows() -> list[dict[str, str]]:
    """The rows of dense models."""
    with PLANS.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["hidden"] and row["ep"] in ("", "1")]


def _model(row: Mapping[str, str]) -> Model:
    llama = row["gated_mlp"] == "1" or "llama" in row["model"].lower()
    sizes = {n: int(row[n]) for n in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    seq = int(row["seq"])
    return Model(
        name=row["model"], seq=seq, positions=0 if llama else seq, gated_mlp=llama, bias=not llama,
        tied_head=not llama, **sizes,
    )  # fmt: skip


def _cluster(row: Mapping[str, str]) -> Cluster:
    spelled = next(text for name, text in GPUS.items() if name in row["gpu"])
    name, gpus = cluster_of_gpu(spelled), int(row["gpus"])
    assert name is not None
    cluster = load_cluster(name)
    in_node = min(gpus, cluster.gpus_per_node)
    return replace(cluster, gpus_per_node=in_node, nodes=gpus // in_node)


def _fixed(row: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what is not searched, what the published plan says)"""
    whole = {n: int(row[n] or 1) for n in ("dp", "tp", "pp", "cp", "vpp")}
    fixed: dict[str, Any] = {
        "precision": "fp8" if "fp8" in row["precision"] else row["precision"],
        "zero": 3 if "fsdp" in row["zero_or_distopt"] else 1,
        "cp": whole["cp"],
    }
    if "bigscience" in row["source"]:  # older than fused attention
        fixed["attention"] = "unfused"
    if row["recompute"]:
        fixed["recompute"] = row["recompute"]
    said = {name: whole[name] for name in ("dp", "tp", "pp")}
    said["schedule"] = "interleaved-1f1b" if whole["vpp"] > 1 else "1f1b"
    if whole["vpp"] > 1:
        said["chunks"] = whole["vpp"]
    if row["microbatch"]:
        said["microbatch_size"] = int(row["microbatch"])
    return fixed, fixed | said


def met(row: Mapping[str, str]) -> Met:
    """The `Met` of a row."""
    model, cluster, (fixed, said) = _model(row), _cluster(row), _fixed(row)
    batch = int(row["global_batch"])
    found = search(Space(model=model, cluster=cluster, global_batch=batch, fixed=fixed), layered=0)
    own = Space(model=model, cluster=cluster, global_batch=batch, fixed=said)
    published = search(own, kept=1, layered=0).plans
    fits = bool(published)
    if not fits:
        gpu = replace(cluster.gpu, memory_bytes=ROOMY * cluster.gpu.memory_bytes)
        roomy = replace(own, cluster=replace(cluster, gpu=gpu))
        published = search(roomy, kept=1, layered=0).plans
    name = f"{row['model']} seq {row['seq']} on {row['gpus']} {row['gpu'][:4]}"
    if not published or not found.plans:
        return Met(name, None, None, fits, "cannot be split", "")
    theirs, best = published[0], found.plans[0]
    places = [place for place, its in enumerate(found.plans, 1) if _alike(its, theirs.plan)]
    slower = theirs.step_s / best.step_s - 1
    texts = plan_text(theirs.plan), plan_text(best.plan)
    return Met(name, places[0] if places else None, slower, fits, *texts)


def _alike(ranked: Ranked, plan: Plan) -> bool:
    names = ("dp", "tp", "pp", "cp", "microbatch_size", "chunks")
    return all(getattr(ranked.plan, name) == getattr(plan, name) for name in names)


def main() -> int:
    """Print each row, and the share of those that are met."""
    with ProcessPoolExecutor(2) as executor:
        results = list(executor.map(met, rows()))
    for its in results:
        slower = "-" if its.slower is None else f"{its.slower:+.1%}"
        fits = "" if its.fits else " (predicted not to fit)"
        print(f"{'met' if its.is_met else 'not'} {its.name}: place {its.rank}, {slower}{fits}")
        print(f"      published {its.published}\n      found     {its.best}")
    count = sum(its.is_met for its in results)
    print(f"{count} of {len(results)} published plans are met ({count / len(results):.0%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
