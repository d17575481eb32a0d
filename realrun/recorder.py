"""What a rank did and what it is doing, in a memory-mapped file: it survives `kill -9` of the rank that wrote it.

The launcher reads the same file to see whether ranks make progress and, when they do not, what each one is at.
"""

import mmap
import struct
from typing import NamedTuple

HEADER = struct.Struct("<8sdqqq")  # magic, clock offset, phase, records complete, unused
RECORD = struct.Struct("<iiiiqdd")
MAGIC = b"realrun1"
IDLE, EXECUTING = 0, 1
WAITING, RUNNING, DONE = 1, 2, 3


class Record(NamedTuple):
    """One op of one step on one rank, times on the rank's own clock.

    step:     training step; negative for the gradient check and warm-up.
    position: index of the op in the rank's program.
    state:    WAITING for inputs, RUNNING, or DONE.
    live:     (stage, microbatch) pairs that autograd holds tensors of when the op ends.
    bytes:    bytes of those tensors.
    start_s, end_s: of the op's own work; its result is handed to the link at its end.
    """

    step: int
    position: int
    state: int
    live: int = 0
    bytes: int = 0
    start_s: float = 0.0
    end_s: float = 0.0


class Recorder:
    """Writes the records of one rank. A record costs a few microseconds and no system call."""

    def __init__(self, path, capacity, clock_offset_s):
        size = HEADER.size + RECORD.size * (capacity + 1)
        with open(path, "wb+") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._count = 0
        self._clock_offset_s = clock_offset_s
        self.phase(IDLE)

    def phase(self, phase):
        """Say whether the rank is executing a program."""
        self._phase = phase
        self._write_header()

    def write(self, record):
        """Note `record`: it replaces the one in progress, and is complete when its state is DONE."""
        RECORD.pack_into(self._map, HEADER.size + self._count * RECORD.size, *record)
        if record.state == DONE:
            self._count += 1
            self._write_header()

    def _write_header(self):
        HEADER.pack_into(self._map, 0, MAGIC, self._clock_offset_s, self._phase, self._count, 0)

    def contents(self):
        """All bytes written so far, in the form `Recording.parse` reads."""
        return self._map[: HEADER.size + RECORD.size * (self._count + 1)]

    def close(self):
        """Let go of the file."""
        self._map.close()


class Recording(NamedTuple):
    """A rank's records as read back. `current` is the op in progress, or None."""

    clock_offset_s: float
    executing: bool
    records: list[Record]
    current: Record | None

    @classmethod
    def parse(cls, data):
        """The recording in `data`, or None if it is not (yet) one."""
        if len(data) < HEADER.size:
            return None
        magic, offset_s, phase, count, _ = HEADER.unpack_from(data)
        if magic != MAGIC or len(data) < HEADER.size + count * RECORD.size:
            return None
        end = HEADER.size + count * RECORD.size
        records = [Record(*row) for row in RECORD.iter_unpack(data[HEADER.size : end])]
        rest = data[end : end + RECORD.size]
        current = Record(*RECORD.unpack(rest)) if len(rest) == RECORD.size else None
        return cls(offset_s, phase == EXECUTING, records, current if current and current.state in (WAITING, RUNNING) else None)

    @classmethod
    def load(cls, path):
        """The recording in the file `path`, or None if there is none (yet)."""
        try:
            return cls.parse(path.read_bytes())
        except OSError:
            return None
