"""The measured figures of docs/executing.md and docs/validation.md, held against the files that they
are from."""

import json
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import bench_replay, planner_in_a_box
from benchmarks.bench import MOST_BACKENDS_RATIO
from benchmarks.bench_backends import PLANS, SIDES
from realrun.run.job import Job

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "executing.md").read_text(encoding="utf-8")
VALIDATION = " ".join((ROOT / "docs" / "validation.md").read_text(encoding="utf-8").split())


def measured(name):
    return json.loads((ROOT / "assets" / "measurements" / name).read_text(encoding="utf-8"))


def test_backends_take_what_the_page_says():
    rows = {row["what"]: row for row in measured("backends_on_two_cores.json")["rows"]}
    for plan in PLANS:
        cells = []
        for what in (("tiny", "cpu_s"), ("512 wide", "s")):
            ours, theirs = (rows[f"{plan}, {what[0]}"][f"{side}_{what[1]}"] for side in SIDES)
            assert ours / theirs <= MOST_BACKENDS_RATIO
            cells += [f"{ours * 1e3:.0f} ms", f"{theirs * 1e3:.0f} ms", f"{ours / theirs:.2f}"]
        assert f"| {' | '.join(cells)} |" in PAGE, plan


def test_plans_in_a_box_are_off_by_what_the_page_says():
    errors = [abs(row["error"]) for row in measured("plans_in_a_box.json")]
    assert (
        f"[median error {median(errors):.1%}, worst {max(errors):.1%}](../assets/measurements/plans_in_a_box.json)"
        in PAGE
    )


def test_the_planners_order_is_the_measured_one_as_the_page_says():
    seen = measured("planner_in_a_box.json")
    said = planner_in_a_box.agreement(seen["plans"])
    assert said == seen["agreement"] and not planner_in_a_box.broken(said)
    assert len(seen["plans"]) == 9 and said["regret_pct"] == 0
    assert (
        f"[nine plans had a Spearman correlation of {said['spearman']:.2f}, and the planner's first "
        "was measured to be the fastest](../assets/measurements/planner_in_a_box.json)" in PAGE
    )


def test_replays_predict_the_measured_gain_as_the_page_says():
    seen = measured("replay.json")
    error = bench_replay.median_error(seen["pairs"])
    assert len(seen["pairs"]) == 10 and error <= bench_replay.CLOSE
    page = (ROOT / "docs" / "simulating.md").read_text(encoding="utf-8")
    assert (
        f"the median error of ten pairs was {error:.1%}](../assets/measurements/replay.json)"
        in page
    )


def test_faults_are_named_and_kills_survived_as_the_page_says():
    seen = measured("faults.json")
    faults, kills = seen["faults"], seen["kills"]
    named, worst = sum(row["named"] for row in faults), max(row["error"] for row in kills)
    assert (
        f"[{named} of {len(faults)} were named; after {len(kills)} kills of one of 8 ranks" in PAGE
    )
    assert f"losses are at most {worst:.1e} off](../assets/measurements/faults.json)" in PAGE


def test_the_steps_on_an_h100_are_predicted_as_the_page_says():
    """The machine's file is fitted anew to its samples: `measure` counted weight gradients of 16 bits
    as sums in fp32 when it ran."""
    found = measured("plans_on_an_h100.json")
    errors, runs = [], found["runs"]
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder, "machine.json")
        machine.write_text(json.dumps(found["machine"]))
        for run in runs:
            given = {name: run[name] for name in ("microbatches", "microbatch_size")}
            job = Job(
                plan=given | {"precision": "bf16"},
                precision="bf16",
                sizes=run["sizes"],
                backend=run["backend"],
                predict_on=str(machine),
                out=folder,
            )
            step_s = max(span.end_s for span in job.prediction().spans)
            errors.append(step_s / median(run["steps_s"]) - 1)
    native, small, large = (f"{-error:.0%}" for error in errors)
    took = [f"{1e3 * median(run['steps_s']):.0f} ms" for run in runs]
    kernels_s = f"Kernels took {1e3 * runs[0]['kernels_s']:.0f} ms of it"
    for said in (
        f"torch's back-end took {took[1]} and is predicted {small} too short (28% before",
        f"it took {took[2]}, {large} too short (22%)",
        f"took {took[0]} for the smaller model, and is predicted {native} too short",
        kernels_s,
    ):
        assert said in VALIDATION, said
    waste = [run["allocator_bytes"] / run["held_bytes_predicted"] - 1 for run in runs[:2]]
    assert f"was {100 * min(waste):.0f} to {max(waste):.0%} above the bytes" in VALIDATION
    assert {run["gradient_error"] for run in runs[:2]} == {0.0}
