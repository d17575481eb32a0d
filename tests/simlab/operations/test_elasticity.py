"""A queue of jobs whose sizes change: by hand for a few jobs, and by what must hold of any queue."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.errors import InputError
from simlab.operations import Job, random_jobs, simulate_queue

POLICIES = ("static", "reactive", "predictive")


@given(
    st.integers(1, 25), st.floats(10, 10_000), st.floats(10, 1e6), st.integers(0, 10**6),
    st.sampled_from(POLICIES), st.floats(0, 5000), st.floats(0.6, 1.0),
)  # fmt: skip
def test_every_job_is_done_and_no_node_second_is_lost(
    count, gap_s, work, seed, policy, resize_s, per_doubling
):
    jobs = random_jobs(count, nodes=16, mean_gap_s=gap_s, mean_work_node_s=work, seed=seed)
    found = simulate_queue(
        jobs, nodes=16, policy=policy, resize_s=resize_s, per_doubling=per_doubling
    )
    assert {each.name for each in found.jobs} == {job.name for job in jobs}
    assert all(each.arrived_s <= each.started_s <= each.ended_s for each in found.jobs)
    assert found.idle_node_s >= -1e-6 * 16 * found.makespan_s
    least = sum(job.work_node_s for job in jobs)
    assert found.trained_node_s >= least * (1 - 1e-6)
    if per_doubling == 1.0:
        assert found.trained_node_s == pytest.approx(least, rel=1e-6, abs=1e-3)
    if policy == "static":
        assert found.resizes == 0 == found.resharded_node_s
    for each, job in ((each, next(j for j in jobs if j.name == each.name)) for each in found.jobs):
        fastest_s = job.work_node_s / job.most
        assert each.ended_s - each.started_s >= fastest_s * (1 - 1e-6)


def test_a_second_job_waits_or_shares():
    """Two jobs of 8 nodes x 1,000 s on 8 nodes, the second after 100 s. Static: 1,000 and 2,000 s.
    Reactive with a re-sharding of 50 s: the first works 100 s on 8, stands 50 s, goes on with 4 until
    it has done its other 7,200 node-seconds 1,800 s later, at 1,950 s. The second has then done
    4 x 1,850 node-seconds, and after 50 s does its last 600 on 8 nodes, to 2,075 s."""
    jobs = [
        Job(name=name, arrives_s=at, work_node_s=8000, nodes=8, fewest_nodes=4, most_nodes=8)
        for name, at in (("first", 0.0), ("second", 100.0))
    ]
    static = simulate_queue(jobs, nodes=8, per_doubling=1.0)
    assert [each.ended_s for each in static.jobs] == pytest.approx([1000, 2000])
    assert static.mean_wait_s == pytest.approx(450) and static.utilisation == pytest.approx(1)
    shared = simulate_queue(jobs, nodes=8, policy="reactive", resize_s=50.0, per_doubling=1.0)
    assert [each.ended_s for each in shared.jobs] == pytest.approx([1950, 2075])
    assert [each.resizes for each in shared.jobs] == [1, 1]
    assert shared.resharded_node_s == pytest.approx(50 * 4 + 50 * 8)
    # waiting 900 s with 4 nodes costs more than 50 s with 8: it pays. 1,000 s would not
    for resize_s, waits_s in ((50.0, 0.0), (1000.0, 900.0)):
        found = simulate_queue(
            jobs, nodes=8, policy="predictive", resize_s=resize_s, per_doubling=1.0
        )
        assert found.jobs[-1].started_s - 100.0 == pytest.approx(waits_s)


def test_a_later_job_overtakes_only_where_it_delays_nobody():
    """8 nodes: 'long' has 4 until 1,000 s, 'wide' waits for all 8. 'short' ends before, 'late' does
    not."""
    wide = Job(name="wide", arrives_s=1.0, work_node_s=800, nodes=8, fewest_nodes=8)
    jobs = [
        Job(name="long", arrives_s=0.0, work_node_s=4000, nodes=4),
        wide,
        Job(name="late", arrives_s=2.0, work_node_s=4000, nodes=4),
        Job(name="short", arrives_s=3.0, work_node_s=400, nodes=4),
    ]
    began = {e.name: e.started_s for e in simulate_queue(jobs, nodes=8, per_doubling=1.0).jobs}
    assert began == pytest.approx({"long": 0, "short": 3, "wide": 1000, "late": 1100})


def test_scaling_that_looks_ahead_resizes_less_and_gains_where_resharding_is_dear():
    """Over 20 queues. Cheap re-sharding (10 s): both are alike. 30 minutes: looking ahead wins."""
    found = {}
    for resize_s in (10.0, 1800.0):
        for policy in POLICIES:
            runs = [
                simulate_queue(
                    random_jobs(40, nodes=32, mean_gap_s=1800, mean_work_node_s=28_800, seed=seed),
                    nodes=32, policy=policy, resize_s=resize_s,
                )
                for seed in range(20)
            ]  # fmt: skip
            found[resize_s, policy] = fmean(run.mean_turnaround_s for run in runs)
            found[resize_s, policy, "resizes"] = fmean(run.resizes for run in runs)
    assert found[10.0, "reactive"] < 0.8 * found[10.0, "static"]
    assert found[10.0, "predictive"] == pytest.approx(found[10.0, "reactive"], rel=0.1)
    assert found[1800.0, "predictive"] < 0.9 * found[1800.0, "reactive"]
    assert found[1800.0, "predictive", "resizes"] < 0.5 * found[1800.0, "reactive", "resizes"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: simulate_queue([], nodes=2), "give at least one job"),
        (lambda: simulate_queue(random_jobs(1, nodes=4, mean_gap_s=1, mean_work_node_s=1), nodes=4,
                                policy="reactiv"), "did you mean 'reactive'"),
        (lambda: simulate_queue([Job(name="a", arrives_s=0, work_node_s=1, nodes=9)], nodes=4),
         "'a' needs 9 nodes: there are 4"),
        (lambda: Job(name="a", arrives_s=0, work_node_s=1, nodes=2, fewest_nodes=3), "fewest_nodes"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_quoted(call, says):
    with pytest.raises(InputError, match=says):
        call()
