"""It says how near the planner comes to the best-known plans that others published.

    python -m benchmarks.published_plans [FILE] [--json] [--workers N]

Each row of FILE, by default simlab/studies/published/plans.csv, is searched with its model, cluster, batch, precision,
ZeRO stage and context-parallel degree, and with its recomputation where that was published. A row is
met if the published plan is among the first five, or its predicted step is within 5% of the first
one's.

Rows of models with experts are printed apart, each with the best plan of every number of
expert-parallel ranks, and so are the runs of runs.csv with such ranks, which nobody called the best.
A row that says too little, or whose GPU is not in the catalogue, is skipped with the reason.

What a row's source and release are known for, such as gradients in 16 bits or a dispatcher, stands in
simlab/studies/published/sources.json. Whether all-to-alls run beside another microbatch is left to the
search.
"""

import argparse
import csv
import json
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from simlab import Cluster, InputError, Model, Plan, cluster_of_gpu
from simlab.planner import Ranked, Rejection, Space, search
from simlab.planner.explanation_text import difference_text
from simlab.planner.rank import waterfall_s
from simlab.planner.search import plan_text
from simlab.planner.space import divisors
from simlab.studies.published.rows import (
    cluster_of,
    described,
    has_experts,
    known_model,
    with_nics,
)
from simlab.studies.published.runs import RUNS, read_runs
from simlab.studies.published.sources import Facts, effective, facts_of
from simlab.studies.published.words import (
    Row,
    Skip,
    degree,
    is_gated,
    number,
    precision_of,
    recompute_of,
    whole,
    with_blanks,
    zero_stage,
)
from simlab.units import seconds_text

PLANS = RUNS.with_name("plans.csv")
KEPT = ("zero", "precision", "library", "attention", "fused", "dp_overlap", "tp_overlap", "seq")
"""The fields of a run of runs.csv that are not searched."""
SEARCHED_WITH = (
    *("precision", "gradient_bytes", "tp_overlap", "dispatcher", "moment_bytes"),
    *("fp8_param_gather", "fp8_head", "fused_experts", "attention"),
)
"""The fields that the source of a plan says and that are not searched."""
FIRST = 5
TIE = 0.05
"""A plan whose predicted step is longer than the first one's by no more than this part ties with it."""
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
    waterfall: str = ""
    """By how many seconds each part of the published plan's predicted step is longer (+) or shorter."""
    by_ranks: str = ""
    """The best predicted step with each number of expert-parallel ranks."""
    measured_s: float | None = None
    """The published step, in seconds; None where another figure was published."""
    skipped: str = ""
    """Why the row was not searched."""

    @property
    def is_met(self) -> bool:
        """Whether it is among the first five, or a tie with the first."""
        among = self.rank is not None and self.rank <= FIRST
        return among or (self.slower is not None and self.slower <= TIE)


def rows(path: Path = PLANS, *, experts: bool = False) -> list[dict[str, str]]:
    """The rows of dense models, or of those with experts."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = [dict(with_blanks(row)) for row in csv.DictReader(file, restval="")]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {str(path)!r}: {error}") from error
    return [row for row in found if has_experts(row) == experts]


def _model(row: Row) -> Model:
    if (known := known_model(row)) is not None:
        return known
    if has_experts(row):
        raise Skip(f"the model {row['model']!r} is not simulated: its experts have no column")
    llama = is_gated(row["gated_mlp"]) or "llama" in row["model"].lower()
    sizes = {n: whole(row, n) for n in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    seq = whole(row, "seq")
    return Model(
        name=row["model"], seq=seq, positions=0 if llama else seq, gated_mlp=llama, bias=not llama,
        tied_head=not llama, **sizes,
    )  # fmt: skip


def _cluster(row: Row, facts: Facts) -> Cluster:
    name = cluster_of_gpu(row["gpu"])
    if name is None:
        raise Skip(f"no cluster in the catalogue has the GPU {row['gpu']!r}")
    return with_nics(cluster_of(name, whole(row, "gpus"), 8), facts)


def _fixed(row: Row, facts: Facts) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what is not searched, what the published plan says)"""
    said: dict[str, Any] = {name: degree(row, name) for name in ("tp", "pp", "ep")}
    fixed: dict[str, Any] = {
        "precision": precision_of(row["precision"]),
        "zero": zero_stage(row["zero_or_distopt"] or "zero1"),
        "cp": degree(row, "cp"),
    }
    its = effective(facts, zero=fixed["zero"], tp=2, ep=said["ep"], precision=row["precision"])
    fixed |= {name: its[name] for name in SEARCHED_WITH if name in its}
    if row["recompute"]:
        fixed["recompute"] = recompute_of(row["recompute"], fsdp=False)
    if row["dp"]:
        said["dp"] = degree(row, "dp")
    if "etp" in its:
        said["etp"] = its["etp"]
    chunks = degree(row, "vpp")
    if layers := its.get("stage_layers", {}).get(str(said["pp"] * chunks)):
        said["stage_layers"] = tuple(layers)
    said["schedule"] = "interleaved-1f1b" if chunks > 1 else "1f1b"
    if chunks > 1:
        said["chunks"] = chunks
    if row["microbatch"]:
        said["microbatch_size"] = whole(row, "microbatch")
    return fixed, fixed | said


def space_of(row: Row) -> Space:
    """What is searched for a row. Raises `Skip` with the reason if it cannot be."""
    model = _model(row)
    facts = facts_of(row, model.name)
    return Space(
        model=model,
        cluster=_cluster(row, facts),
        global_batch=whole(row, "global_batch"),
        fixed=_fixed(row, facts)[0],
    )


def own_space(row: Row) -> Space:
    """As `space_of`, with what the published plan says: what it leaves open is searched."""
    space = space_of(row)
    return replace(space, fixed=_fixed(row, facts_of(row, space.model.name))[1])


def met(row: Row) -> Met:
    """The `Met` of a row."""
    name = f"{row['model']} seq {row['seq']} on {row['gpus']} {row['gpu'][:4]}"
    name = f"{name}, batch {row['global_batch']}"
    try:
        space = space_of(row)
        own = own_space(row)
        measured_s = None
        if row["metric"] == "tokens/s/gpu":
            tokens = space.global_batch * space.model.seq
            measured_s = tokens / space.cluster.gpus / number(row, "value")
        return _met(name, space, own)._replace(measured_s=measured_s)
    except (Skip, InputError) as why:
        return Met(name, None, None, True, "", "", skipped=str(why))


def met_run(row: Mapping[str, str]) -> Met:
    """The `Met` of a row of runs.csv."""
    model, plan, cluster = described(row)
    fixed = {name: getattr(plan, name) for name in KEPT}
    space = Space(model=model, cluster=cluster, global_batch=plan.global_batch, fixed=fixed)
    own = (
        "dp",
        "tp",
        "pp",
        "cp",
        "ep",
        "etp",
        "microbatch_size",
        "recompute",
        "schedule",
        "stage_layers",
    )
    said = fixed | {name: getattr(plan, name) for name in own}
    name = f"{row['id']}: {row['model']} on {row['n_gpus']} {row['gpu'][:4]}"
    own = replace(space, fixed=said)
    return _met(name, space, own)._replace(measured_s=float(row["step_s"]))


def _met(name: str, space: Space, own: Space) -> Met:
    """How the best plan of `own` stands among those of `space`."""
    found = search(space, layered=0)
    best = found.plans[0] if found.plans else None
    by_ranks = _by_ranks(space, best) if space.model.experts and best else ""
    tried = [*own.candidates()]
    if best is None or not any(isinstance(each, Plan) for each in tried):
        refused = next((each.detail for each in tried if isinstance(each, Rejection)), "none fits")
        return Met(name, None, None, True, refused, _text(best) if best else "", by_ranks=by_ranks)
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
    parts = _waterfall(space, theirs, best)
    return Met(name, places[0] if places else None, slower, fits, *texts, parts, by_ranks)


def _waterfall(space: Space, theirs: Ranked, best: Ranked) -> str:
    """What a step of `theirs` spends more, or less, than one of `best`, the largest part first."""
    found = [waterfall_s(space.model, each.plan, space.cluster) for each in (theirs, best)]
    parts = {name: its - other for name, its, other in zip(found[0]._fields, *found)}
    return difference_text(parts, best.step_s)


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
    names = ("dp", "tp", "pp", "cp", "ep", "etp", "microbatch_size", "chunks")
    return all(getattr(ranked.plan, name) == getattr(plan, name) for name in names)


def _print(results: list[Met]) -> None:
    """Print each row, and the share of those that are met."""
    for its in results:
        if its.skipped:
            print(f"skipped {its.name}: {its.skipped}")
            continue
        slower = "-" if its.slower is None else f"{its.slower:+.1%}"
        fits = "" if its.fits else " (predicted not to fit)"
        print(f"{'met' if its.is_met else 'not'} {its.name}: place {its.rank}, {slower}{fits}")
        measured = f", measured {seconds_text(its.measured_s)}" if its.measured_s else ""
        print(f"      published {its.published}{measured}\n      found     {its.best}")
        if its.waterfall and not its.is_met:
            print(f"      parts     {its.waterfall}")
        if its.by_ranks:
            print(f"      by ep     {its.by_ranks}")
    count, searched = sum(its.is_met for its in results), sum(not its.skipped for its in results)
    share = f" ({count / searched:.0%})" if searched else ""
    print(f"{count} of {searched} are met{share}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Print the rows of dense models, of those with experts, and the runs with expert parallelism."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published_plans")
    parser.add_argument("file", nargs="?", type=Path, help="a file in the columns of plans.csv")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    arguments = parser.parse_args(argv)
    path = arguments.file or PLANS
    runs = [] if arguments.file else [r for r in read_runs(RUNS) if r["ep"] not in ("", "1")]
    everything: dict[str, Any] = {}
    with ProcessPoolExecutor(arguments.workers) as executor:
        parts = [
            ("dense", "Published plans of dense models", executor.map(met, rows(path))),
            (
                "experts",
                "Published plans of models with experts",
                executor.map(met, rows(path, experts=True)),
            ),
            ("runs", "Published runs with expert-parallel ranks", executor.map(met_run, runs)),
        ]
        for key, what, results in parts:
            its = list(results)
            everything[key] = [each._asdict() | {"met": each.is_met} for each in its]
            if not arguments.json:
                print(f"{what}:")
                _print(its)
    if arguments.json:
        print(json.dumps(everything))
    return 0


if __name__ == "__main__":
    sys.exit(main())
