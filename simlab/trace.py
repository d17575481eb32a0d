"""It defines `Trace`: what happened when, on which rank. simlab and realrun both return one.

No code that reads a trace depends on which of the two made it. `metadata["source"]` says which one
it was, for people and for `simlab.gaps`, which knows less of a measured message.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from simlab.display import data_frame, plain
from simlab.errors import InputError, number, shortened, whole
from simlab.first_format import label_fields
from simlab.units import seconds_text

FORMAT = "simlab-trace-2"
FIRST_FORMAT = "simlab-trace-1"
"""An older format, in which a span has its text, but not its kind, stage and microbatch."""
COMPUTE = "compute"
SEND = "send"
MESSAGE = "message"
OPTIMIZER = "optimizer"
OP_KINDS = ("F", "B", "I", "W")


class Span(NamedTuple):
    """One piece of work on one stream of one rank.

    rank:       the rank that did it; for a message, the rank that sent it.
    stream:     `COMPUTE`, `SEND` for a message on its way, or the name of another stream, such as
                'tp', 'dp' or 'optimizer'.
    op:         a label for people, such as '2F0' or '2F0 layer 3'. No code reads meaning from it.
    start_s:    when the work starts, in seconds on the one clock of the trace. A message starts
                when the sender hands it over.
    end_s:      when the work ends, in seconds. A message ends when the receiver can use it. In a
                measured trace it ends when the receiver *has* it, which is later than its arrival
                if the receiver was busy computing.
    bytes:      the size of a message or a communication; 0 for compute.
    peer:       the rank a message goes to; -1 for compute.
    kind:       what was done: for compute the op's kind 'F', 'B', 'I' or 'W'; for communication its
                kind, such as 'all_gather' or `MESSAGE`; `OPTIMIZER`; '' if it is not known.
    stage:      the pipeline stage that the work belongs to; -1 if it belongs to none.
    unit:       'embedding', 'layer 3' or 'head'; '' if the span stands for a whole op or step.
    microbatch: the microbatch that the work belongs to; -1 if it belongs to none.
    op_kind:    'F', 'B', 'I' or 'W': the kind of the op that the work is a part of, also where the
                work is communication; '' if it is a part of no op.
    part:       a label for people: what is computed in the unit, such as 'QKV, attention'; '' if it
                is not known, and for communication.
    """

    rank: int
    stream: str
    op: str
    start_s: float
    end_s: float
    bytes: int = 0
    peer: int = -1
    kind: str = ""
    stage: int = -1
    unit: str = ""
    microbatch: int = -1
    op_kind: str = ""
    part: str = ""

    @classmethod
    def of_op(cls, op: tuple[int, str, int], rank: int, start_s: float, end_s: float) -> "Span":
        """The compute span of `op`, a `simlab.Op` or (stage, kind, microbatch), on `rank` from
        `start_s` to `end_s` in seconds."""
        stage, kind, microbatch = op
        return cls(
            rank, COMPUTE, f"{stage}{kind}{microbatch}", start_s, end_s,
            kind=kind, stage=stage, microbatch=microbatch, op_kind=kind,
        )  # fmt: skip

    @property
    def op_text(self) -> str:
        """The text of the op that the work is a part of, e.g. '2F0'; '' if it is a part of none."""
        return f"{self.stage}{self.op_kind}{self.microbatch}" if self.op_kind else ""


class MemoryPoint(NamedTuple):
    """From `time_s` (in seconds) on, `rank` holds `amount` of `category`.

    The unit of each category is in `Trace.metadata["units"]`.
    """

    rank: int
    category: str
    time_s: float
    amount: float


Row = TypeVar("Row", Span, MemoryPoint)


def rows(kind: type[Row], tuples: Iterable[tuple[Any, ...]]) -> list[Row]:
    """[kind(*row) for row in tuples], in half the time.

    kind:   `Span` or `MemoryPoint`.
    tuples: rows with a value for every field.
    """
    return list(map(tuple.__new__, repeat(kind), tuples))


LIVE = "live_microbatches"
"""The memory category that counts the (stage, microbatch) pairs whose activations a rank holds."""
ACTIVATIONS = "activations"
"""The memory category of what is held for the backward, in bytes or in the unit of an `OpMemory`."""
SHARE = "of a rank's share of a microbatch"
"""The unit of an `OpMemory` unless it has another one: 1 is a microbatch's activations on 1/p of the
model, where p is the number of ranks."""


@dataclass
class Trace:
    """The spans and memory points of one step.

    spans:    in any order, except that those of one stream of one rank are sorted by start time.
    memory:   in the order of time for each rank and category.
    metadata: plain JSON values: 'name', 'source' ('simulated' or 'measured'), 'ranks', and what the
              maker of the trace adds. A prediction is simulated for a machine: it has the 'cluster'
              that it is for, or the 'calibration' that was measured on it.
    """

    spans: list[Span] = field(default_factory=list)
    memory: list[MemoryPoint] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    _kept = None  # `keep` sets it to (spans, memory, {name: columns}).

    def __repr__(self) -> str:
        name, source = (str(self.metadata.get(key, "")) for key in ("name", "source"))
        ranks = self.metadata.get("ranks")
        what = f"{name!r}, {source}" if source else repr(name)
        return f"<Trace {what}: {ranks} ranks, {len(self.spans)} spans, {seconds_text(self.whole_step_s)}>"

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain values that JSON knows: its metadata, spans and memory points, each a
        dictionary of its fields."""
        return plain(self)

    def to_frame(self) -> Any:
        """The spans as a pandas data frame, one row each; `InputError` without pandas."""
        return data_frame(self.spans, Span._fields)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.metadata["ranks"]

    def compute(self, rank: int | None = None) -> list[Span]:
        """The compute spans of `rank`, or of all ranks, in the order of `spans`."""
        return [span for span in self.spans if span.stream == COMPUTE and rank in (None, span.rank)]

    def columns(self, name: str) -> tuple[Sequence[Any], ...]:
        """The columns of some rows of the trace.

        If `name` is `COMPUTE`, they are the (ranks, labels, starts, ends, kinds of op) of the
        compute spans. Otherwise they are the (ranks, times, amounts) of that memory category.
        """
        if self._kept:
            spans, memory, columns = self._kept
            # This is quick because Python compares rows that are one object by identity.
            if name in columns and spans == self.spans and memory == self.memory:
                return columns[name]
        kind, all_rows = (Span, self.spans) if name == COMPUTE else (MemoryPoint, self.memory)
        rows_of_name = (row for row in all_rows if row[1] == name)
        found: list[tuple[Any, ...]] = list(zip(*rows_of_name)) or [()] * len(kind._fields)
        kinds = [found[Span._fields.index("op_kind")]] if name == COMPUTE else []
        return found[0], *found[2:5], *kinds

    def keep(self, columns: Mapping[str, tuple[Sequence[Any], ...]]) -> None:
        """Keep {name: columns}, which `columns` then gives as long as nobody changes the rows.

        A simulation has the columns anyway. To collect them from 100,000 rows takes longer than
        everything else that a picture needs.
        """
        self._kept = [*self.spans], [*self.memory], columns

    def messages(self) -> list[Span]:
        """The spans of messages between ranks."""
        return [span for span in self.spans if span.stream == SEND]

    @property
    def start_s(self) -> float:
        """When the first compute span starts, in seconds."""
        return min((span.start_s for span in self.spans if span.stream == COMPUTE), default=0.0)

    @property
    def end_s(self) -> float:
        """When the last compute span ends, in seconds."""
        return max((span.end_s for span in self.spans if span.stream == COMPUTE), default=0.0)

    @property
    def step_s(self) -> float:
        """The makespan of the ops in seconds, from the first start to the last end of a compute
        span: what bubbles and critical paths are of. See `whole_step_s`."""
        return self.end_s - self.start_s

    @property
    def whole_step_s(self) -> float:
        """The time of the whole step in seconds, from the first start to the last end of any span:
        with the communication, the copies and the optimizer that a step ends with."""
        starts = min((span.start_s for span in self.spans), default=0.0)
        return max((span.end_s for span in self.spans), default=0.0) - starts

    def window(self, op: str) -> tuple[float, float]:
        """When all that is a part of `op` starts and ends, on every stream, in seconds.

        op: the text of an op, such as '2F0'.

        Raises `InputError` if no span of the trace is a part of it.
        """
        spans = [span for span in self.spans if span.op_text == op and span.stream != SEND]
        if not spans:
            raise InputError(f"no {op} in {self.metadata.get('name', 'the trace')}")
        return min(span.start_s for span in spans), max(span.end_s for span in spans)

    # JSON
    # -------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The trace as the text of one JSON object, from which `Trace.from_json` reads an equal
        trace."""
        return json.dumps(
            {
                "format": FORMAT,
                "metadata": self.metadata,
                "span_fields": Span._fields,
                "spans": self.spans,
                "memory_fields": MemoryPoint._fields,
                "memory": self.memory,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Trace":
        """The trace in `text`.

        Raises `InputError`, which says what is wrong, if the text is not a trace in JSON.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not a trace: {type(error).__name__} {error}") from error
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Trace":
        """The trace in what `json.loads` makes of the text of `to_json`.

        Raises `InputError`, which says what is wrong, if it is not a trace.
        """
        try:
            if data["format"] not in (FORMAT, FIRST_FORMAT):
                raise InputError(f"not a trace: format is {data['format']!r}, not {FORMAT!r}")
            spans = [Span(*row) for row in data["spans"]]
            trace = cls(
                spans,
                [MemoryPoint(*row) for row in data["memory"]],
                data["metadata"],
            )
            _check(trace)
            if data["format"] == FIRST_FORMAT:
                trace.spans = [
                    span._replace(**label_fields(span.stream, span.op)) for span in spans
                ]
            return trace
        except InputError:
            raise
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            raise InputError(f"not a trace: {type(error).__name__} {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the trace to a JSON file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """The trace in a JSON file.

        Raises `InputError`, which names the file and says what is wrong, if it cannot be read.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
        except (InputError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: {error}") from error


def _check(trace: Trace) -> None:
    """Raise `InputError` if a field of `trace` has a wrong type, a rank does not exist, or a time is
    none."""
    if not isinstance(trace.metadata, dict):
        raise InputError(f"not a trace: its metadata is {shortened(trace.metadata)}, not an object")
    ranks = trace.metadata["ranks"]
    if not (whole(ranks) and ranks <= MOST_RANKS):
        raise InputError(
            f"not a trace: its metadata says {shortened(ranks)} ranks: give 1 to {MOST_RANKS:,}"
        )
    rows_of_trace: list[Span | MemoryPoint] = [*trace.spans, *trace.memory]
    for row in rows_of_trace:
        fits = all(isinstance(value, kind) for value, kind in zip(row, _KINDS[type(row)]))
        if not (fits and 0 <= row.rank < ranks):
            raise InputError(f"not a trace of {ranks} ranks: it has {row}"[:200])
        numbers = [value for value in row if isinstance(value, float | int)]
        if not all(number(value) and abs(value) < inf for value in numbers):
            raise InputError(f"not a trace: a number is too large or not finite: {row}"[:200])
    for span in trace.spans:
        # A message begins and ends by the clocks of two ranks, which may differ.
        if span.stream != SEND and span.end_s < span.start_s:
            raise InputError(f"not a trace: a span ends before it starts: {span}"[:200])
        if not -1 <= span.peer < ranks:
            raise InputError(f"not a trace of {ranks} ranks: a span's peer is none: {span}"[:200])


MOST_RANKS = 2**17
"""The most ranks of a trace that is read: more than any training has had."""
_KINDS = {
    Span: (int, str, str, (int, float), (int, float), int, int, str, int, str, int, str, str),
    MemoryPoint: (int, str, (int, float), (int, float)),
}
