"""Plans with context parallelism on four processes: each kind and layout has one process's
gradients, and sends what simlab says."""

import pytest

import simlab as sl
from realrun import execute_plan
from realrun.run.box import Box


@pytest.fixture(scope="module")
def pool(pools):
    return pools(4)


CONTIGUOUS, ZIGZAG = {"cp": 4, "cp_layout": "contiguous"}, {"cp": 4}
RECOMPUTED = {"cp": 2, "tp": 2, "recompute": "full"}


@pytest.mark.parametrize("kind, fields", [
    ("ring", CONTIGUOUS), ("ring", ZIGZAG), ("ring", RECOMPUTED),
    ("all-gather", CONTIGUOUS), ("all-gather", ZIGZAG), ("all-gather", RECOMPUTED),
    ("all-to-all", {"cp": 4}), ("all-to-all", RECOMPUTED),
])  # fmt: skip
def test_gradients_are_those_of_one_process_and_bytes_those_of_the_list(pool, kind, fields):
    run = execute_plan(pool, sl.Plan(cp_kind=kind, **fields), steps=1, warmup=0)
    assert run.facts["gradient_error"] < 1e-9
    for predicted, measured in zip(
        run.facts["sent_bytes_predicted"], run.facts["sent_bytes_measured"]
    ):
        assert measured["cp"] == predicted["cp"] > 0


def test_a_box_takes_the_times_of_the_plans_own_sequences():
    """Of kernels, of which only attention's grow by more than the sequence; what processes need
    besides is this machine's."""

    class Asked(Exception):
        """A pool that is asked for a job and does nothing."""

        @staticmethod
        def run(job):
            raise Asked(
                sum(
                    s
                    for s, instruction in zip(Box(job).seconds(0), job.instructions(0))
                    if instruction.kernels
                )
            )

    seconds = {}
    for seq in (8192, 65_536):
        with pytest.raises(Asked) as asked:
            execute_plan(
                Asked, sl.Plan(cp=4, seq=seq), cluster="dgx-h100", model="llama-2-7b", time_scale=1
            )
        (seconds[seq],) = asked.value.args
    assert seconds[65_536] > 8 * seconds[8192]


def test_a_box_has_the_nics_of_the_gpus_that_the_ranks_fill():
    from realrun.run.job import Job

    job = Job(plan={"dp": 4}, box={"cluster": "dgx-h100", "nodes": 2})
    assert (job.box_cluster.gpus_per_node, job.box_cluster.nics_per_node) == (2, 2)
