"""What lesson 12 says aloud, over what it depends on."""

import pytest

import simlab as sl
from simlab.diagnosis import straggler, time_spent, trace_graph
from simlab.lessons.subjects import operating
from simlab.lessons.subjects.operating import graph_of, hidden, works_of
from simlab.operations import random_jobs, simulate_queue


def step(ranks, microbatches, latency_s=0.0):
    times = sl.OpTimes(forward_s=0.020, backward_s=0.040)
    program = sl.generate("1f1b", ranks, microbatches)
    return trace_graph(sl.simulate(program, times, link=sl.Link(latency_s=latency_s)))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_the_parts_add_up_and_those_of_rank_0_alone_save_less_than_their_share(ranks, factor):
    graph = step(ranks, factor * ranks, 0.002)
    for spent in time_spent(graph):
        assert spent.total == pytest.approx(graph.step_s)
    all_forwards = works_of(graph, "F")
    assert all_forwards == pytest.approx(1 / 6, abs=0.02)
    if ranks > 2:
        assert works_of(graph, "F", 0) < all_forwards / ranks


@pytest.mark.parametrize("ranks", [4, 8])
def test_most_forwards_of_rank_0_save_nothing_alone(ranks):
    graph = step(ranks, 2 * ranks, 0.002)
    alone = [
        graph.saved_s(lambda work, name=f"0F{at}": work.name == name, 0.5)
        for at in range(2 * ranks)
    ]
    assert sum(saved_s < 1e-9 for saved_s in alone) > ranks


def test_savings_of_two_changes_do_not_add_up():
    """Two ops of 2 s beside each other: either alone saves nothing, both save a second."""
    graph = graph_of({"a": (2.0, []), "b": (2.0, [])})
    assert [graph.saved_s(lambda w, n=name: w.name == n, 0.5) for name in "ab"] == [0.0, 0.0]
    assert graph.saved_s(lambda work: True, 0.5) == 1.0


@pytest.mark.parametrize("seed", range(24))
def test_a_hidden_fault_is_found_by_its_replay(seed):
    case = hidden(seed)
    graph = trace_graph(case.trace)
    assert case.trace.step_s > 1.1 * case.healthy.step_s
    found = straggler(graph)
    if case.cause == "slow_link":
        assert found is None
        messages = [works_of(graph, "message", rank) for rank in range(operating.RANKS)]
        assert max(range(operating.RANKS), key=messages.__getitem__) == case.rank
        return
    assert found.rank == case.rank
    assert found.cause == {"slow_gpu": "gpu", "loss": "unknown"}[case.cause]
    assert graph.step_s - found.saved_s == pytest.approx(case.healthy.step_s, rel=1e-6)


def test_all_causes_are_hidden_by_some_seed():
    assert {hidden(seed).cause for seed in range(24)} == {*operating.CAUSES}


def queue(seed, policy, resize_s):
    jobs = random_jobs(40, nodes=16, mean_gap_s=1800, mean_work_node_s=8 * 3600, seed=seed)
    return simulate_queue(jobs, nodes=16, policy=policy, resize_s=resize_s)


@pytest.mark.parametrize("seed", range(8))
def test_resizing_at_every_change_helps_while_it_takes_minutes_and_loses_its_gain_at_an_hour(seed):
    static, *reactive = (
        queue(seed, policy, resize_s).mean_turnaround_s
        for policy, resize_s in (("static", 0), ("reactive", 600), ("reactive", 3600))
    )
    assert reactive[0] < static
    assert reactive[1] > 1.3 * reactive[0]
    predictive = queue(seed, "predictive", 3600)
    assert predictive.resizes < queue(seed, "reactive", 3600).resizes / 3
    assert predictive.mean_turnaround_s < reactive[1]
