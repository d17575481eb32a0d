"""Trainings with failures: against Daly's formula, which the simulation does not know, and against
what must hold of any of them."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.errors import InputError
from simlab.operations.failures import (
    daly_interval_s,
    expected_goodput,
    train_with_failures,
    young_interval_s,
)

HOUR_S = 3600.0


@pytest.mark.parametrize("interval_s", [300.0, 1200.0, 3600.0])
@pytest.mark.parametrize("restart_s", [0.0, 600.0, 2 * HOUR_S])
def test_the_mean_of_many_trainings_is_dalys_formula(interval_s, restart_s):
    costs = {
        "interval_s": interval_s,
        "checkpoint_s": 60.0,
        "restart_s": restart_s,
        "mtbf_s": 2 * HOUR_S,
    }
    per_work = [
        train_with_failures(400 * interval_s, seed=seed, **costs).wall_s / (400 * interval_s)
        for seed in range(60)
    ]
    error = statistics.stdev(per_work) / len(per_work) ** 0.5
    # no last checkpoint
    assert abs(statistics.mean(per_work) - 1 / expected_goodput(**costs)) < 4 * error + 60 / (
        400 * interval_s
    )


@given(
    work_s=st.floats(1, 1e5), interval_s=st.floats(10, 1e5), checkpoint_s=st.floats(0, 1e3), restart_s=st.floats(0, 1e3),
    mtbf_s=st.floats(500, 1e6), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_all_time_is_accounted_for_and_failures_alone_cost_work(
    work_s, interval_s, checkpoint_s, restart_s, mtbf_s, seed
):
    if mtbf_s < 5 * (min(interval_s, work_s) + checkpoint_s + restart_s):
        # else it hardly ever ends
        mtbf_s = 5 * (min(interval_s, work_s) + checkpoint_s + restart_s) + 1
    ended = train_with_failures(
        work_s, interval_s=interval_s, checkpoint_s=checkpoint_s, restart_s=restart_s, mtbf_s=mtbf_s, seed=seed
    )  # fmt: skip
    spent, failures = ended.spent, ended.failures
    assert min(spent) >= 0 and spent.work_s == work_s
    if not failures:
        assert spent.lost_s == spent.restart_s == 0
    assert spent.restart_s <= failures * restart_s + 1e-6  # of rounding
    assert spent.lost_s <= failures * (min(interval_s, work_s) + checkpoint_s) + 1e-6


def test_a_training_of_long_and_frequent_checkpoints_ends():
    """Its checkpoints take 44 times as long as its work, and so it meets over 2,000 failures, each
    of which costs it little."""
    ended = train_with_failures(
        89_651.0, interval_s=10.0, checkpoint_s=438.0, restart_s=0.0, mtbf_s=2241.0, seed=3
    )
    assert ended.failures > 2000 and ended.spent.lost_s < ended.wall_s / 5


def test_without_failures_only_checkpoints_cost():
    ended = train_with_failures(
        1000.0, interval_s=100.0, checkpoint_s=5.0, restart_s=50.0, mtbf_s=1e15
    )
    assert (ended.spent.checkpoint_s, ended.wall_s, ended.failures) == (45.0, 1045.0, 0)


@pytest.mark.parametrize(
    "checkpoint_s,mtbf_s", [(1, 1e5), (60, 11_000), (300, 11_000), (2000, 11_000)]
)
def test_the_best_interval_is_dalys_and_nearly_youngs(checkpoint_s, mtbf_s):
    def cost(interval_s):
        return 1 / expected_goodput(
            interval_s=interval_s, checkpoint_s=checkpoint_s, restart_s=100, mtbf_s=mtbf_s
        )

    least = min(
        cost(daly_interval_s(checkpoint_s, mtbf_s) * 2 ** (step / 50)) for step in range(-100, 101)
    )
    assert cost(daly_interval_s(checkpoint_s, mtbf_s)) < least * 1.0005
    assert cost(young_interval_s(checkpoint_s, mtbf_s)) < least * (1 + 0.5 * checkpoint_s / mtbf_s)


@pytest.mark.parametrize(
    "name,value",
    [
        ("work_s", -1.0),
        ("interval_s", 0.0),
        ("mtbf_s", 0.0),
        ("restart_s", float("inf")),
        ("work_s", "x"),
    ],
)
def test_a_time_that_cannot_be_is_quoted(name, value):
    times = {
        "work_s": 10.0,
        "interval_s": 1.0,
        "checkpoint_s": 0.1,
        "restart_s": 1.0,
        "mtbf_s": 100.0,
    } | {name: value}
    with pytest.raises(InputError, match=f"{name} = {value!r}: give a finite time"):
        train_with_failures(times.pop("work_s"), **times)


@pytest.mark.parametrize("times", [{"interval_s": 2e4}, {"restart_s": 1e9}, {"interval_s": 1e-6}])
def test_a_training_that_would_hardly_ever_end_is_refused(times):
    with pytest.raises(InputError, match="checkpoints and failures, more than 1e"):
        train_with_failures(
            1e6,
            **{"interval_s": 10.0, "checkpoint_s": 0.1, "restart_s": 1.0, "mtbf_s": 100.0} | times,
        )


def test_formulas_check_their_times_too():
    assert expected_goodput(interval_s=1e6, checkpoint_s=1, restart_s=1, mtbf_s=10) == 0
    for call in (young_interval_s, daly_interval_s):
        with pytest.raises(InputError, match="mtbf_s = -5: give a finite time above 0 s"):
            call(60, -5)
