"""Signals that ask a run to end: all ranks save what is done, and one line says so."""

import os
import re
import shlex
import signal
import sys

import pytest
from realrun_gate import Gate

from realrun.checkpoint import save as checkpoint
from realrun.run.life import ASKS, Stop

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SAVING = ("--dp", 2, "--steps", 100_000, "--checkpoint-every", 90_000)
LINE = re.compile(
    r"failed: dp2(?:-torch)? was asked to end by (SIG\w+) and did, after step (\d+) of 100001; "
    r"out/checkpoints/step-(\d+) has it"
)


def ended(run, tmp_path):
    """(status, name of the signal) of a run that said what it saved, and did save that."""
    status, out, err = run.end()
    run.said = err
    said = [match for match in map(LINE.fullmatch, err.splitlines()) if match]
    assert len(said) == 1 and out == "", err
    name, step, saved = said[0].groups()
    assert int(step) == int(saved) > 0
    assert checkpoint.complete(tmp_path / "out" / "checkpoints") == [int(step)]
    checkpoint.verify(tmp_path / "out" / "checkpoints" / f"step-{int(step):06d}")
    (path,) = tmp_path.glob("out/dp2*/losses.csv")
    losses = path.read_text().splitlines()
    assert losses[-1].startswith(f"{int(step)},")
    return status, name


@pytest.mark.parametrize(
    "number",
    [
        number if number == signal.SIGINT else pytest.param(number, marks=pytest.mark.attack)
        for number in ASKS
    ],
    ids=lambda number: number.name,
)
def test_a_signal_to_the_launcher_saves_and_the_command_that_it_says_goes_on(
    command, tmp_path, number
):
    run = command(*SAVING)
    run.say_until("step ")
    run.say_until("tokens/s")
    run.process.send_signal(number)
    run.say_until("once more ends at once")
    assert ended(run, tmp_path) == (128 + number, number.name)
    assert run.gone() and not run.temporary_files()
    assert run.said.count("out/checkpoints/step-") == run.said.count("go on") == 1
    saved = re.search(r"out/checkpoints/step-\d+", run.said)[0]
    command_said = re.search(r"^go on with: (.*)", run.said, re.MULTILINE)[1]
    _, module, realrun, *arguments = shlex.split(command_said)
    assert (module, realrun, arguments[-1]) == ("-m", "realrun", "--resume")
    again = command(*arguments)
    again.say_until(f"goes on from {saved}")
    again.process.send_signal(number)
    assert again.end()[0] == 128 + number


def test_a_signal_to_one_rank_of_torchs_backend_saves_and_ends(command, tmp_path):
    run = command(*SAVING, "--backend", "torch")
    losses = tmp_path / "out" / "dp2-torch" / "losses.csv"
    run.say_until("measured steps")
    run.wait_until(lambda: losses.exists() and losses.read_text().count("\n") > 3)
    os.kill(run.workers()[1], signal.SIGUSR1)
    assert ended(run, tmp_path) == (128 + signal.SIGUSR1, "SIGUSR1")


@pytest.mark.parametrize(
    "who, number",
    [
        ("agent", signal.SIGUSR1),
        pytest.param("rank", signal.SIGTERM, marks=pytest.mark.attack),
    ],
)
def test_under_torchrun_all_ranks_save_and_end(command, tmp_path, who, number):
    run = command(
        "--standalone", "--nproc-per-node", 2,
        "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        "-m", "realrun", *SAVING, command=TORCHRUN,
    )  # fmt: skip
    run.say_until("tokens/s")
    ranks = sorted(pid for pid, parent in run.processes().items() if parent == run.process.pid)
    os.kill(run.process.pid if who == "agent" else ranks[1], number)
    status, name = ended(run, tmp_path)
    assert status != 0 and name == number.name


def test_a_signal_to_a_rank_before_the_first_step_is_agreed_too(command, tmp_path):
    gate = Gate(tmp_path / "gate", "comparing clocks and calibrating")
    run = command(*SAVING, environment=gate.environment)
    os.kill(gate.reached(run, 2)[1], signal.SIGTERM)
    gate.open()
    status, out, err = run.end()
    assert (status, out) == (128 + signal.SIGTERM, "")
    assert err.splitlines()[-1] == (
        "failed: dp2 was asked to end by SIGTERM while comparing clocks and calibrating and did, "
        "before its first step; it had nothing new to save"
    )


def test_under_torchrun_a_run_that_saves_nothing_ends_with_one_word(command, tmp_path):
    """In whatever the ranks wait for: here for a rank that has not come."""
    gate = Gate(tmp_path / "gate", "checking gradients")
    run = command(
        "--standalone", "--nproc-per-node", 2, "-m", "realrun", "--dp", 2,
        command=TORCHRUN, environment=gate.environment,
    )  # fmt: skip
    gate.reached(run, 2)
    run.process.send_signal(signal.SIGTERM)
    status, out, err = run.end()
    assert status != 0 and out == "" and err.count("ended by SIGTERM\n") == 1


def test_a_run_that_saves_nothing_ends_with_a_word(command):
    run = command("--dp", 2, "--steps", 100_000)
    run.say_until("tokens/s")
    run.process.send_signal(signal.SIGHUP)
    status, out, err = run.end()
    assert status == 128 + signal.SIGHUP and out == "" and "ended by SIGHUP\n" in err


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop()
        with stop.listening():
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.number == 0
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.number == signal.SIGUSR1  # the first one counts
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_is_told_apart():
    second = []
    stop = Stop()
    with stop.listening(second.append):
        os.kill(os.getpid(), signal.SIGTERM)
        assert second == []
        os.kill(os.getpid(), signal.SIGTERM)
    assert second == [signal.SIGTERM]
