"""A rank that is stopped answers nobody. It is named, with what it did, in every phase of a run, and
the run ends."""

import os
import signal
import sys
import time

import pytest
from realrun_processes import eventually

from realrun import Job, Pool, RunError
from realrun.launch.pool import Silence
from realrun.launch.worker import SILENCE_S

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
PROMISED_S = 2 * SILENCE_S


def test_a_rank_that_stops_outside_the_steps_is_named_with_what_it_did(tmp_path):
    stopped = []

    def stop(text):
        if "gradients against one process" in text:
            stopped.append(time.monotonic())
            os.kill(pool._processes[1].pid, signal.SIGSTOP)

    with Pool(2, say=stop) as pool:
        victim = pool._processes[1].pid
        job = Job(plan={"dp": 2}, timeout_s=5.0, out=str(tmp_path))
        with pytest.raises(RunError) as ended:
            pool.run(job)
        assert time.monotonic() - stopped[0] < PROMISED_S
    named = f"rank 1 (process {victim}) has not answered for {SILENCE_S:g} s while"
    assert named in str(ended.value)


def test_under_torchrun_a_stopped_rank_is_named_and_ended(command, tmp_path):
    run = command(
        "--standalone", "--nproc-per-node", 2, "-m", "realrun", "--dp", 2, "--steps", 5000,
        "--timeout", 5, command=TORCHRUN,
    )  # fmt: skip
    assert eventually(lambda: any(tmp_path.rglob("rank1.records")), 60)
    ranks = sorted(pid for pid, parent in run.processes().items() if parent == run.process.pid)
    os.kill(ranks[1], signal.SIGSTOP)
    stopped_s = time.monotonic()
    status, _, err = run.end(2 * PROMISED_S)
    assert status != 0 and time.monotonic() - stopped_s < 2 * PROMISED_S
    assert f"(process {ranks[1]} on " in err and "has not been heard of for 8 s while" in err


def test_silence_counts_from_the_last_answer_of_each_rank(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    silence = Silence(range(2), 20.0)
    assert not silence.asks_now()
    now[0] += 6
    assert silence.asks_now() and not silence.asks_now()
    assert silence.longest([(0, {"where": "line 1", "doing": "training"})], {}) is None
    now[0] += 15
    assert silence.longest([(0, {"where": "line 1", "doing": "training"})], {}) == 1
    assert silence.doing == {0: "training", 1: "starting"}
    assert silence.longest([], {1: {}}) is None  # it is done, and need not answer
