"""What a restart takes by what failed and from where the training goes on, and how rare failures
become of a training that shrinks: against closed forms."""

from dataclasses import replace
from statistics import fmean

import pytest

from simlab.operations import (
    Cause,
    Checkpoints,
    FailureRate,
    Fleet,
    LongRun,
    interval_study,
    simulate_run,
)

DAY_S = 86_400.0
NODE, BUG = Cause("gpu", 1), Cause("bug", 1, False)
FLEET = Fleet(nodes=64, spares=64, repair_s=0.0, detect_s=0.0, replace_s=7.0, start_s=11.0)
PLAN = Checkpoints(interval_s=20_000.0, stall_s=0.0, load_s=23.0, memory_load_s=2.0)


def run_of(*causes, **changes):
    """A long run in which a failure during a restart is rare: 47 hours lie between failures."""
    rate = FailureRate(name="test", per_1000_node_days=8.0, causes=causes)
    return LongRun(
        **{"work_s": 1000 * DAY_S, "rate": rate, "fleet": FLEET, "checkpoints": PLAN} | changes
    )


@pytest.mark.parametrize("cause, replaced_s", [(NODE, 7.0), (BUG, 0.0)])
@pytest.mark.parametrize("survives, loaded_s", [(None, 23.0), (1.0, 2.0), (0.0, 23.0)])
def test_a_spare_is_brought_in_for_a_node_and_the_state_read_from_where_it_is(
    cause, replaced_s, survives, loaded_s
):
    plan = PLAN
    if survives is not None:
        plan = replace(plan, memory_interval_s=5000.0, memory_survives=survives)
    went = simulate_run(run_of(cause, checkpoints=plan))
    assert went.failures > 400
    # a failure of a training that has copied nothing yet reads the disk
    assert went.spent.restart_s / went.failures == pytest.approx(
        replaced_s + 11.0 + loaded_s, rel=0.01
    )


def test_failures_of_both_kinds_restart_in_the_mean_of_both():
    went = simulate_run(run_of(NODE, BUG))
    nodes = went.causes["gpu"] / went.failures
    assert went.spent.restart_s / went.failures == pytest.approx(7 * nodes + 34, rel=0.002)


def test_a_training_that_has_shrunk_fails_as_rarely_as_it_has_nodes():
    """The k-th failure leaves 64 - k nodes, and on n nodes one is 64 / n times as long in coming.
    So 16 nodes are gone after 64 (1/64 + 1/63 + ... + 1/49) times the first mean, not 16."""
    run = run_of(NODE)
    fleet = replace(
        FLEET, spares=0, repair_s=1e12, replace_s=0.0, start_s=0.0, short_of_nodes="shrink"
    )
    plan = Checkpoints(interval_s=run.mtbf_s / 20, stall_s=0.0)
    run = replace(run, fleet=fleet, checkpoints=plan, work_s=40 * run.mtbf_s)
    gone_s = [simulate_run(run, seed=seed).incidents[15].at_s for seed in range(150)]
    expected = 64 * sum(1 / nodes for nodes in range(49, 65))
    assert expected > 18
    assert fmean(gone_s) / run.mtbf_s == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("spares, enough", [(18, True), (17, False)])
def test_spares_are_enough_for_the_mean_of_nodes_in_repair_and_three_deviations(spares, enough):
    """Of three failures in four, which take a node, with repairs of twelve times the mean time
    between failures: nine are in repair on average, and 9 + 3 sqrt(9) are enough."""
    run = run_of(Cause("gpu", 3), BUG)
    fleet = replace(FLEET, spares=spares, repair_s=12 * run.mtbf_s)
    plan = replace(PLAN, stall_s=60.0)
    study = interval_study(
        replace(run, fleet=fleet, checkpoints=plan, work_s=30 * run.mtbf_s),
        intervals_s=(3600.0,),
        seeds=1,
    )
    (spare,) = [each for each in study.assumptions if each.text == "a spare is always there"]
    assert spare.holds is enough and "9.0 nodes in repair" in spare.here
