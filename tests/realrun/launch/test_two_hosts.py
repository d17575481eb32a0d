"""Two hosts in network namespaces with a slow cable between them: a plan on both, and the step that
the simulator foretold."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.two_hosts import MBIT, PLANS, WORST, compare, failures, why_not

ROOT = Path(__file__).parents[3]
LAUNCH = ROOT / "assets" / "launch"
TENSOR = [*PLANS][:2]  # pipelines are left to `python -m benchmarks.two_hosts`
REASON = why_not()


@pytest.mark.attack
@pytest.mark.skipif(bool(REASON), reason=f"no two hosts here: {REASON}")
def test_tensor_parallelism_across_the_slow_cable_is_slow_and_the_simulator_says_by_how_much(
    tmp_path,
):
    inside, across = TENSOR
    results = compare(MBIT, tmp_path, {name: PLANS[name] for name in TENSOR})
    # what is sent besides: headers
    assert results["links"]["across"]["bytes_per_s"] == pytest.approx(MBIT * 1e6 / 8, rel=0.15)
    # the promise is `python -m benchmarks.two_hosts`'s
    assert not list(failures(results, worst=2 * WORST)), results
    for time in ("predicted_s", "measured_s"):
        assert results["plans"][across][time] > 1.5 * results["plans"][inside][time]


def test_the_page_has_the_figures_that_were_measured_and_they_keep_the_promise():
    results = json.loads((ROOT / "assets" / "measurements" / "two_hosts.json").read_text())
    assert not list(failures(results)) and set(results["machine"]) == {
        "cores",
        "gpus",
        "torch",
        "date",
    }
    assert [*results["plans"]] == [*PLANS]
    inside, across, *pipelines = (
        [f"{row[time]:.2f} s" for time in ("predicted_s", "measured_s")]
        for row in results["plans"].values()
    )
    page = (ROOT / "docs" / "many-nodes.md").read_text(encoding="utf-8")
    assert (
        f"predicted {inside[0]}, measured {inside[1]} with tensor" in page
        and f"{across[0]} and {across[1]} across" in page
    )
    inside, across = (" and ".join(pair) for pair in pipelines)
    assert f"are {inside} with the pipelines inside, {across} across" in " ".join(page.split())


@pytest.mark.parametrize("name", ["nodes.sh", "slurm.sbatch"])
def test_launch_files_are_shell_and_say_what_they_need(name):
    shell = "sh" if name.endswith(".sh") else "bash"
    assert subprocess.run([shell, "-n", LAUNCH / name], capture_output=True).returncode == 0
    run = subprocess.run(
        [shell, LAUNCH / name], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    missing = "which of the nodes this is" if name == "nodes.sh" else "SLURM_NNODES"
    assert run.returncode and missing in run.stderr
