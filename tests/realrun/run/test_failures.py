"""`python -m realrun` when things go wrong: processes killed, interrupts, deadlocks. It ends, says
why, leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from realrun_processes import ROOT, CommandLine, descended, one_object

from realrun.record.recorder import RankProgress
from simlab.trace import Trace
from tests.support.patience import eventually

LONG = (
    "--schedule",
    "1f1b",
    "--pp",
    3,
    "--microbatches",
    4,
    "--forward-ms",
    10,
    "--steps",
    2000,
    "--out",
    "out",
)
DEADLOCK = "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"


def wait_for_a_step(run, folder):
    """Let `run` come so far that warm-up is over and a step is under way."""
    recording = folder / "out" / "1f1b" / "rank0.records"

    def stepping():
        progress = RankProgress.load(recording)
        return progress and progress.executing and progress.done > 3 * 8

    run.wait_until(stepping)


def imports_torch(pid):
    """Whether a process has begun to import torch, whose libraries it has then."""
    return pid is not None and "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def ended(run):
    """(exit status, stdout, stderr) of a run that ends before its steps, which take minutes, are over."""
    answer = run.end()
    assert "Traceback" not in answer[2] and "Traceback" not in answer[1]
    return answer


def test_a_rank_killed_in_a_step_ends_the_run_and_is_named_and_partial_traces_load(
    command, tmp_path
):
    run = command(*LONG, "--json")
    wait_for_a_step(run, tmp_path)
    victim = run.workers()[1]
    os.kill(victim, signal.SIGKILL)
    status, out, err = ended(run)
    assert status == 1
    answer = one_object(out)
    assert answer["ok"] is False
    assert answer["error"].startswith(f"rank 1 (process {victim}) was killed by signal 9 (SIGKILL")
    assert f"failed: {answer['error']}" in err
    partial = {str(Path(path).relative_to(tmp_path)) for path in answer["partial"]}
    assert {"out/1f1b/partial-gradient-check.json", "out/1f1b/partial-step-0.json"} <= partial
    for path in answer["partial"]:
        assert Trace.load(tmp_path / path).compute()
    assert len(Trace.load(tmp_path / "out/1f1b/partial-step-0.json").compute()) == 3 * 8
    assert run.gone()


def test_a_rank_killed_before_the_first_step_is_named_too(command):
    run = command(*LONG)
    run.say_until("calibrating")
    victim = run.workers()[2]
    os.kill(victim, signal.SIGKILL)
    status, out, err = ended(run)
    assert (status, out) == (1, "")
    assert err.splitlines()[-1].startswith(
        f"failed: rank 2 (process {victim}) was killed by signal 9"
    )
    assert err.splitlines()[-1].endswith(
        "while comparing clocks and calibrating; the others were ended"
    )


def test_a_rank_that_is_stopped_in_a_step_is_named_before_those_that_wait_for_it(command, tmp_path):
    run = command(*LONG, "--timeout", 3)
    wait_for_a_step(run, tmp_path)
    stopped = run.workers()[1]
    os.kill(stopped, signal.SIGSTOP)
    status, _, err = ended(run)
    assert status == 1
    said = err.splitlines()[-1]
    assert said.startswith(f"failed: rank 1 (process {stopped}) has not answered for 4 s while ")
    assert "; 1f1b: no rank has moved for 3 s: " in said
    assert said.count("has not answered") == 1


@pytest.mark.parametrize(
    "signal_number, status",
    [(signal.SIGKILL, -9), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.attack)],
)
def test_no_rank_outlives_a_launcher_that_was_killed(command, tmp_path, signal_number, status):
    run = command(*LONG)
    wait_for_a_step(run, tmp_path)
    assert len(run.workers()) == 3
    run.process.send_signal(signal_number)
    assert run.process.wait() == status
    assert run.gone()
    assert signal_number == signal.SIGKILL or not run.temporary_files()


@pytest.mark.parametrize(
    "moment", ["starting", pytest.param("calibrating", marks=pytest.mark.attack), "stepping"]
)
def test_an_interrupt_ends_everything_with_one_word(command, tmp_path, moment):
    run = command(*LONG)
    run.say_until("starting" if moment == "stepping" else moment)
    if moment == "stepping":
        wait_for_a_step(run, tmp_path)
    if moment == "starting":
        run.wait_until(lambda: imports_torch(run.fork_server()))
    for _ in range(3):  # people press it more than once
        # as a terminal does: launcher, fork server and ranks all get it
        os.killpg(run.process.pid, signal.SIGINT)
        time.sleep(0.05)
    status, out, err = ended(run)
    assert (status, out) == (1, "") and err.splitlines()[-1] == "interrupted"
    assert run.gone() and not run.temporary_files()


# programs that cannot end
# -----------------------------------------------------------------------------------


@pytest.fixture
def deadlock(tmp_path):
    path = tmp_path / "circle.csv"
    path.write_text(DEADLOCK)
    return path


CIRCLE = "deadlock: rank 0 waits at 0B0 for 1B0, which rank 1 has not run; rank 1 waits at 1F1 for 0F1, which rank 0 has not run"


def test_a_program_that_deadlocks_is_refused_before_anything_starts_naming_the_circle(
    command, deadlock
):
    run = command("--csv", deadlock, "--json", "--device", "cpu")
    status, out, err = ended(run)
    assert status == 1
    left = {"partial": [], "checkpoint": None, "go_on": None}
    assert one_object(out) == {"ok": False, "error": CIRCLE, **left}
    assert err == f"failed: {CIRCLE} (--no-check runs it all the same)\n"


def test_a_deadlock_that_is_run_all_the_same_ends_by_the_timeout_saying_who_waits_for_whom(
    command, deadlock, tmp_path
):
    run = command("--csv", deadlock, "--no-check", "--timeout", 5, "--forward-ms", 2, "--json")
    run.say_until("gradients against one process")
    status, out, _ = ended(run)
    answer = one_object(out)
    assert status == 1 and answer["error"] == f"circle: no rank has moved for 5 s: {CIRCLE}"
    assert [span.op for span in Trace.load(tmp_path / answer["partial"][0]).compute()] == ["0F0"]
    assert run.gone()


def test_gradients_of_a_program_that_leaves_work_out_fail_the_run_and_stay_json(command, tmp_path):
    (tmp_path / "half.csv").write_text("0F0\n")
    run = command(
        "--csv",
        "half.csv",
        "--no-check",
        "--forward-ms",
        2,
        "--steps",
        1,
        "--json",
        "--max-error",
        50,
    )
    status, out, _ = ended(run)
    answer = one_object(out)  # infinity is not JSON
    assert (
        status == 1
        and answer["runs"][0]["gradient_error"] is None
        and answer["runs"][0]["predicted_step_s"] is None
    )
    assert answer["failed"] == [
        "half: gradients differ from one process by inf, more than 1e-10",
        "half: not predicted, since the program breaks the rules: no error to hold against 50.0%",
    ]


def test_the_fixture_that_looks_for_orphans_would_find_one(tmp_path):
    sleeper = CommandLine(
        "-c", "sleep 600 & exit 0", cwd=tmp_path, temporary=tmp_path, command=("bash",)
    )
    assert sleeper.process.wait() == 0
    assert len(sleeper.processes()) == 1
    assert not sleeper.gone(within_s=0.2)
    sleeper.kill()
    assert sleeper.gone()


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process of its parent's end"
)
def test_a_command_ends_with_the_process_of_the_tests(tmp_path):
    starts = """
import os, sys
from pathlib import Path
from tests.support.realrun_processes import CommandLine
here = Path(sys.argv[1])
run = CommandLine("-c", "import time; time.sleep(9999)", cwd=here, temporary=here, command=(sys.executable,))
print(run.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", starts, tmp_path], capture_output=True, text=True, cwd=ROOT
    )
    session = int(done.stdout)
    try:
        assert eventually(lambda: not descended(session, "no mark")), done.stderr
    finally:
        for left in descended(session, "no mark"):
            os.kill(left, signal.SIGKILL)


def test_an_interrupt_that_arrives_while_an_object_is_cleaned_up_ends_what_the_run_waits_for():
    program = """
import sys, time
from realrun.__main__ import interrupt_again
sys.unraisablehook = interrupt_again
class Cleaned:
    def __del__(self):
        raise KeyboardInterrupt
began = time.monotonic()
try:
    Cleaned()
    time.sleep(60)
    print("lost")
except KeyboardInterrupt:
    print("raised anew" if time.monotonic() - began < 60 else "raised when the wait was over")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("raised anew\n", "")
