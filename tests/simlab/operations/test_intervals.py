"""The best interval between checkpoints: found by simulation, by Daly, and where the two part."""

from dataclasses import replace

import pytest

from simlab.errors import InputError
from simlab.operations import (
    Checkpoints,
    Fleet,
    LongRun,
    daly_interval_s,
    expected_goodput,
    failure_rate,
    interval_study,
    most_restart_s,
)

FLEET = Fleet(nodes=2048, spares=100)
MTBF_S = failure_rate("llama-3").mtbf_s(2048)
RUN = LongRun(work_s=400 * MTBF_S, fleet=FLEET)


@pytest.mark.parametrize("part", [0.003, 0.02, 0.1])
def test_where_its_assumptions_hold_the_best_interval_is_dalys_within_a_tenth(part):
    """A checkpoint of 0.3, 2 and 10% of the mean time between failures, 1,200 failures each, the same
    ones at all intervals."""
    study = interval_study(replace(RUN, checkpoints=Checkpoints(stall_s=part * MTBF_S)), seeds=3)
    assert all(each.holds for each in study.assumptions[1:])
    assert study.assumptions[0].holds == (part < 0.05)
    assert study.best_interval_s == pytest.approx(study.daly_interval_s, rel=0.1)
    for point in study.points:
        assert point.goodput == pytest.approx(point.expected, abs=4 * point.error + 0.003)


def test_with_copies_in_memory_the_disk_is_for_the_rest_and_wants_longer_intervals():
    plan = Checkpoints(
        stall_s=60.0, memory_interval_s=600.0, memory_stall_s=0.5, memory_survives=0.9
    )
    study = interval_study(replace(RUN, checkpoints=plan), seeds=2)
    assert [each.holds for each in study.assumptions].count(False) == 1
    # as if failures were ten times as rare: sqrt(10) times as long
    assert 2 < study.best_interval_s / study.daly_interval_s < 4


def test_where_spares_are_short_the_formula_promises_too_much_and_is_marked():
    short = replace(RUN, fleet=replace(FLEET, spares=8), work_s=60 * MTBF_S)
    study = interval_study(short, intervals_s=(600.0, 1200.0, 2400.0), seeds=2)
    assert not study.assumptions[4].holds
    assert all(point.goodput < point.expected - 0.1 for point in study.points)


def test_the_longest_restart_is_the_inverse_of_the_goodput():
    for checkpoint_s in (1.0, 60.0, 300.0):
        restart_s = most_restart_s(0.7, checkpoint_s=checkpoint_s, mtbf_s=MTBF_S)
        assert expected_goodput(
            interval_s=daly_interval_s(checkpoint_s, MTBF_S),
            checkpoint_s=checkpoint_s, restart_s=restart_s, mtbf_s=MTBF_S,
        ) == pytest.approx(0.7, rel=1e-12)  # fmt: skip
    assert most_restart_s(0.99, checkpoint_s=300.0, mtbf_s=MTBF_S) < 0
    with pytest.raises(InputError, match=r"goodput = 1\.5"):
        most_restart_s(1.5, checkpoint_s=1.0, mtbf_s=MTBF_S)


def test_a_checkpoint_that_costs_nothing_has_no_best_interval():
    with pytest.raises(InputError, match=r"stall_s = 0\.0"):
        interval_study(replace(RUN, checkpoints=Checkpoints(stall_s=0.0)))
