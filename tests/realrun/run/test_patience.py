"""How long a watch waits before it gives a run up: for ranks that execute and do not move, and for
no others. The clock and the recordings are the test's own."""

import math
import time

import pytest

from realrun.backends.choice import watch_of
from realrun.record.recorder import DONE, EXECUTING, IDLE, RUNNING, WAITING, Record, Recorder
from realrun.run.job import Job
from realrun.run.life import PAUSE_S

PATIENCE_S = 60.0


def programs(folder):
    text = "0F0 0B0\n1F0 1B0"
    job = Job(
        programs={"hand": text}, compute="real", timeout_s=PATIENCE_S, steps=2, out=str(folder)
    )
    return job, folder / "hand"


def plan(folder):
    fields = {"warmup": 0, "steps": 2, "check": False, "timeout_s": PATIENCE_S}
    job = Job(plan={"dp": 2}, out=str(folder), **fields)
    return job, job.folder


class Watched:
    """A watch over two ranks, what they record, and the time."""

    def __init__(self, job, folder, now):
        folder.mkdir(exist_ok=True)
        self.ranks = [Recorder(folder / f"rank{rank}.records", 99, 0.0) for rank in range(2)]
        self.watch, self.now = watch_of(job), now

    def all_are(self, phase):
        for rank in self.ranks:
            rank.phase(phase)

    def stuck_at(self, now_s):
        """What the watch says then; it has looked every second until then."""
        for second in range(math.floor(self.now[0]) + 1, math.ceil(now_s)):
            self.now[0] = float(second)
            self.watch.stuck()
        self.now[0] = now_s
        return self.watch.stuck()


@pytest.fixture(params=[programs, plan], ids=["programs", "plan"])
def watched(request, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return Watched(*request.param(tmp_path), now)


def test_nobody_is_stuck_between_steps_however_long_they_take(watched):
    """Between a step and the next, ranks save, compare, or wait for a program: no watch knows how
    long that may take."""
    assert watched.stuck_at(0.0) is None
    for now_s in (61.0, 10_000.0, 10_060.0, 10_120.5):
        assert watched.stuck_at(now_s) is None
    watched.all_are(EXECUTING)
    watched.ranks[0].write(Record(0, 0, DONE, 0, 0, 1.0, 2.0))
    assert watched.stuck_at(10_121.0) is None
    watched.all_are(IDLE)
    for now_s in (10_122.0, 10_190.0, 30_000.0):
        assert watched.stuck_at(now_s) is None


def test_patience_begins_when_ranks_begin_to_execute_not_when_they_last_moved(watched):
    assert watched.stuck_at(0.0) is None
    assert watched.stuck_at(1000.0) is None
    watched.all_are(EXECUTING)
    assert watched.stuck_at(1001.0) is None
    assert watched.stuck_at(1001.0 + PATIENCE_S - 0.5) is None
    assert "no rank has moved for 60 s: " in watched.stuck_at(1001.0 + PATIENCE_S + 0.5)


def test_one_rank_that_executes_is_enough_and_every_move_begins_it_anew(watched):
    watched.ranks[1].phase(EXECUTING)
    assert watched.stuck_at(0.0) is None
    moves = [Record(0, 0, WAITING), Record(0, 0, RUNNING), Record(0, 0, DONE)]
    for number, move in enumerate(moves):
        now_s = (number + 1) * (PATIENCE_S - 1)
        assert watched.stuck_at(now_s - 0.5) is None
        watched.ranks[1].write(move)
        assert watched.stuck_at(now_s) is None
    last_s = len(moves) * (PATIENCE_S - 1)
    assert watched.stuck_at(last_s + PATIENCE_S - 0.5) is None
    assert watched.stuck_at(last_s + PATIENCE_S + 0.5)


def test_a_watch_that_was_stopped_itself_blames_nobody_for_that_time(watched):
    assert watched.stuck_at(0.0) is None
    watched.all_are(EXECUTING)
    assert watched.stuck_at(1.0) is None
    watched.now[0] = 1000.0
    assert watched.watch.stuck() is None
    later_s = 1000.0 + PATIENCE_S - PAUSE_S  # so much counts of the time in which it was stopped
    assert watched.stuck_at(later_s - 0.5) is None
    assert "no rank has moved for 60 s: " in watched.stuck_at(later_s + 0.5)
