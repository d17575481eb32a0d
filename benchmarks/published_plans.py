"""It says how near the planner comes to the best-known plans that others published.

    python -m benchmarks.published_plans

Each row of simlab/studies/published/plans.csv is searched with its model, cluster, batch, precision,
ZeRO stage and context-parallel degree, and with its recomputation where that was published. A row is
met if the published plan is among the first five, or its predicted step is within 5% of the first
one's.

Rows of models with experts are printed apart, each with the best plan of every number of
expert-parallel ranks, and so are the runs of runs.csv with such ranks, which nobody called the best.
A published plan whose experts span tensor-parallel ranks cannot be said: it counts as not met.
"""

import csv
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from simlab import Cluster, Model, Plan, cluster_of_gpu, load_cluster, load_model
from simlab.planner import Ranked, Rejection, Space, search
from simlab.planner.rank import TIE
from simlab.planner.search import plan_text
from simlab.planner.space import divisors
from simlab.studies.published_rows import described
from simlab.studies.published_runs import RUNS, read_runs
from simlab.units import seconds_text

PLANS = RUNS.with_name("plans.csv")
GPUS = {"A100": "A100-SXM-80GB", "H100": "H100-SXM-80GB", "B200": "B200-SXM"}
EXPERTS = {
    "DeepSeekV3": "deepseek-v3",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
}
"""{model with experts in the file: its name in the catalogue}"""
STAGE_LAYERS = {("DeepSeekV3", 16): (4,) * 15 + (1,)}
"""{(model, stages): layers of each, where they are published}. Source: NVIDIA-NeMo/Megatron-Bridge
@05d003fb, src/megatron/bridge/recipes/deepseek/deepseek_v3.py, `layout_map`."""
KEPT = ("zero", "precision", "library", "attention", "fused", "dp_overlap", "tp_overlap", "seq")
"""The fields of a run of runs.csv that are not searched."""
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
    by_ranks: str = ""
    """The best predicted step with each number of expert-parallel ranks."""
    measured_s: float | None = None
    """The published step, in seconds; None where another figure was published."""

    @property
    def is_met(self) -> bool:
        """Whether it is among the first five, or a tie with the first."""
        among = self.rank is not None and self.rank <= FIRST
        return among or (self.slower is not None and self.slower <= TIE)


def rows(*, experts: bool = False) -> list[dict[str, str]]:
    """The rows of dense models, or of those with experts."""
    with PLANS.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if (row["model"] in EXPERTS) == experts]


def _model(row: Mapping[str, str]) -> Model:
    if row["model"] in EXPERTS:
        return replace(load_model(EXPERTS[row["model"]]), seq=int(row["seq"]))
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
    whole = {n: int(row[n] or 1) for n in ("dp", "tp", "pp", "cp", "vpp", "ep")}
    fixed: dict[str, Any] = {
        "precision": "fp8" if "fp8" in row["precision"] else row["precision"],
        "zero": 3 if "fsdp" in row["zero_or_distopt"] else 1,
        "cp": whole["cp"],
    }
    if "bigscience" in row["source"]:  # older than fused attention
        fixed["attention"] = "unfused"
    if row["recompute"]:
        fixed["recompute"] = row["recompute"]
    said: dict[str, Any] = {name: whole[name] for name in ("dp", "tp", "pp", "ep")}
    stages = row["model"], whole["pp"] * whole["vpp"]
    if stages in STAGE_LAYERS:
        said["stage_layers"] = STAGE_LAYERS[stages]
    said["schedule"] = "interleaved-1f1b" if whole["vpp"] > 1 else "1f1b"
    if whole["vpp"] > 1:
        said["chunks"] = whole["vpp"]
    if row["microbatch"]:
        said["microbatch_size"] = int(row["microbatch"])
    return fixed, fixed | said


def met(row: Mapping[str, str]) -> Met:
    """The `Met` of a row."""
    fixed, said = _fixed(row)
    name = f"{row['model']} seq {row['seq']} on {row['gpus']} {row['gpu'][:4]}"
    batch = int(row["global_batch"])
    space = Space(model=_model(row), cluster=_cluster(row), global_batch=batch, fixed=fixed)
    measured_s = None
    if row["metric"] == "tokens/s/gpu":
        measured_s = batch * int(row["seq"]) / int(row["gpus"]) / float(row["value"])
    return _met(f"{name}, batch {batch}", space, said)._replace(measured_s=measured_s)


def met_run(row: Mapping[str, str]) -> Met:
    """The `Met` of a row of runs.csv."""
    model, plan, cluster = described(row)
    fixed = {name: getattr(plan, name) for name in KEPT}
    space = Space(model=model, cluster=cluster, global_batch=plan.global_batch, fixed=fixed)
    own = ("dp", "tp", "pp", "cp", "ep", "microbatch_size", "recompute", "schedule", "stage_layers")
    said = fixed | {name: getattr(plan, name) for name in own}
    name = f"{row['id']}: {row['model']} on {row['n_gpus']} {row['gpu'][:4]}"
    return _met(name, space, said)._replace(measured_s=float(row["step_s"]))


def _met(name: str, space: Space, said: dict[str, Any]) -> Met:
    """How the plan that is `said` stands among those of `space`."""
    found, own = search(space, layered=0), replace(space, fixed=said)
    best = found.plans[0] if found.plans else None
    by_ranks = _by_ranks(space, best) if space.model.experts and best else ""
    tried = [*own.candidates()]
    if best is None or not any(isinstance(each, Plan) for each in tried):
        refused = next((each.detail for each in tried if isinstance(each, Rejection)), "none fits")
        return Met(name, None, None, True, refused, _text(best) if best else "", by_ranks)
    published = search(own, kept=1, layered=0).plans
    fits = bool(published)
    if not fits:
        gpu = replace(space.cluster.gpu, memory_bytes=ROOMY * space.cluster.gpu.memory_bytes)
        roomy = replace(own, cluster=replace(space.cluster, gpu=gpu))
        published = search(roomy, kept=1, layered=0).plans
    theirs = published[0]
    places = [place for place, its in enumerate(found.plans, 1) if _alike(its, theirs.plan)]
    texts = _text(theirs), _text(best)
    slower = theirs.step_s / best.step_s - 1
    return Met(name, places[0] if places else None, slower, fits, *texts, by_ranks)


def _text(ranked: Ranked) -> str:
    return f"{plan_text(ranked.plan)}: predicted {seconds_text(ranked.step_s)}"


def _by_ranks(space: Space, best: Ranked) -> str:
    """How much slower the best plan with each number of expert-parallel ranks is."""
    slower = []
    for ep in divisors(space.model.experts):
        fixed = {**space.fixed, "ep": ep}
        if space.cluster.gpus % ep == 0:
            plans = search(replace(space, fixed=fixed), kept=1, layered=0).plans
            text = f"{plans[0].step_s / best.step_s - 1:+.1%}" if plans else "does not fit"
            slower.append(f"{ep}: {text}")
    return ", ".join(slower)


def _alike(ranked: Ranked, plan: Plan) -> bool:
    names = ("dp", "tp", "pp", "cp", "ep", "microbatch_size", "chunks")
    return all(getattr(ranked.plan, name) == getattr(plan, name) for name in names)


def _print(results: list[Met]) -> None:
    """Print each row, and the share of those that are met."""
    for its in results:
        slower = "-" if its.slower is None else f"{its.slower:+.1%}"
        fits = "" if its.fits else " (predicted not to fit)"
        print(f"{'met' if its.is_met else 'not'} {its.name}: place {its.rank}, {slower}{fits}")
        measured = f", measured {seconds_text(its.measured_s)}" if its.measured_s else ""
        print(f"      published {its.published}{measured}\n      found     {its.best}")
        if its.by_ranks:
            print(f"      by ep     {its.by_ranks}")
    count = sum(its.is_met for its in results)
    print(f"{count} of {len(results)} are met ({count / len(results):.0%})", flush=True)


def main() -> int:
    """Print the rows of dense models, of those with experts, and the runs with expert parallelism."""
    runs = [row for row in read_runs(RUNS) if row["ep"] not in ("", "1")]
    with ProcessPoolExecutor(2) as executor:
        parts = [
            ("Published plans of dense models", executor.map(met, rows())),
            ("Published plans of models with experts", executor.map(met, rows(experts=True))),
            ("Published runs with expert-parallel ranks", executor.map(met_run, runs)),
        ]
        for what, results in parts:
            print(f"{what}:")
            _print(list(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
