"""A calibration that something else on the machine disturbed is noticed, measured again, and said."""

import json
import re

import pytest

import realrun
from realrun.measure.disturbance import disturbance
from realrun.report.summary import summary
from realrun.run.job import Job

ASKED = {2: {"F": 0.020, "B": 0.040}}
QUIET = {"F": [0.0201] * 9, "B": [0.0402] * 9}
PING = [8, [0.0003] * 10, [0.0001] * 10]


def measured(*, ops=None, ping=PING, gaps=(1e-4,)):
    """What two ranks measured, the second with `ops` that differ."""
    return [
        {"ops": {"2": {"0": QUIET}}, "links": [[0, 1, [ping]]], "gaps": [*gaps]},
        {"ops": {"2": {"1": QUIET | (ops or {})}}, "links": [], "gaps": [*gaps]},
    ]


def test_a_quiet_calibration_is_believed():
    assert not disturbance(measured(), ASKED, 0.0).tells
    paced = [8, [0.0503] * 10, [0.0001] * 10]
    assert not disturbance(measured(ping=paced), ASKED, 0.05).tells


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ops": {"F": [0.031] * 9}}, "F of stage 1 took 31.0 ms, where 20.0 ms was set"),
        ({"ops": {"B": [0.0402] * 5 + [0.06] * 4}}, "B of stage 1 took from 40.2 ms to 60.0 ms"),
        (
            {"ping": [8, [0.0003] * 5 + [0.018] * 5, [1e-4] * 10]},
            "a message between ranks 0 and 1 took from 300 µs to 18.0 ms",
        ),
        ({"gaps": [0.012] * 31}, "what lies between two ops took 12.0 ms"),
    ],
)
def test_the_worst_of_what_was_disturbed_is_said(given, said):
    found = disturbance(measured(**given), ASKED, 0.0)
    assert found.tells and said in found.text


def test_one_late_op_of_nine_disturbs_nothing():
    assert not disturbance(measured(ops={"F": [0.0201] * 8 + [0.2]}), ASKED, 0.0).tells


def test_real_ops_may_take_what_they_take_but_not_scatter():
    slow = measured(ops={"F": [0.3] * 9})
    assert not disturbance(slow, {2: {}}, 0.0).tells
    assert disturbance(measured(ops={"F": [0.01] * 5 + [0.02] * 4}), {2: {}}, 0.0).tells


def test_a_calibration_far_from_what_was_set_is_repeated_and_then_said(pools, tmp_path):
    """Ops that are set to take a microsecond take as long as their own math, or where something else
    runs, too, are even farther apart."""
    sizes = {"layers": 2, "hidden": 128, "heads": 2, "seq": 64, "microbatch_size": 1}
    given = {"compute": "padded", "forward_s": 1e-6, "steps": 1, "warmup": 0, "sizes": sizes}
    job = Job(programs={"1f1b": "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"}, out=str(tmp_path), **given)
    answer = pools(2).run(job)
    (facts,) = answer["runs"]
    kept = json.loads((tmp_path / "calibration.json").read_text())["metadata"]
    assert kept["calibrated_times"] == 3
    assert re.search("where .* was set|took from .* to", kept["disturbed_by"])
    assert facts["disturbed_by"] == kept["disturbed_by"]
    assert "the prediction says little" in summary(job, facts)
    assert realrun.disturbed([realrun.Run(None, None, facts)])


def test_steps_that_are_far_apart_are_disturbed():
    def run(*steps_s):
        return realrun.Run(None, None, {"steps_s": [*steps_s]})

    assert not realrun.disturbed([run(0.66, 0.67), run(0.5, 0.6)])
    assert realrun.disturbed([run(0.66, 0.67), run(0.5, 0.7)])
