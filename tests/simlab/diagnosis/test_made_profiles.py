"""The cause of each fault is named, whatever trains, and however many steps were recorded."""

import pytest

from simlab.diagnosis import diagnose, profile_graph
from tests.support.made_profiles import FAULTS, HOW, profiles

CAUSES = {
    "sleep": "host", "host stall": "host", "more ops": "more", "more launches": "more",
    "slower ops": "gpu", "larger batch": "larger", "longer input": "larger",
}  # fmt: skip
STEPS = (1, 2, 4, 8)


def found(how, fault, steps, **more):
    return diagnose(profile_graph(profiles(how, fault, steps, **more)))


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_cause_is_named(fault, how, steps):
    diagnosis = found(how, fault, steps)
    assert diagnosis.steps == steps
    if fault == "slow link":
        assert diagnosis.straggler is None
        exposed = sum(diagnosis.spent.exposed.values())
        assert exposed > 3 * sum(found(how, "", steps).spent.exposed.values())
        return
    slow = diagnosis.straggler
    assert (slow.rank, slow.cause, diagnosis.bottleneck) == (1, CAUSES[fault], "straggler")
    if fault == "more ops":
        assert "'my extra products'" in str(slow) and "aten::mm" in str(slow)


@pytest.mark.parametrize("how", HOW)
def test_waiting_is_not_lost_in_longer_profiles(how):
    """A rank that sleeps is as many times as slow in one step as in eight."""
    each = [found(how, "sleep", steps).straggler.slower for steps in STEPS]
    assert each == pytest.approx([each[0]] * len(STEPS), rel=0.05)


@pytest.mark.parametrize("how", HOW)
def test_what_ran_before_the_longest_pause_of_a_slow_host_is_named(how):
    """It sleeps at the begin of a step: after the update at the end of the one before."""
    diagnosis = found(how, "sleep", 4)
    pause = diagnosis.pause
    assert pause.rank == 1 and pause.seconds == pytest.approx(0.1, rel=0.1)
    assert "aten::_foreach_add_" in pause.before
    assert f"longest pause of a host: rank 1, {pause.seconds * 1e3:.0f}" in str(diagnosis).replace(
        ".0 ms", " ms"
    )
    stalled = found(how, "host stall", 2).pause
    assert stalled.rank == 1 and "aten::relu" in stalled.before
    assert found(how, "", 2).pause is None


@pytest.mark.parametrize("how", HOW)
def test_no_fault_has_no_straggler(how):
    assert found(how, "", 4).straggler is None


def test_without_shapes_a_larger_batch_may_be_a_slower_gpu_and_it_says_so():
    slow = found("ddp", "larger batch", 2, shapes=False).straggler
    assert slow.cause == "gpu" and "record_shapes=True" in str(slow)
