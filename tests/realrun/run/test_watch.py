"""What the launcher says of ranks that do not move, from recordings written here."""

import pytest

from realrun.backends.choice import watch_of
from realrun.record.recorder import (
    CHECK_STEP,
    DONE,
    EXECUTING,
    IDLE,
    RUNNING,
    WAITING,
    Record,
    Recorder,
)
from realrun.run.job import Job
from realrun.run.watch import exit_text
from simlab.trace import Trace

CIRCLE = "0F0 0B0 0F1 0B1\n1F1 1F0 1B0 1B1"
CHAIN = "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n2F0 2B0 2F1 2B1"


class Ranks:
    """Recordings of a job's ranks, moved by hand, under a watch that is patient for no time at
    all."""

    def __init__(self, text, folder):
        self.job = Job(
            programs={"hand": text},
            compute="real",
            checked=False,
            steps=2,
            warmup=1,
            out=str(folder),
        )
        (folder / "hand").mkdir()
        self.program = self.job.program_of("hand")
        self.recorders = [
            Recorder(folder / "hand" / f"rank{rank}.records", 60, 0.0)
            for rank in range(self.job.ranks)
        ]
        self.watch = watch_of(self.job)
        self.watch.timeout_s = 1e-9  # less than a job may ask for

    def run(self, rank, step, ops, state=None):
        """`rank` runs so many ops of `step`, then stands at the next one in `state`."""
        recorder = self.recorders[rank]
        recorder.phase(EXECUTING)
        for position in range(ops):
            recorder.write(Record(step, position, DONE, 0, 0, float(position), position + 0.5))
        if state is not None:
            recorder.write(Record(step, ops, state))

    def verdict(self):
        assert self.watch.stuck() is None  # the first look: it may have moved just now
        return self.watch.stuck()


@pytest.fixture
def ranks(tmp_path):
    return lambda text: Ranks(text, tmp_path)


def test_a_circle_of_waits_is_named_rank_by_rank(ranks):
    here = ranks(CIRCLE)
    here.run(0, CHECK_STEP, 1, WAITING)
    here.run(1, CHECK_STEP, 0, WAITING)
    assert here.verdict() == (
        "hand: no rank has moved for 1e-09 s: deadlock: rank 0 waits at 0B0 for 1B0, which rank 1 has not run; "
        "rank 1 waits at 1F1 for 0F1, which rank 0 has not run"
    )


def test_positions_are_those_of_the_current_step_not_of_all_steps_together(ranks):
    here = ranks(CIRCLE)
    for step in (CHECK_STEP, -1, 0):
        for rank in range(2):
            here.run(rank, step, 4)
    here.run(0, 1, 1, WAITING)
    here.run(1, 1, 0, WAITING)
    assert "rank 0 waits at 0B0 for 1B0" in here.verdict()
    assert here.watch.place_of(0) == "waiting to run 0B0 in step 1 of hand"


def test_a_rank_that_has_been_running_one_op_all_the_time_is_blamed_before_those_that_wait_for_it(
    ranks,
):
    here = ranks(CHAIN)
    here.run(0, 0, 2, WAITING)
    here.run(1, 0, 1, RUNNING)
    here.run(2, 0, 1, RUNNING)
    here.recorders[2].write(Record(0, 1, DONE))
    here.recorders[2].write(Record(0, 2, WAITING))
    assert here.verdict().partition("s: ")[2] == (
        "rank 1 has been running 1F1 since then; rank 0 waits at 0B0 for 1B0, which rank 1 has not run; "
        "rank 2 waits at 2F1 for 1F1, which rank 1 has not run"
    )
    assert here.watch.place_of(1) == "running 1F1 in step 0 of hand"


def test_a_rank_that_never_began_the_step_is_blamed(ranks):
    here = ranks(CHAIN)
    for rank in range(3):
        here.run(rank, -1, 4)
    here.recorders[1].phase(IDLE)
    here.run(0, 0, 2, WAITING)
    here.run(2, 0, 0, WAITING)
    assert (
        here.verdict()
        .partition("s: ")[2]
        .startswith("rank 1 has not begun the step; rank 0 waits at 0B0 for 1B0")
    )


def test_a_rank_whose_last_messages_nobody_takes_is_blamed(ranks):
    here = ranks(CHAIN)
    for rank in range(3):
        here.run(rank, 0, 4)
    here.recorders[0].phase(IDLE)
    here.recorders[2].phase(IDLE)
    assert (
        here.verdict().partition("s: ")[2]
        == "rank 1 has run all its ops, but not all that it sent was received"
    )


def test_a_lost_message_is_told_from_one_that_was_never_sent(ranks):
    here = ranks(CHAIN)
    here.run(0, 0, 2, WAITING)
    here.run(1, 0, 0, WAITING)
    here.run(2, 0, 0, WAITING)
    assert "rank 1 stands at 1F0, although what it needs was sent" in here.verdict()


def test_nobody_is_stuck_while_one_rank_moves_or_none_executes(ranks):
    here = ranks(CHAIN)
    assert here.watch.stuck() is None and here.watch.stuck() is None
    here.run(0, 0, 0, WAITING)
    assert here.watch.stuck() is None
    here.recorders[0].write(Record(0, 0, RUNNING))
    assert here.watch.stuck() is None
    here.recorders[0].write(Record(0, 0, DONE))
    assert here.watch.stuck() is None
    here.recorders[0].phase(IDLE)
    assert here.watch.stuck() is None and here.watch.stuck() is None
    assert here.watch.place_of(0) == "outside the steps"


def test_partial_traces_hold_what_each_rank_has_run_of_each_step(ranks):
    here = ranks(CHAIN)
    for rank in range(3):
        here.run(rank, CHECK_STEP, 4)
        here.run(rank, -1, 4 - rank)
    paths = here.watch.save_partial()
    assert [path.name for path in paths] == [
        "partial-gradient-check.json",
        "partial-warm-up-1.json",
    ]
    whole, part = (Trace.load(path) for path in paths)
    assert len(whole.compute()) == 12
    assert [[span.op for span in part.compute(rank)] for rank in range(3)] == [
        ["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0"], ["2F0", "2B0"],
    ]  # fmt: skip
    assert part.metadata["partial"] is True


def test_every_way_a_process_can_end_has_words():
    assert (
        exit_text(-9)
        == "was killed by signal 9 (SIGKILL: by hand, or by the system because memory ran out)"
    )
    assert exit_text(-11) == "was killed by signal 11 (Segmentation fault)"
    assert "signal 40" in exit_text(-40)
    assert exit_text(3) == "ended with exit code 3"
