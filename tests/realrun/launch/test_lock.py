"""One run at a time writes into a folder: a second is refused with who holds it, and what a dead run
left is taken over."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from realrun import Job
from realrun.launch.lock import LOCK, held
from simlab.errors import InputError

HOLD = """
import sys
from realrun import Job
from realrun.launch.lock import held
with held([Job(plan={"dp": 2}, out=sys.argv[1])]):
    print("held", flush=True)
    sys.stdin.read()
"""


def job(out, **fields):
    return Job(plan={"dp": 2}, out=str(out), **fields)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds `tmp_path`."""
    argv = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_with_who_holds_the_folder(holder, tmp_path):
    with pytest.raises(InputError) as refused, held([job(tmp_path)]):
        pass
    said = str(refused.value)
    assert said.startswith(f"another run writes into {str(tmp_path)!r}: process {holder.pid} on ")
    assert socket.gethostname() in said and said.endswith("another folder (--out)")
    assert (tmp_path / LOCK).exists()  # that of the holder stays


def test_the_lock_of_a_killed_process_is_taken_over(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / LOCK).exists()
    with held([job(tmp_path)]):
        assert f"process {os.getpid()} on " in (tmp_path / LOCK).read_text()
    assert not (tmp_path / LOCK).exists()


def test_two_runs_of_other_folders_cannot_share_a_folder_of_checkpoints(tmp_path):
    both = {"checkpoints": str(tmp_path / "saved"), "checkpoint_every": 5}
    with held([job(tmp_path / "a", **both)]):
        with held([job(tmp_path / "b")]):  # which writes no checkpoint
            pass
        with (
            pytest.raises(InputError, match=r"saved'.*\(--checkpoints\)"),
            held([job(tmp_path / "b", **both)]),
        ):
            pass
        with held([job(tmp_path / "b")]):  # what it had taken before it was refused is free
            pass


def test_several_jobs_of_one_command_share_their_folder(tmp_path):
    with held([job(tmp_path), job(tmp_path)]):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out names the folder"), held([job(tmp_path / "file")]):
        pass


def test_a_second_command_into_the_same_folder_leaves_the_first_alone(command):
    first = command("--dp", 2, "--steps", 5000)
    first.say_until("measured steps")
    status, out, err = command("--dp", 2, "--steps", 1).end()
    assert status == 2 and out == "" and f"process {first.process.pid} on " in err
    assert first.process.poll() is None
    first.process.send_signal(signal.SIGINT)
    assert "interrupted" in first.end()[2]
