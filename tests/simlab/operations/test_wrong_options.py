"""Options of `simlab operations` that no training has: one line, and never a hang."""

import json
from dataclasses import replace

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from simlab.cli.main import main
from simlab.operations import Disturbance, Job, Prices, simulate_queue, training_cost
from simlab.operations.doctor import findings
from simlab.operations.doctor.machine import examined
from simlab.operations.elasticity import _Queue, _Running
from tests.support.simlab_commands import refused

REFUSED = {
    "run --per-1000-node-days inf": "per_1000_node_days = inf: give a number from 0 to 1e+12",
    "stragglers --jitter 1e200": "jitter = 1e+200: give a number from 0 to 100",
    "stragglers --step-s 1e-300": "step_s = 1e-300: give a number from 1e-09 to 1e+09",
    "stragglers --slow-by 5": "--slow-by 5 without --slow-ranks",
    "stragglers --slow-ranks 500 --slow-by 1": "slow_ranks = 500 of 128 ranks",
    "queue --per-doubling 1e-300": "per_doubling = 1e-300: give a number from 0.1 to 2",
    "queue --jobs 0": "jobs = 0: give a whole number, at least 1",
    "queue --jobs 100000000": "jobs = 100000000: give at most 1,000",
    "queue --gap-s 1e300": "mean_gap_s = 1e+300: give a number from 1e-12 to 1e+12",
    "queue --work-node-s 1e300": "mean_work_node_s = 1e+300: give a number from 1e-12 to 1e+12",
    "queue --resize-s 1e300": "resize_s = 1e+300: give a number from 0 to 1e+12",
    "cost --gpu-hour 1e300": "gpu_hour = 1e+300: give a number from 0 to 1e+12",
    "cost --tokens 1e300": "tokens = 1e+300: give a number from 1e-24 to 1e+24",
    "cost --goodput 2": "goodput = 2.0: give a number from 1e-24 to 1",
}


@pytest.mark.parametrize("options, said", REFUSED.items())
def test_what_is_no_option_is_refused_in_a_line(options, said, capsys):
    assert said in refused(capsys, ["operations", *options.split()])


@pytest.mark.parametrize("options", ["--nodes 1000000000000", "--gap-s 1e12 --jobs 50"])
def test_a_huge_cluster_and_long_times_do_not_hang(options):
    assert main(["operations", "queue", *options.split(), "--json"]) == 0


def test_late_jobs_end():
    """At 1e17 s two neighbouring floats are 16 s apart: work of a second cannot be waited for."""
    jobs = [Job(name=str(at), arrives_s=1e16 + at, work_node_s=1.0, nodes=3) for at in range(5)]
    for policy in ("static", "reactive", "predictive"):
        assert len(simulate_queue(jobs, nodes=4, policy=policy).jobs) == 5


@given(
    st.integers(1, 60), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6)
)  # fmt: skip
def test_nodes_are_shared_as_if_one_by_one(nodes, sizes):
    """The rounds that are given at once are those of giving each node to the smallest job."""
    jobs = [
        Job(name="", arrives_s=0, work_node_s=1, nodes=few, fewest_nodes=few, most_nodes=few + more)
        for few, more in sizes
    ]
    running = [_Running(job, 1.0, 1.0) for job in jobs]
    queue = _Queue(simpy.Environment(), nodes, "reactive", 0.0, 1.0, jobs=running)
    given_nodes, left = [0] * len(jobs), nodes
    for at, job in enumerate(jobs):
        if job.fewest_nodes > left:
            break
        given_nodes[at] = job.fewest_nodes
        left -= job.fewest_nodes
    while left:
        growing = [at for at, n in enumerate(given_nodes) if 0 < n < jobs[at].most]
        if not growing:
            break
        given_nodes[min(growing, key=lambda at: given_nodes[at])] += 1
        left -= 1
    assert queue._shared(len(jobs)) == given_nodes


def test_a_training_that_costs_nothing_loses_nothing_to_failures(capsys):
    free = Prices(gpu_hour=0.0, tb_month=0.0)
    cost = training_cost(tokens=1e9, tokens_per_s=1e6, gpus=8, prices=free, goodput=0.5)
    assert (cost.total, cost.of_failures) == (0, 0)
    assert main(["operations", "cost", "--gpu-hour", "0", "--tb-month", "0"]) == 0
    assert capsys.readouterr().out.startswith("0 in all")


def test_a_sweep_over_slow_ranks_may_begin_at_none():
    assert Disturbance(slow_ranks=0, slow_by=0.2).slow_by == 0.2


def test_a_number_of_threads_of_many_digits_is_too_many(tmp_path):
    machine = replace(examined(str(tmp_path)), environment={"OMP_NUM_THREADS": "9" * 5000})
    (cores,) = [one for one in findings(machine) if one.subject == "cores"]
    assert "set OMP_NUM_THREADS" in cores.to_do and len(cores.found) < 200


@pytest.mark.parametrize(("given", "spares"), [([], 0), (["--spare-gpus", "8"], 8)])
def test_the_gpus_that_stand_ready_follow_those_that_train_and_are_said(capsys, given, spares):
    command = ["operations", "cost", "--gpus", "48", *given]
    assert main(command) == 0 and f"stand ready: {spares}" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["spare_gpus"] == spares
    assert said["spares"] == pytest.approx(said["gpus"] * spares / 48)
