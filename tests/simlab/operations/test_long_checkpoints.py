"""Checkpoints that take long, and restarts that fail: against the exact optimum and against a
training that is walked through second by second."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.operations.failures import daly_interval_s, train_with_failures, young_interval_s

MTBF_S = 10_000.0


def exact_interval_s(checkpoint_s, mtbf_s):
    """Where (e^((t + C) / M) - 1) / t is least, which Daly's formula approximates: by bisection of
    its derivative, e^((t + C) / M) (t / M - 1) + 1."""
    low, high = 0.0, mtbf_s
    for _ in range(200):
        middle = (low + high) / 2
        grows = math.exp((middle + checkpoint_s) / mtbf_s) * (middle / mtbf_s - 1) + 1 > 0
        low, high = (low, middle) if grows else (middle, high)
    return low


@pytest.mark.parametrize("part", [1e-4, 1e-3, 0.01, 0.05, 0.1, 0.25, 0.5])
def test_dalys_interval_is_the_best_one_to_a_percent_up_to_checkpoints_of_half_the_mtbf(part):
    found = daly_interval_s(part * MTBF_S, MTBF_S)
    assert found == pytest.approx(exact_interval_s(part * MTBF_S, MTBF_S), rel=0.01)


@pytest.mark.parametrize("part", [1.0, 1.5, 1.99, 2.0, 2.01, 5.0, 40.0])
def test_of_longer_checkpoints_it_is_within_a_tenth_and_never_above_the_mtbf(part):
    """From C = 2M on it is M, as Daly's equation 37 has it; the exact one tends to M."""
    found = daly_interval_s(part * MTBF_S, MTBF_S)
    assert found == pytest.approx(exact_interval_s(part * MTBF_S, MTBF_S), rel=0.1)
    assert found == MTBF_S if part >= 2 else found < 1.05 * MTBF_S


def test_dalys_terms_are_those_that_he_printed():
    """Equation 37 at C = M / 2: sqrt(M^2) (1 + sqrt(1/4) / 3 + (1/4) / 9) - M / 2."""
    assert daly_interval_s(MTBF_S / 2, MTBF_S) == pytest.approx(
        MTBF_S * (1 + 1 / 6 + 1 / 36) - MTBF_S / 2, rel=1e-12
    )
    assert young_interval_s(MTBF_S / 2, MTBF_S) == pytest.approx(MTBF_S, rel=1e-12)


def walked(work_s, interval_s, checkpoint_s, restart_s, mtbf_s, seed):
    """(lost_s, checkpoint_s, restart_s, failures), from failure to failure: what is planned between
    two of them is laid out on a line, and cut where the next one strikes."""
    luck, now_s, done_s, must_restart = Random(seed), 0.0, 0.0, False
    fails_s, spent, failures = luck.expovariate(1 / mtbf_s), [0.0, 0.0, 0.0], 0
    while done_s < work_s:
        start_s = now_s
        if must_restart:
            now_s += restart_s
            if now_s > fails_s:
                spent[2] += fails_s - start_s
                now_s, failures = fails_s, failures + 1
                fails_s += luck.expovariate(1 / mtbf_s)
                continue
            spent[2] += restart_s
            start_s, must_restart = now_s, False
        piece_s = min(interval_s, work_s - done_s)
        written_s = checkpoint_s if done_s + piece_s < work_s else 0.0
        now_s += piece_s + written_s
        if now_s > fails_s:
            spent[0] += fails_s - start_s
            now_s, failures, must_restart = fails_s, failures + 1, True
            fails_s += luck.expovariate(1 / mtbf_s)
            continue
        spent[1] += written_s
        done_s += piece_s
    return (*spent, failures)


@given(
    st.integers(5_000, 200_000), st.integers(500, 10_000), st.integers(0, 5_000), st.integers(0, 15_000), st.integers(0, 10**6)
)  # fmt: skip
def test_a_training_goes_as_a_walk_from_failure_to_failure_says(
    work, interval, checkpoint, restart, seed
):
    """Restarts of up to one and a half times the mean time between failures: most fail at least
    once. Whole seconds, which add up exactly: a rest of 1e-12 s of work is not one more
    checkpoint."""
    costs = {
        "interval_s": float(interval),
        "checkpoint_s": float(checkpoint),
        "restart_s": float(restart),
        "mtbf_s": MTBF_S,
    }
    found = train_with_failures(float(work), seed=seed, **costs)
    lost_s, written_s, restarts_s, failures = walked(float(work), seed=seed, **costs)
    assert found.failures == failures
    assert (found.spent.lost_s, found.spent.checkpoint_s, found.spent.restart_s) == pytest.approx(
        (lost_s, written_s, restarts_s), rel=1e-6, abs=1e-6 * MTBF_S
    )


def test_a_restart_that_fails_is_begun_again_and_its_time_is_the_restarts():
    """With restarts of three times the mean time between failures about 19 of 20 fail."""
    found = train_with_failures(
        MTBF_S, interval_s=MTBF_S / 4, checkpoint_s=0.0, restart_s=3 * MTBF_S, mtbf_s=MTBF_S, seed=3
    )
    restart_s = found.spent.restart_s
    restarted = found.failures > 5 and restart_s > 3 * found.spent.lost_s
    assert restarted and restart_s < found.failures * 3 * MTBF_S
