"""Trainings of months with spares, copies in memory and checkpoints in the background: against closed
forms that the simulation does not know, and against what must hold of any run."""

import math
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.errors import InputError
from simlab.operations import (
    Cause,
    Checkpoints,
    FailureRate,
    Fleet,
    LongRun,
    asynchronous,
    failure_rate,
    mean_goodput,
    observed,
    simulate_run,
    synchronous,
)

DAY_S, HOUR_S = 86_400.0, 3_600.0
RATE = FailureRate(
    name="test", per_1000_node_days=8.0, causes=(Cause("gpu", 3), Cause("bug", 1, False))
)  # 64 nodes: 46.9 h between failures


@st.composite
def runs(draw):
    interval_s = draw(st.floats(600, 20_000))
    plan = Checkpoints(
        interval_s=interval_s,
        stall_s=draw(st.floats(0, 300)),
        write_s=draw(st.sampled_from([0.0, 100.0, 30_000.0])),
        load_s=draw(st.floats(0, 600)),
        memory_interval_s=draw(
            st.sampled_from([None, interval_s, interval_s / 3, interval_s / 7.3])
        ),
        memory_stall_s=draw(st.floats(0, 20)),
        memory_load_s=draw(st.floats(0, 60)),
        memory_survives=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    fleet = Fleet(
        nodes=64,
        spares=draw(st.integers(0, 6)),
        repair_s=draw(st.floats(0, 3 * DAY_S)),
        detect_s=draw(st.floats(0, 1800)),
        replace_s=draw(st.floats(0, 600)),
        start_s=draw(st.floats(0, 1200)),
        short_of_nodes=draw(st.sampled_from(["wait", "shrink"])),
        replica_nodes=draw(st.sampled_from([1, 8, 64])),
        resize_s=draw(st.floats(0, 600)),
    )
    return LongRun(work_s=draw(st.floats(1, 40 * DAY_S)), rate=RATE, fleet=fleet, checkpoints=plan)


@given(runs(), st.integers(0, 10**6))
def test_all_time_is_accounted_for_whatever_happens(run, seed):
    went = simulate_run(run, seed=seed)
    assert min(went.spent) >= -1e-6 * run.work_s
    assert went.wall_s == pytest.approx(sum(went.spent)) and went.spent.work_s == run.work_s
    assert all(0 <= each.at_s <= went.wall_s * (1 + 1e-9) for each in went.incidents)
    assert sum(each.lost_s for each in went.incidents) == pytest.approx(went.spent.lost_s, abs=1e-3)
    if run.fleet.short_of_nodes == "wait":
        assert went.spent.shrunk_s == pytest.approx(0, abs=1e-6 * run.work_s)
        assert went.spent.resize_s == 0
    if not went.failures:
        assert went.spent[3:6] == (0, 0, 0)
    assert simulate_run(run, seed=seed) == went


@given(runs(), st.integers(0, 10**6))
def test_the_clock_of_the_simulation_agrees_with_the_sum_of_the_parts(run, seed):
    """The last failure of a run with the same luck lies where its times of failures were drawn."""
    went, luck, at_s, struck = simulate_run(run, seed=seed), Random(seed), 0.0, []
    while at_s <= went.wall_s:
        at_s += luck.expovariate(1 / run.mtbf_s)
        struck.append(at_s)
    times = [each.at_s for each in went.incidents]
    assert set(times) <= set(struck)
    if run.fleet.short_of_nodes == "wait" and run.fleet.repair_s == 0 and run.fleet.spares:
        assert len(times) >= len(struck) - 2


@pytest.mark.parametrize("spares", [0, 1, 3, 6])
def test_a_training_waits_for_repairs_as_often_as_a_poisson_number_of_nodes_is_in_repair(spares):
    """Nodes fail at random and are repaired in a fixed time: the number in repair is Poisson
    (the queue M/D/infinity). The training runs while it is no more than the spares."""
    repair_s = 2 * DAY_S
    run = LongRun(
        work_s=2000 * DAY_S,
        rate=FailureRate(name="nodes", per_1000_node_days=1.0),
        fleet=Fleet(nodes=1000, spares=spares, repair_s=repair_s, detect_s=0.0, start_s=0.0),
        checkpoints=Checkpoints(interval_s=200 * DAY_S / 1000, stall_s=0.0),
    )
    mean = repair_s / run.mtbf_s
    runs_part = sum(math.exp(-mean) * mean**n / math.factorial(n) for n in range(spares + 1))
    went = [simulate_run(run, seed=seed) for seed in range(4)]
    waited = sum(each.spent.wait_s for each in went) / sum(each.wall_s for each in went)
    assert waited == pytest.approx(1 - runs_part, abs=0.02)


def test_a_smaller_training_goes_on_where_another_waits():
    fleet = Fleet(nodes=64, spares=0, repair_s=2 * DAY_S, replica_nodes=4, resize_s=60.0)
    run = LongRun(work_s=200 * DAY_S, rate=RATE, fleet=fleet)
    waits = simulate_run(run)
    shrinks = simulate_run(replace(run, fleet=replace(fleet, short_of_nodes="shrink")))
    assert waits.spent.wait_s > 20 * DAY_S > 0 == shrinks.spent.wait_s
    assert 0 < shrinks.spent.shrunk_s < waits.spent.wait_s / 5
    assert shrinks.goodput > waits.goodput + 0.2


def test_a_shrunk_training_has_whole_replicas_only():
    """One node of 64 is lost for good at once. With replicas of 16 nodes the training goes on at
    three quarters of its speed; with replicas of one node, at 63 of 64."""
    for replica, speed in ((16, 3 / 4), (1, 63 / 64)):
        fleet = Fleet(
            nodes=64, spares=0, repair_s=1e9, detect_s=0.0, start_s=0.0,
            short_of_nodes="shrink", replica_nodes=replica,
        )  # fmt: skip
        run = LongRun(
            work_s=1e6,
            rate=FailureRate(name="one", per_1000_node_days=1000 * DAY_S / 64 / 4e5),
            fleet=fleet,
            checkpoints=Checkpoints(interval_s=1000.0, stall_s=0.0),
        )
        went = next(w for w in (simulate_run(run, seed=s) for s in range(99)) if w.failures == 1)
        before_s = went.incidents[0].at_s - went.spent.lost_s
        assert went.spent.shrunk_s == pytest.approx((1e6 - before_s) * (1 / speed - 1), rel=1e-6)


def test_a_checkpoint_in_the_background_costs_its_writing_at_each_failure_only():
    """Beside a synchronous one of the same stall a failure loses `write_s` more."""
    fleet = Fleet(nodes=64, spares=64, detect_s=0.0, start_s=0.0, repair_s=0.0)
    plan = Checkpoints(interval_s=4000.0, stall_s=10.0)
    run = LongRun(work_s=3000 * DAY_S, rate=RATE, fleet=fleet, checkpoints=plan)
    at_once = simulate_run(run)
    later = simulate_run(replace(run, checkpoints=replace(plan, write_s=1500.0)))
    each_s = later.spent.lost_s / later.failures - at_once.spent.lost_s / at_once.failures
    assert each_s == pytest.approx(1500.0, rel=0.1)
    assert later.spent.checkpoint_s == pytest.approx(at_once.spent.checkpoint_s, rel=0.01)


def test_a_writing_that_takes_longer_than_the_interval_holds_the_training_up():
    fleet = Fleet(nodes=64, spares=64, detect_s=0.0, start_s=0.0)
    plan = Checkpoints(interval_s=1000.0, stall_s=10.0, write_s=1500.0)
    run = LongRun(
        work_s=1e5, rate=replace(RATE, per_1000_node_days=1e-9), fleet=fleet, checkpoints=plan
    )
    went = simulate_run(run)
    assert went.failures == 0
    # 99 checkpoints; but for the first, each waits 500 s for the one before
    assert went.spent.checkpoint_s == pytest.approx(99 * 10 + 98 * 500)


def test_copies_in_memory_lose_less_and_the_disk_is_there_for_the_rest():
    fleet = Fleet(nodes=64, spares=64, detect_s=0.0, start_s=0.0, repair_s=0.0)
    plan = Checkpoints(interval_s=1000.0, stall_s=0.0, memory_interval_s=100.0)
    often = replace(RATE, per_1000_node_days=80.0)
    run = LongRun(work_s=300 * DAY_S, rate=often, fleet=fleet, checkpoints=plan)
    for survives, lost_s in ((1.0, 50.0), (0.0, 500.0), (0.75, 0.75 * 50 + 0.25 * 500)):
        went = simulate_run(replace(run, checkpoints=replace(plan, memory_survives=survives)))
        assert went.spent.lost_s / went.failures == pytest.approx(lost_s, rel=0.08)
        from_memory = fmean(each.from_memory for each in went.incidents)
        assert from_memory == pytest.approx(survives, abs=0.04)


def test_detection_counts_once_for_a_failure_and_not_again_for_one_during_it():
    fleet = Fleet(nodes=64, spares=64, detect_s=1e4, start_s=0.0, repair_s=0.0)
    run = LongRun(work_s=2000 * DAY_S, rate=RATE, fleet=fleet)
    went = simulate_run(run)
    meanwhile = run.fleet.detect_s / run.mtbf_s
    assert went.spent.detect_s < went.failures * 1e4
    assert went.spent.detect_s == pytest.approx(went.failures * 1e4 / (1 + meanwhile), rel=0.02)


def test_the_same_failures_strike_whatever_the_interval():
    run = LongRun(work_s=30 * DAY_S)
    times = [
        [each.at_s for each in simulate_run(replace(run, checkpoints=plan), seed=7).incidents]
        for plan in (Checkpoints(interval_s=600.0), Checkpoints(interval_s=7200.0))
    ]
    assert times[0][:100] == times[1][:100]


def test_sizes_and_rates_become_seconds():
    plan = synchronous(1e12, interval_s=600.0, write_bytes_per_s=2e10)
    assert (plan.stall_s, plan.write_s, plan.load_s) == (50.0, 0.0, 50.0)
    plan = asynchronous(
        1e12, interval_s=600.0, copy_bytes_per_s=1e12, write_bytes_per_s=2e10, read_bytes_per_s=4e10
    )
    assert (plan.stall_s, plan.write_s, plan.load_s) == (1.0, 50.0, 25.0)
    rate = observed("mine", {"GPU": 3, "disk": 1}, nodes=10, days=40)
    assert rate.per_1000_node_days == 10.0 and rate.shares == {"GPU": 0.75, "disk": 0.25}


def test_reprs_are_short_and_results_are_plain():
    went = simulate_run(LongRun(work_s=5 * DAY_S))
    assert "goodput" in repr(went) and len(repr(went)) < 80
    assert len(repr(failure_rate("llama-3"))) < 80
    assert went.to_dict()["spent"]["work_s"] == 5 * DAY_S
    mean, error = mean_goodput(LongRun(work_s=5 * DAY_S), seeds=3)
    assert 0 < error < mean < 1


def test_a_training_that_can_hardly_end_is_given_up_with_a_sentence():
    fleet = Fleet(nodes=2048, spares=0, repair_s=1e7)
    with pytest.raises(
        InputError, match=r"after \d,\d+ failures, each .* s of work are left: give more spares"
    ):
        simulate_run(LongRun(work_s=10 * DAY_S, fleet=fleet))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Fleet(nodes=0), "nodes = 0"),
        (lambda: Fleet(nodes=10, replica_nodes=4), "replica_nodes = 4: give a divisor"),
        (lambda: Fleet(short_of_nodes="hope"), "'hope': give 'wait' or 'shrink'"),
        (lambda: Checkpoints(interval_s=0), "interval_s = 0"),
        (lambda: Checkpoints(stall_s=math.nan), "stall_s = nan"),
        (lambda: Checkpoints(memory_survives=1.5), "memory_survives = 1.5"),
        (lambda: Checkpoints(interval_s=60.0, memory_interval_s=61.0), "memory_interval_s = 61"),
        (lambda: failure_rate("lama-3"), "did you mean 'llama-3'"),
        (lambda: LongRun(work_s=-1), "work_s = -1"),
        (lambda: LongRun(work_s=1e12, checkpoints=Checkpoints(interval_s=1.0)), "checkpoints"),
        (lambda: FailureRate(name="x", per_1000_node_days=0), "per_1000_node_days = 0"),
    ],
)
def test_what_cannot_be_is_quoted(make, says):
    with pytest.raises(InputError, match=says):
        make()
