"""What a rank did last and what it is doing, in a memory-mapped file that survives a `kill -9` of
the rank that wrote it. The file has its final size from the start: it is reserved on the disk, for a
disk that is full when a mapped page is written ends the process, and a ring, so that a long run does
not need more.

The launcher reads the same file to see whether ranks make progress and, when they do not, at what
each of them is.
"""

import mmap
import os
import struct
import sys
from pathlib import Path
from typing import NamedTuple

from simlab.errors import SimlabError
from simlab.units import bytes_text

HEADER = struct.Struct("<8sdqq")  # magic, clock offset, phase, records complete
PHASE_WORD, COUNT_WORD = 2, 3  # of 8 bytes each
RECORD = struct.Struct("<iiiiqddd")
MAGIC = b"realrun1"
IDLE, EXECUTING = 0, 1
WAITING, RUNNING, DONE = 1, 2, 3
CHECK_STEP = -1_000_000  # the step number of the gradient check; warm-up steps are -1, -2, ...


class Record(NamedTuple):
    """One op, or one instruction, of one step on one rank. Times are on the rank's own clock.

    step:     training step; negative for the gradient check and warm-up.
    position: index of the op in the rank's program, or of the instruction in its list.
    state:    WAITING for inputs, RUNNING, or DONE.
    live:     number of (stage, microbatch) pairs of which autograd holds tensors when the op ends.
    bytes:    bytes of those tensors.
    start_s, end_s: when the op's own work began and ended. Its result is handed to the link at the
              end.
    done_s:   when a communication was over that was waited for from start_s to end_s; else 0.
    """

    step: int
    position: int
    state: int
    live: int = 0
    bytes: int = 0
    start_s: float = 0.0
    end_s: float = 0.0
    done_s: float = 0.0


class Recorder:
    """It writes the records of one rank. A record costs a few microseconds and no system call.

    path: of the new file. capacity: the most records that it keeps: the last ones. A reader steers
    by the phase and the count, each of which is written by one 8-byte store, so it never sees half
    of one. `SimlabError` if the disk has no room for the file.
    """

    def __init__(self, path: Path, capacity: int, clock_offset_s: float) -> None:
        self._slots = capacity + 1  # one for the record in progress
        size = HEADER.size + RECORD.size * self._slots
        with open(path, "wb+") as file:
            try:
                _reserve(file.fileno(), size)
            except OSError as error:
                raise SimlabError(
                    f"cannot reserve {bytes_text(size)} for the records in {str(path)!r}: {error.strerror}"
                ) from error
            self._map = mmap.mmap(file.fileno(), size)
        self._count = 0
        HEADER.pack_into(self._map, 0, MAGIC, clock_offset_s, IDLE, 0)
        self._words = memoryview(self._map)[: HEADER.size].cast("q")

    def phase(self, phase: int) -> None:
        """Say whether the rank is executing a program."""
        self._words[PHASE_WORD] = phase

    def write(self, record: Record) -> None:
        """Write `record` in the place of the one in progress. It is complete when its state is
        DONE."""
        slot = self._count % self._slots
        RECORD.pack_into(self._map, HEADER.size + slot * RECORD.size, *record)
        if record.state == DONE:
            self._count += 1
            self._words[COUNT_WORD] = self._count

    def contents(self) -> bytes:
        """All bytes that are kept, in the form that `Recording.parse` reads."""
        slots = min(self._count + 1, self._slots)
        return self._map[: HEADER.size + RECORD.size * slots]

    def close(self) -> None:
        """Let go of the file."""
        self._words.release()
        self._map.close()


class RankProgress(NamedTuple):
    """How far a rank has come: whether it is executing, the number of complete records, and the op
    in progress or None."""

    executing: bool
    done: int
    current: Record | None

    @classmethod
    def load(cls, path: Path) -> "RankProgress | None":
        """The progress that the recording in the file `path` tells, or None if there is none (yet).
        It reads only the file's ends."""
        try:
            with open(path, "rb") as file:
                head = file.read(HEADER.size)
                if len(head) < HEADER.size or not head.startswith(MAGIC):
                    return None
                _, _, phase, count = HEADER.unpack(head)
                slots = _slots(os.fstat(file.fileno()).st_size)
                if slots < 1:
                    return None
                file.seek(HEADER.size + count % slots * RECORD.size)
                return cls(phase == EXECUTING, count, _in_progress(file.read(RECORD.size)))
        except OSError:
            return None


class Recording(NamedTuple):
    """The last records of a rank, as read back."""

    clock_offset_s: float
    records: list[Record]

    @classmethod
    def parse(cls, data: bytes) -> "Recording | None":
        """The recording in `data`, or None if it is not one (yet)."""
        if len(data) < HEADER.size:
            return None
        magic, offset_s, _, count = HEADER.unpack_from(data)
        slots = _slots(len(data))
        if magic != MAGIC or count < 0 or (slots < 1 and count):
            return None
        rows = [*RECORD.iter_unpack(data[HEADER.size : HEADER.size + slots * RECORD.size])]
        first = count % slots + 1 if count >= slots else 0  # after the one in progress
        kept = rows[first:] + rows[: count % slots] if first else rows[:count]
        return cls(offset_s, [Record(*row) for row in kept])

    @classmethod
    def load(cls, path: Path) -> "Recording | None":
        """The recording in the file `path`, or None if there is none (yet)."""
        try:
            return cls.parse(path.read_bytes())
        except OSError:
            return None


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Give the file its size, with room on the disk where the system can reserve it."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.ftruncate(descriptor, size_bytes)


def _slots(size_bytes: int) -> int:
    """How many records a file of so many bytes has room for, the one in progress included."""
    return (size_bytes - HEADER.size) // RECORD.size


def _in_progress(data: bytes) -> Record | None:
    record = Record(*RECORD.unpack(data)) if len(data) == RECORD.size else None
    return record if record and record.state in (WAITING, RUNNING) else None
