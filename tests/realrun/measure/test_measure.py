"""Calibration: timers, the link fit, and what a calibration of paced links must find."""

import time

import pytest

from realrun.backends.calibration import pause_s
from realrun.measure.pings import PAUSE_S, fit_link
from realrun.measure.timers import HostTimer
from realrun.run.job import Job
from simlab.schedules import generate
from simlab.training.calibration import Calibration
from tests.support.patience import eventually


def test_a_padded_op_lasts_its_time_at_least_and_another_kind_does_not(monkeypatch):
    timer = HostTimer({"F": 0.05})
    start = timer.begin("F")
    end = timer.finish("F", start)
    assert end - start >= 0.05
    monkeypatch.setattr(time, "sleep", None)  # which this one never calls
    start = timer.begin("B")
    assert timer.finish("B", start) >= start


def test_an_op_that_takes_longer_than_its_padding_keeps_its_own_time():
    timer = HostTimer({"F": 0.01})
    start = timer.begin("F")
    time.sleep(0.05)
    assert timer.finish("F", start) - start >= 0.05


def test_the_link_fit_finds_latency_and_bandwidth_of_exact_times():
    samples = [(size, [2e-3 + size / 4e6] * 3, [1e-5, 3e-5, 2e-5]) for size in (4, 4000, 32000)]
    link = fit_link(samples)
    assert link["latency_s"] == pytest.approx(2e-3) and link[
        "bandwidth_bytes_per_s"
    ] == pytest.approx(4e6)
    assert link["overhead_s"] == pytest.approx(2e-5)


def test_one_slow_round_of_ten_changes_nothing_in_the_link_fit():
    samples = [(size, [1e-3 + size / 1e6] * 9 + [5.0], [1e-5]) for size in (4, 4000, 32000)]
    assert fit_link(samples)["latency_s"] == pytest.approx(1e-3)


@pytest.mark.parametrize("last_s", [1e-3, 0.5e-3])
def test_where_larger_messages_take_no_longer_the_latency_is_the_mean_and_the_bandwidth_without_limit(
    last_s,
):
    link = fit_link([(4, [1e-3], [0.0]), (4000, [1e-3], [0.0]), (32000, [last_s], [0.0])])
    assert link["bandwidth_bytes_per_s"] == 1e15 and link["latency_s"] == pytest.approx(
        (2e-3 + last_s) / 3
    )


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"compute": "padded", "forward_s": 0.002}, 0.002),
        ({"compute": "padded", "forward_s": 0.5}, PAUSE_S),
        ({"compute": "real"}, PAUSE_S),
    ],
)
def test_before_a_timed_send_a_rank_sleeps_as_long_as_its_forward_takes(fields, seconds):
    assert pause_s(Job(programs={"1f1b": str(generate("1f1b", 2, 2))}, **fields)) == seconds


def test_calibration_finds_the_pace_of_links_and_ops_that_was_asked_for(pools, tmp_path):
    """Lower bounds are certain: nothing is faster than its pace. The upper ones hold in one of several
    calibrations, for what else a machine does makes some of them longer."""
    model = {"hidden": 32, "heads": 2, "seq": 16, "microbatch_size": 1}
    job = Job(
        programs={"1f1b": str(generate("1f1b", 2, 2))}, compute="padded", forward_s=0.004, backward_s=0.006, steps=1,
        link_s=0.03, link_bytes_per_s=1e6, sizes=model, out=str(tmp_path),
    )  # fmt: skip

    def found():
        """Whether nothing took much longer; it never took less."""
        calibration = Calibration.load(pools(2).run(job)["calibrations"][0])
        assert calibration.message_bytes == 4 * 16 * 32
        assert len(calibration.op_seconds["F"]) == 2 and set(calibration.links) == {"0-1", "1-0"}
        messages_s = [
            link["latency_s"] + calibration.message_bytes / link["bandwidth_bytes_per_s"]
            for link in calibration.links.values()
        ]
        forwards_s, backwards_s = (calibration.op_seconds[kind] for kind in "FB")
        assert min(forwards_s) >= 0.004 and min(backwards_s) >= 0.006
        assert min(messages_s) * 1.01 >= 0.03 + 2048 / 1e6
        return max(forwards_s) < 0.04 and max(backwards_s) < 0.06 and max(messages_s) < 0.05

    assert eventually(found)
