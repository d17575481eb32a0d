"""The trace: what happened when, on which rank. The simulator and the executor both return one.

Nothing that reads a trace knows which of the two made it; `metadata["source"]` says so to people.
"""

import json
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from simlab.errors import InputError

FORMAT = "simlab-trace-1"
COMPUTE = "compute"
SEND = "send"


class Span(NamedTuple):
    """One piece of work on one stream of one rank.

    rank:    who did it; for a message, who sent it.
    stream:  `COMPUTE`, or `SEND` for a message on its way.
    op:      text form, e.g. '2F0'; for a message, the op whose result it carries.
    start_s: seconds on the trace's one clock. For a message: when the sender handed it over.
    end_s:   for a message: when the receiver could use it. In a measured trace it is when the receiver *had* it,
             which is later than its arrival if the receiver was busy computing.
    bytes:   size of a message; 0 for compute.
    peer:    the rank a message goes to; -1 for compute.
    """

    rank: int
    stream: str
    op: str
    start_s: float
    end_s: float
    bytes: int = 0
    peer: int = -1


class MemoryPoint(NamedTuple):
    """From `time_s` on, `rank` holds `amount` of `category`; units are in `Trace.metadata["units"]`."""

    rank: int
    category: str
    time_s: float
    amount: float


def rows(kind, tuples):
    """[kind(*row) for row in tuples], at half the cost: `kind` is `Span` or `MemoryPoint`, every row complete."""
    return list(map(tuple.__new__, repeat(kind), tuples))


LIVE = "live_microbatches"  # microbatches whose activations are held (one per stage and microbatch), a count
ACTIVATIONS = "activations"  # what is held for the backward, in bytes or in the unit of its `OpMemory`
SHARE = "of a rank's share of a microbatch"  # that unit, unless told otherwise: 1 is a microbatch's on 1/p of the model


@dataclass
class Trace:
    """Spans and memory points of one step, in no particular order but each rank's stream by start time.

    metadata: plain JSON values: name, source ('simulated' or 'measured'), ranks, and what the maker adds.
    """

    spans: list[Span] = field(default_factory=list)
    memory: list[MemoryPoint] = field(default_factory=list)
    metadata: dict = field(default_factory=dict)
    _kept = None  # by `keep`: (spans, memory, their columns by name)

    @property
    def ranks(self):
        """Number of ranks."""
        return self.metadata["ranks"]

    def compute(self, rank=None):
        """The compute spans (of `rank`), in order."""
        return [span for span in self.spans if span.stream == COMPUTE and rank in (None, span.rank)]

    def columns(self, name):
        """The compute spans' (ranks, ops, starts, ends) if `name` is `COMPUTE`, else that memory category's (ranks, times, amounts)."""
        if self._kept:
            spans, memory, columns = self._kept
            if name in columns and spans == self.spans and memory == self.memory:  # quick: rows that are one object are equal
                return columns[name]
        kind, all_rows = (Span, self.spans) if name == COMPUTE else (MemoryPoint, self.memory)
        columns = list(zip(*(row for row in all_rows if row[1] == name))) or [()] * len(kind._fields)
        return columns[0], *columns[2:5]

    def keep(self, columns):
        """For a maker that has the columns anyway: {name: what `columns` gives while nobody changes the rows}.

        To take them out of 100,000 rows costs more than all else that a picture needs.
        """
        self._kept = [*self.spans], [*self.memory], columns

    def messages(self):
        """The spans of messages between ranks."""
        return [span for span in self.spans if span.stream == SEND]

    @property
    def start_s(self):
        """When the first compute span starts, s."""
        return min((span.start_s for span in self.spans if span.stream == COMPUTE), default=0.0)

    @property
    def end_s(self):
        """When the last compute span ends, s."""
        return max((span.end_s for span in self.spans if span.stream == COMPUTE), default=0.0)

    @property
    def step_s(self):
        """The makespan: first compute start to last compute end, s."""
        return self.end_s - self.start_s

    def window(self, op):
        """(start, end) in s of all that is a part of `op`: on every stream, itself or layer by layer ('2F0 layer 3')."""
        spans = [span for span in self.spans if span.op.partition(" ")[0] == op and span.stream != SEND]
        if not spans:
            raise InputError(f"no {op} in {self.metadata.get('name', 'the trace')}")
        return min(span.start_s for span in spans), max(span.end_s for span in spans)

    # JSON -------------------------------------------------------------------------------------------------

    def to_json(self):
        """One JSON object as text; `Trace.from_json` reads it back equal."""
        return json.dumps(
            {"format": FORMAT, "metadata": self.metadata, "span_fields": Span._fields, "spans": self.spans,
             "memory_fields": MemoryPoint._fields, "memory": self.memory}
        )  # fmt: skip

    @classmethod
    def from_json(cls, text):
        """The trace in `text`; `InputError` says what is wrong with it."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise InputError(f"not a trace: format is {data['format']!r}, not {FORMAT!r}")
            trace = cls([Span(*row) for row in data["spans"]], [MemoryPoint(*row) for row in data["memory"]], data["metadata"])
            _check(trace)
            return trace
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"not a trace: {type(error).__name__} {error}") from error

    def save(self, path):
        """Write the JSON form to `path`."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path):
        """Read the JSON form from `path`; `InputError` names the file and what is wrong."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
        except (InputError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: {error}") from error


def _check(trace):
    """`InputError` if what was read as `trace` cannot be one: a field of another type, a rank that does not exist."""
    ranks = trace.metadata["ranks"]
    if not (type(ranks) is int and ranks > 0):
        raise InputError(f"not a trace: its metadata says {ranks!r} ranks")
    for row in (*trace.spans, *trace.memory):
        fits = all(isinstance(value, kind) for value, kind in zip(row, _KINDS[type(row)]))
        if not (fits and 0 <= row.rank < ranks):
            raise InputError(f"not a trace of {ranks} ranks: it has {row}"[:200])


_KINDS = {Span: (int, str, str, (int, float), (int, float), int, int), MemoryPoint: (int, str, (int, float), (int, float))}
