"""What a rank did and what it is doing, in a memory-mapped file: it survives `kill -9` of the rank that wrote it.

The launcher reads the same file to see whether ranks make progress and, when they do not, what each one is at.
"""

import mmap
import struct
from typing import NamedTuple

HEADER = struct.Struct("<8sdqq")  # magic, clock offset, phase, records complete
PHASE_WORD, COUNT_WORD = 2, 3  # of 8 bytes each
RECORD = struct.Struct("<iiiiqddd")
MAGIC = b"realrun1"
IDLE, EXECUTING = 0, 1
WAITING, RUNNING, DONE = 1, 2, 3
CHECK_STEP = -1_000_000  # the step number of the gradient check; warm-up steps are -1, -2, ...


class Record(NamedTuple):
    """One op of one step on one rank, times on the rank's own clock.

    step:     training step; negative for the gradient check and warm-up.
    position: index of the op in the rank's program.
    state:    WAITING for inputs, RUNNING, or DONE.
    live:     (stage, microbatch) pairs that autograd holds tensors of when the op ends.
    bytes:    bytes of those tensors.
    start_s, end_s: of the op's own work; its result is handed to the link at its end.
    done_s:   of a communication that was waited for from start_s to end_s: when it was over; else 0.
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
    """Writes the records of one rank. A record costs a few microseconds and no system call.

    What a reader steers by, phase and count, is written by one 8-byte store each: it never sees half of one.
    """

    def __init__(self, path, capacity, clock_offset_s):
        size = HEADER.size + RECORD.size * (capacity + 1)
        with open(path, "wb+") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._count = 0
        HEADER.pack_into(self._map, 0, MAGIC, clock_offset_s, IDLE, 0)
        self._words = memoryview(self._map)[: HEADER.size].cast("q")

    def phase(self, phase):
        """Say whether the rank is executing a program."""
        self._words[PHASE_WORD] = phase

    def write(self, record):
        """Note `record`: it replaces the one in progress, and is complete when its state is DONE."""
        RECORD.pack_into(self._map, HEADER.size + self._count * RECORD.size, *record)
        if record.state == DONE:
            self._count += 1
            self._words[COUNT_WORD] = self._count

    def contents(self):
        """All bytes written so far, in the form `Recording.parse` reads."""
        return self._map[: HEADER.size + RECORD.size * (self._count + 1)]

    def close(self):
        """Let go of the file."""
        self._words.release()
        self._map.close()


class Progress(NamedTuple):
    """How far a rank has come: whether it is executing, records complete, the op in progress or None."""

    executing: bool
    done: int
    current: Record | None

    @classmethod
    def load(cls, path):
        """The progress told by the recording in the file `path`, or None if there is none (yet). Reads only its ends."""
        try:
            with open(path, "rb") as file:
                head = file.read(HEADER.size)
                if len(head) < HEADER.size or not head.startswith(MAGIC):
                    return None
                _, _, phase, count = HEADER.unpack(head)
                file.seek(HEADER.size + count * RECORD.size)
                return cls(phase == EXECUTING, count, _in_progress(file.read(RECORD.size)))
        except OSError:
            return None


class Recording(NamedTuple):
    """A rank's records as read back."""

    clock_offset_s: float
    records: list[Record]

    @classmethod
    def parse(cls, data):
        """The recording in `data`, or None if it is not (yet) one."""
        if len(data) < HEADER.size:
            return None
        magic, offset_s, _, count = HEADER.unpack_from(data)
        if magic != MAGIC or len(data) < HEADER.size + count * RECORD.size:
            return None
        end = HEADER.size + count * RECORD.size
        return cls(offset_s, [Record(*row) for row in RECORD.iter_unpack(data[HEADER.size : end])])

    @classmethod
    def load(cls, path):
        """The recording in the file `path`, or None if there is none (yet)."""
        try:
            return cls.parse(path.read_bytes())
        except OSError:
            return None


def _in_progress(data):
    record = Record(*RECORD.unpack(data)) if len(data) == RECORD.size else None
    return record if record and record.state in (WAITING, RUNNING) else None
