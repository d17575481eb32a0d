"""A run whose padded ops this machine's cores cannot pace is told before it starts."""

import pytest

from realrun.cli import run_command as command
from realrun.cli.main import main
from realrun.launch import ranks as launch
from realrun.report.summary import failures
from realrun.run.job import Job
from realrun.run.job.pipelines import program_texts, too_fast
from simlab.schedules import generate


def pipeline(ranks, forward_ms, schedule="1f1b", **fields):
    programs = program_texts([generate(schedule, ranks, 8)])
    return Job(programs=programs, compute="padded", forward_s=forward_ms * 1e-3, **fields)


@pytest.mark.parametrize(
    "ranks, forward_ms, cores",
    [(8, 20, 2), (8, 1, 2), (4, 0.001, 1), (64, 20, 64), (32, 20, 4), (64, 100, 2)],
)
def test_what_cores_can_pace_and_what_few_ranks_do_is_run(ranks, forward_ms, cores):
    assert too_fast(pipeline(ranks, forward_ms), cores) is None


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("ranks, forward_ms", [(32, 1), (64, 5)])
def test_what_is_offered_holds(ranks, forward_ms, schedule):
    said = too_fast(pipeline(ranks, forward_ms, schedule), 2)
    assert f"{ranks} ranks on 2 cores" in said
    offered = float(said.split("--forward-ms ")[1].split()[0])
    assert too_fast(pipeline(ranks, offered, schedule), 2) is None
    assert too_fast(pipeline(8, forward_ms, schedule), 2) is None
    real = Job(programs=program_texts([generate(schedule, ranks, 8)]), compute="real")
    assert too_fast(real, 2) is None


FACTS = {
    "name": "1f1b", "ranks": 32, "pp": 32, "backend": "native", "sent_bytes_predicted": None,
    "compute": "padded", "error": -0.467, "predicted_step_s": 1.07,
    "op_s": {"F": {"predicted": 0.02, "measured": 0.061}, "B": {"predicted": 0.04, "measured": 0.05}},
}  # fmt: skip


@pytest.mark.parametrize("steps_s", [[2.0, 2.1], [0.5, 0.6]])
def test_an_error_far_outside_what_a_machine_reaches_fails_with_the_reason(steps_s):
    (said,) = failures(FACTS | {"steps_s": steps_s})
    assert "-46.7% off, which is far outside what this machine reaches" in said
    assert "one F took 61.0 ms, and 20.0 ms when it was calibrated. It has too few cores" in said
    (said,) = failures(FACTS | {"steps_s": steps_s, "disturbed_by": "F took 30 ms"})
    assert "when it was calibrated, where F took 30 ms. " in said


@pytest.mark.parametrize(
    "other",
    [
        {"steps_s": [1.5, 2.5]},  # one step was near it
        {"steps_s": [0.14], "predicted_step_s": 0.07},  # a few late wake-ups
        {"steps_s": [2.0], "compute": "real"},
        {"steps_s": [2.0], "op_s": None},
    ],
)
def test_an_error_that_a_machine_may_have_fails_nothing(other):
    assert failures(FACTS | other) == []


def test_a_limit_of_ones_own_counts_alone():
    assert failures(FACTS | {"steps_s": [2.0]}, max_error=0.5) == []


def test_the_command_line_refuses_it_unless_it_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "usable_cores", lambda: 2)
    monkeypatch.setattr(launch, "run", lambda *arguments, **options: None)
    asked = ["--pp", "32", "--microbatches", "8", "--forward-ms", "1", "--device", "cpu"]
    assert main(asked) == 2
    assert "--anyway runs it" in capsys.readouterr().err
    assert main([*asked, "--anyway"]) == 0
