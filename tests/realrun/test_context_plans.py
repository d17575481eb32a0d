"""Plans with context parallelism on four processes: each kind and layout has one process's gradients, and sends what simlab says."""

import pytest

import simlab as sl
from realrun import Pool, execute_plan


@pytest.fixture(scope="module")
def pool():
    with Pool(4) as four:
        yield four


@pytest.mark.parametrize("kind", ["ring", "all-to-all", "all-gather"])
@pytest.mark.parametrize("fields", [{"cp": 4, "cp_layout": "contiguous"}, {"cp": 4}, {"cp": 2, "tp": 2, "recompute": "full"}])
def test_gradients_are_those_of_one_process_and_bytes_those_of_the_list(pool, kind, fields):
    run = execute_plan(pool, sl.Plan(cp_kind=kind, **fields), steps=1, warmup=0)
    assert run.facts["gradient_error"] < 1e-9
    for predicted, measured in zip(run.facts["sent_bytes_predicted"], run.facts["sent_bytes_measured"]):
        assert measured["cp"] == predicted["cp"] > 0


def test_a_box_takes_the_times_of_the_plans_own_sequences(pool):
    short, long = (
        execute_plan(pool, sl.Plan(cp=4, seq=seq), cluster="dgx-h100", model="llama-2-7b", slow_down=8, steps=1, warmup=0, check=False)
        for seq in (8192, 65_536)
    )
    assert long.facts["predicted_step_s"] > 7 * short.facts["predicted_step_s"]


def test_a_box_has_the_nics_of_the_gpus_that_the_ranks_fill():
    from realrun.plan_job import PlanJob

    job = PlanJob(plan={"dp": 4}, box={"cluster": "dgx-h100", "nodes": 2})
    assert (job.box_cluster.gpus_per_node, job.box_cluster.nics_per_node) == (2, 2)
