"""Slow ranks of a synchronous training: against the distributions that they are drawn from."""

from math import exp, log, sqrt
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab.errors import InputError
from simlab.operations import Disturbance, pause_slowdown, slow_stage, synchronous_steps


@pytest.mark.parametrize("ranks", [1, 8, 128])
def test_a_step_is_the_slowest_of_all_ranks_which_are_drawn_one_by_one_here(ranks):
    jitter, luck = 0.1, Random(5)
    sigma = sqrt(log(1 + jitter**2))
    by_rank = [
        max(exp(luck.gauss(-(sigma**2) / 2, sigma)) for _ in range(ranks)) for _ in range(4000)
    ]
    steps = synchronous_steps(Disturbance(step_s=1.0, jitter=jitter), ranks=ranks, steps=4000)
    assert steps.mean_s == pytest.approx(fmean(by_rank), rel=0.01)
    assert steps.waiting_s == pytest.approx(steps.mean_s - 1)


def test_one_slow_rank_slows_all_and_more_slow_ones_hardly_more():
    one, many = (
        synchronous_steps(Disturbance(slow_ranks=slow, slow_by=0.06), ranks=64, steps=50).slowdown
        for slow in (1, 32)
    )
    assert one == pytest.approx(0.06) == many


@given(st.integers(1, 500), st.integers(1, 200), st.floats(0, 10))
def test_pauses_cost_least_together_and_at_most_one_in_each_step(ranks, every, pause_s):
    alone, together = pause_slowdown(ranks, pause_s=pause_s, every=every, step_s=10.0)
    assert together <= alone + 1e-12 and alone <= pause_s / 10 + 1e-12
    assert together == pytest.approx(pause_s / 10 / every)


def test_simulated_pauses_cost_what_the_closed_form_says():
    alone, _ = pause_slowdown(16, pause_s=2.0, every=50, step_s=10.0)
    pauses = Disturbance(step_s=10.0, pause_s=2.0, pause_every=50)
    found = [synchronous_steps(pauses, ranks=16, steps=500, seed=s).slowdown for s in range(300)]
    assert fmean(found) == pytest.approx(alone, rel=0.02)


@pytest.mark.parametrize("stage", range(4))
def test_a_slow_stage_of_a_long_pipeline_sets_the_pace(stage):
    program = sl.generate("1f1b", 4, 400)
    found = slow_stage(program, sl.OpTimes(forward_s=1, backward_s=2), stage=stage, slow_by=0.1)
    assert found.slowdown == pytest.approx(0.1, abs=0.002)
    assert found.before_s == 3 * (400 + 3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Disturbance(step_s=0), "step_s = 0"),
        (lambda: Disturbance(hiccup=1.5), "hiccup = 1.5"),
        (lambda: synchronous_steps(Disturbance(slow_ranks=3), ranks=2), "slow_ranks = 3 of 2"),
        (lambda: synchronous_steps(Disturbance(), ranks=10**6, steps=10**6), "give at most"),
        (
            lambda: slow_stage(
                sl.generate("1f1b", 2, 2),
                sl.OpTimes(forward_s=1, backward_s=2),
                stage=2,
                slow_by=0.1,
            ),
            "stage 2: there are stages 0 to 1",
        ),
    ],
)
def test_what_cannot_be_is_quoted(call, says):
    with pytest.raises(InputError, match=says):
        call()
