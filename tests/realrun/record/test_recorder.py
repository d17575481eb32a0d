"""The recording: read while it is written, and after its writer was killed."""

import errno
import multiprocessing
import os
import signal
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realrun.record.merge import step_trace
from realrun.record.recorder import (
    CHECK_STEP,
    DONE,
    EXECUTING,
    IDLE,
    RUNNING,
    WAITING,
    RankProgress,
    Record,
    Recorder,
    Recording,
)
from simlab.errors import SimlabError
from simlab.program import Program
from simlab.trace import ACTIVATIONS, LIVE

NUMBERS = st.integers(-(2**31), 2**31 - 1)
TIMES = st.floats(allow_nan=False, allow_infinity=False)


@given(
    offset_s=TIMES,
    rows=st.lists(
        st.tuples(NUMBERS, NUMBERS, NUMBERS, st.integers(0, 2**60), TIMES, TIMES), max_size=20
    ),
)
@settings(deadline=None, database=None, max_examples=50)
def test_a_recording_reads_back_what_was_written(tmp_path_factory, offset_s, rows):
    path = tmp_path_factory.mktemp("recorder") / "rank0.records"
    records = [
        Record(step, position, DONE, live, size, start_s, end_s)
        for step, position, live, size, start_s, end_s in rows
    ]
    recorder = Recorder(path, len(records), offset_s)
    for record in records:
        recorder.write(record._replace(state=WAITING))
        recorder.write(record)
    assert (
        Recording.load(path) == Recording.parse(recorder.contents()) == Recording(offset_s, records)
    )
    recorder.close()
    assert Recording.load(path) == Recording(offset_s, records)


def test_progress_tells_the_phase_the_count_and_the_op_in_progress(tmp_path):
    path = tmp_path / "rank0.records"
    recorder = Recorder(path, 3, 0.0)
    assert RankProgress.load(path) == (False, 0, None)
    recorder.phase(EXECUTING)
    recorder.write(Record(CHECK_STEP, 0, WAITING))
    assert RankProgress.load(path) == (True, 0, Record(CHECK_STEP, 0, WAITING))
    recorder.write(Record(CHECK_STEP, 0, RUNNING))
    assert RankProgress.load(path) == (True, 0, Record(CHECK_STEP, 0, RUNNING))
    recorder.write(Record(CHECK_STEP, 0, DONE, 1, 2, 3.0, 4.0))
    assert RankProgress.load(path) == (True, 1, None)
    recorder.phase(IDLE)
    assert RankProgress.load(path) == (False, 1, None)


@pytest.mark.parametrize(
    "content", [None, b"", b"realrun1", b"something else that is long enough to have a header"]
)
def test_a_file_that_is_missing_or_no_recording_reads_as_none(tmp_path, content):
    path = tmp_path / "rank0.records"
    if content is not None:
        path.write_bytes(content)
    assert Recording.load(path) is None and RankProgress.load(path) is None


CAPACITY = 400_000


def write_for_ever(path):
    """Records of which each part follows from the count, as fast as possible."""
    recorder = Recorder(path, CAPACITY, 0.5)
    recorder.phase(EXECUTING)
    for n in range(CAPACITY):
        recorder.write(Record(n // 1000, n % 1000, WAITING))
        recorder.write(Record(n // 1000, n % 1000, RUNNING))
        recorder.write(Record(n // 1000, n % 1000, DONE, n, 3 * n, n / 8, n / 8 + 1))
    signal.pause()


def expected(count):
    return [Record(n // 1000, n % 1000, DONE, n, 3 * n, n / 8, n / 8 + 1) for n in range(count)]


@pytest.fixture
def writer(tmp_path):
    """(process, path): somebody who writes a recording."""
    path = tmp_path / "rank0.records"
    process = multiprocessing.get_context("forkserver").Process(
        target=write_for_ever, args=(path,), daemon=True
    )
    process.start()
    while RankProgress.load(path) is None or not RankProgress.load(path).done:
        time.sleep(0.001)
    yield process, path
    process.kill()
    process.join()


def test_a_recording_can_be_read_at_any_moment_while_it_is_written(writer):
    process, path = writer
    counts = []
    while len(counts) < 3000 or counts[0] == counts[-1] < CAPACITY:
        progress = RankProgress.load(path)
        assert progress is not None and progress.executing  # never half a header
        assert not progress.current or (
            progress.current.position <= 999 and progress.current.step <= CAPACITY // 1000
        )
        counts.append(progress.done)
    assert counts == sorted(counts) and counts[0] < counts[-1], "the writer wrote nothing meanwhile"
    assert process.is_alive()
    recording = Recording.load(path)
    assert (
        recording.records == expected(len(recording.records))
        and len(recording.records) >= counts[-1]
    )


def test_a_recording_survives_the_kill_of_its_writer(writer):
    process, path = writer
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    recording = Recording.load(path)
    assert recording.clock_offset_s == 0.5
    assert 0 < len(recording.records) < CAPACITY
    assert recording.records == expected(len(recording.records))


# recordings to a trace
# --------------------------------------------------------------------------------------


def recording(offset_s, *rows):
    return Recording(
        offset_s,
        [
            Record(step, position, DONE, live, size, start_s, end_s)
            for step, position, live, size, start_s, end_s in rows
        ],
    )


PROGRAM = Program.from_text("0F0 0B0\n1F0 1B0", name="two")


def test_a_trace_is_on_rank_0s_clock_starts_at_zero_and_holds_one_step_alone():
    first = recording(
        0.0, (0, 0, 1, 10, 100.0, 101.0), (0, 1, 0, 0, 106.0, 108.0), (1, 0, 1, 10, 200.0, 201.0)
    )
    second = recording(-50.0, (0, 0, 1, 20, 152.0, 153.0), (0, 1, 0, 0, 153.0, 155.0))
    trace = step_trace(PROGRAM, [first, second], 0, 64, {"compute": "padded"})
    assert {(span.op, span.start_s, span.end_s) for span in trace.compute()} == {
        ("0F0", 0.0, 1.0), ("0B0", 6.0, 8.0), ("1F0", 2.0, 3.0), ("1B0", 3.0, 5.0),
    }  # fmt: skip
    assert {tuple(span)[:7] for span in trace.messages()} == {
        (0, "send", "0F0", 1.0, 2.0, 64, 1),
        (1, "send", "1B0", 5.0, 6.0, 64, 0),
    }
    held = {(point.rank, point.category, point.time_s, point.amount) for point in trace.memory}
    assert {
        (0, LIVE, 0.0, 1),
        (0, LIVE, 8.0, 0),
        (1, ACTIVATIONS, 2.0, 20),
        (1, ACTIVATIONS, 5.0, 0),
    } <= held
    assert (
        trace.metadata["ranks"] == 2
        and trace.metadata["compute"] == "padded"
        and trace.metadata["source"] == "measured"
    )


def test_a_partial_trace_leaves_out_ranks_without_a_recording_and_messages_without_an_end():
    trace = step_trace(PROGRAM, [recording(0.0, (0, 0, 1, 10, 5.0, 6.0)), None], 0, 64, {})
    assert [(span.op, span.start_s) for span in trace.spans] == [("0F0", 0.0)]


# a ring, reserved on the disk
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 3, 10])
def test_a_recording_keeps_the_last_records_and_its_size(tmp_path, capacity):
    path = tmp_path / "rank0.records"
    recorder = Recorder(path, capacity, 0.5)
    size = path.stat().st_size
    rows = [Record(n, n, DONE, n, n, float(n), float(n)) for n in range(3 * capacity + 2)]
    for count, row in enumerate(rows):
        recorder.write(row._replace(state=WAITING))
        assert RankProgress.load(path).current == row._replace(state=WAITING)
        assert RankProgress.load(path).done == count
        kept = rows[max(0, count - capacity) : count]
        assert Recording.load(path).records == kept
        recorder.write(row)
    assert Recording.parse(recorder.contents()).records == rows[-capacity:]
    assert path.stat().st_size == size and RankProgress.load(path) == (False, len(rows), None)
    recorder.close()


def test_a_recording_is_reserved_so_that_a_full_disk_is_told_at_once(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path / "rank0.records", 10_000, 0.0)
    there = (tmp_path / "rank0.records").stat()
    assert there.st_blocks * 512 >= there.st_size > 10_000 * 40
    recorder.close()

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        SimlabError, match=r"cannot reserve .* for the records in .*: No space left"
    ):
        Recorder(tmp_path / "rank1.records", 10, 0.0)
