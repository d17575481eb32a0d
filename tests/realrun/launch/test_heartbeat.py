"""A rank that is stopped answers nobody. It is named, with what it did, in every phase of a run, and
the run ends."""

import os
import re
import signal
import sys
import time
from types import SimpleNamespace

import pytest
from realrun_gate import Gate
from realrun_processes import ROOT

from realrun import Job, Pool, RunError
from realrun.launch.guard import Guard
from realrun.launch.heartbeat import BEGINS_S, Heartbeat
from realrun.launch.silence import Silence
from realrun.launch.worker import SILENCE_S
from realrun.run.life import PAUSE_S, OwnTime
from tests.support.patience import eventually

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
STOPS_AT_ONCE = """
import os, signal
if os.environ.get("RANK") == os.environ["REALRUN_TEST_STOPS"]:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
SILENT = r"has not been heard of for \d s"


def test_a_rank_that_stops_outside_the_steps_is_named_with_what_it_did(tmp_path):

    def stop(text):
        if "gradients against one process" in text:
            os.kill(pool._processes.started[1].pid, signal.SIGSTOP)

    with Pool(2, say=stop) as pool:
        victim = pool._processes.started[1].pid
        job = Job(plan={"dp": 2}, timeout_s=5.0, out=str(tmp_path))
        with pytest.raises(RunError) as ended:
            pool.run(job)
    named = f"rank 1 (process {victim}) has not answered for {SILENCE_S:g} s while"
    assert named in str(ended.value)


def test_under_torchrun_a_stopped_rank_is_named_and_ended(command, tmp_path):
    run = command(
        "--standalone", "--nproc-per-node", 2, "-m", "realrun", "--dp", 2, "--steps", 5000,
        "--timeout", 5, command=TORCHRUN,
    )  # fmt: skip
    losses = tmp_path / "out" / "dp2" / "losses.csv"
    run.wait_until(lambda: losses.exists() and losses.read_text().count("\n") > 20)
    ranks = sorted(pid for pid, parent in run.processes().items() if parent == run.process.pid)
    os.kill(ranks[1], signal.SIGSTOP)
    status, _, err = run.end()
    assert status != 0
    assert re.search(
        rf"rank 1 \(process {ranks[1]} on .*\) has not been heard of for \d+ s while (at|running|waiting)",
        err,
    )


@pytest.mark.parametrize(
    "phase, number, says",
    [
        pytest.param(
            "comparing clocks and calibrating", signal.SIGSTOP, SILENT, marks=pytest.mark.attack
        ),
        ("reporting", signal.SIGSTOP, SILENT),
        pytest.param("checking gradients", signal.SIGKILL, "has ended", marks=pytest.mark.attack),
    ],
)
def test_under_torchrun_a_rank_is_named_with_the_phase_in_which_it_is_lost(
    command, tmp_path, phase, number, says
):
    """The last phase, too, in which no rank waits for another: torchrun waits for all of them. One is
    killed once the other waits for it: torchrun looks ten times a second who has died, and a rank that
    its SIGTERM reaches before it has missed anybody says no more than that."""
    gate = Gate(tmp_path / "gate", phase)
    run = command(
        "--standalone", "--nproc-per-node", 2, "-m", "realrun", "--dp", 2, "--steps", 3,
        "--timeout", 5, command=TORCHRUN, environment=gate.environment,
    )  # fmt: skip
    lost = gate.reached(run, 2)[1]
    os.kill(lost, signal.SIGSTOP)
    gate.open()
    if number == signal.SIGKILL:
        time.sleep(1)
        os.kill(lost, signal.SIGKILL)
    status, _, err = run.end()
    said = [line for line in err.splitlines() if line.startswith(("error: ", "failed: "))]
    assert status != 0 and len(said) == 1, err
    assert re.search(rf": rank \d \(process {lost} on .*\) {says} while {phase}", said[0]), err


@pytest.mark.parametrize("stopped", [0, pytest.param(1, marks=pytest.mark.attack)])
def test_under_torchrun_a_rank_that_stops_before_it_begins_is_named(command, tmp_path, stopped):
    """Rank 0 decides whether there is a run, and the others wait for it from their start."""
    (tmp_path / "sitecustomize.py").write_text(STOPS_AT_ONCE)
    environment = {"REALRUN_TEST_STOPS": str(stopped), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    run = command(
        "--standalone", "--nproc-per-node", 2, "-m", "realrun", "--dp", 2, "--timeout", 5,
        command=TORCHRUN, environment=environment,
    )  # fmt: skip
    run.say_until("error: ")
    named = rf"error: rank {stopped} has not begun within \d+ s of rank {1 - stopped}'s start"
    assert re.search(named, run.said), run.said
    run.kill()  # torchrun gives the one that is stopped half a minute to end


def test_silence_counts_from_the_last_answer_of_each_rank(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    silence = Silence(range(2), 20.0)

    def later(seconds):
        """The first rank that is silent for too long, while a launcher looks every second."""
        for _ in range(seconds):
            now[0] += 1
            if (silent := silence.longest([], {})) is not None:
                return silent
        return None

    assert not silence.asks_now()
    later(6)
    assert silence.asks_now() and not silence.asks_now()
    assert silence.longest([(0, {"where": "line 1", "doing": "training"})], {}) is None
    assert later(14) is None and later(1) == 1
    assert silence.doing == {0: "training", 1: "starting"}
    assert silence.longest([], {1: {}}) is None  # it is done, and need not answer
    silence = Silence(range(2), 20.0, 120.0)  # both are being started
    assert later(100) is None
    assert silence.longest([(0, {})], {}) is None  # one has begun, and the other is due
    assert later(19) is None and later(2) == 0
    silence = Silence(range(2), 20.0)
    now[0] += 1000  # the launcher was stopped itself, and heard nobody: PAUSE_S of it count
    assert silence.longest([], {}) is None and later(18) is None and later(1) == 0


def test_a_store_that_does_not_answer_ends_the_run():
    """A question to one whose host is stopped comes back never."""
    now_s, looks, ends = [0.0], [], []

    def look():
        looks.append(now_s[0])
        return now_s[0]

    def later(seconds):
        """Let so many seconds pass, and the guard look twice."""
        now_s[0] += seconds
        seen = len(looks)
        assert eventually(lambda: len(looks) > seen + 2)

    guard = Guard(SimpleNamespace(now_s=look), 1.5, lambda: ends.append(now_s[0]))
    for _ in range(4):
        with guard.asking():
            later(1.0)
    later(100)  # whoever asks nothing need not be answered
    assert not ends
    with guard.asking():
        later(1.4)
        assert not ends
        later(0.2)
        assert ends
    guard.stop()
    ends.clear()
    now_s[0] += 100
    assert not ends


def test_time_in_which_a_process_was_stopped_is_not_its_own(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    own = OwnTime()
    assert own.now_s() == 0
    now[0] += 1.5
    assert own.now_s() == 1.5
    now[0] += 3600  # it was stopped for an hour
    assert own.now_s() == 1.5 + PAUSE_S
    for _ in range(100):  # looks that are always late let a little pass
        now[0] += 5
        own.now_s()
    assert own.now_s() == 1.5 + 101 * PAUSE_S


class Store:
    """A rendezvous store in a dictionary."""

    def __init__(self):
        self.values = {}

    def set_timeout(self, limit):
        pass

    def set(self, key, text):
        self.values[key] = text.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)

    def compare_set(self, key, expected, text):
        return self.values.setdefault(key, text.encode())


@pytest.mark.parametrize("waited_s, ends", [(BEGINS_S - 1, False), (BEGINS_S + 1, True)])
def test_a_rank_may_begin_a_minute_later_than_another_however_short_its_silence_may_be(
    monkeypatch, waited_s, ends
):
    """It imports torch first, on a machine that may be busy, or from a drive that may be slow."""
    now, said = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    heart = Heartbeat(Store(), 0, 2, 2.0)
    heart._ended.set()
    monkeypatch.setattr(heart, "_exit", lambda text: said.append(text))
    while now[0] < 100 + waited_s and not said:
        now[0] += 0.5  # a longer pause is one in which this process was stopped
        heart._end_if_silent([1])
    heart.stop()
    assert [line.startswith("rank 1 has not begun within") for line in said] == [True] * ends


@pytest.mark.parametrize("stopped_s, ends", [(3600, False), (0, True)])
def test_a_rank_that_was_stopped_while_it_leaves_ends_nobody(monkeypatch, stopped_s, ends):
    """The other ranks were heard of by nobody meanwhile; one that stays silent then is named."""
    now, store, said = [100.0], Store(), []
    store.set("heartbeat of rank 1", f"1 {os.getpid()} elsewhere training")
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    heart = Heartbeat(store, 0, 2, 5.0)
    heart._ended.set()

    def passes(seconds):
        """Sleep: at first the process is stopped, then rank 1 leaves or time goes on."""
        if stopped_s and not said:
            said.append("stopped")
            now[0] += stopped_s
        elif stopped_s:
            store.set("heartbeat of rank 1", "left")
        now[0] += 0.5

    def ended(text):
        said.append(text)
        raise SystemExit

    monkeypatch.setattr(time, "sleep", passes)
    monkeypatch.setattr(heart, "_exit", ended)
    if ends:
        with pytest.raises(SystemExit):
            heart.leave()
        assert "rank 1 (process" in said[0] and "has not been heard of" in said[0]
    else:
        heart.leave()
        assert said == ["stopped"]
    heart.stop()


@pytest.mark.parametrize("who", ["launcher", pytest.param("all", marks=pytest.mark.attack)])
def test_a_run_that_was_stopped_and_goes_on_is_not_ended(command, tmp_path, who):
    """As ^Z and fg do: nobody is to blame for a silence that nobody could hear."""
    run = command("--dp", 2, "--steps", 300, "--timeout", SILENCE_S)
    losses = tmp_path / "out" / "dp2" / "losses.csv"
    run.wait_until(lambda: losses.exists() and losses.read_text().count("\n") > 5)
    stopped = [run.process.pid] if who == "launcher" else [*run.processes()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(SILENCE_S + 2)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    status, _, err = run.end()
    assert status == 0, err
