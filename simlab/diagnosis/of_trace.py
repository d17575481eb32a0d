"""The graph of a `Trace` that simlab simulated or realrun measured.

In a trace of whole ops every need is known: an op needs the op before it on its rank and the results
that `Program.needs` names, whose messages follow each other on the wire between two ranks. In a trace
of layers a span does not say what waited for it. There a communication is assumed to begin after the
work that its rank did last before it, on all members of its group; and the next work of the same unit
of the same op that starts after its end is assumed to have waited for it.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from simlab.analysis.explain import ROUNDING, arrivals
from simlab.diagnosis.fields import time_field, whole_field
from simlab.diagnosis.graph import COMPUTE, ENTRY, OPTIMIZER, Graph, Need, Work
from simlab.errors import InputError, shortened
from simlab.program import Op, Program
from simlab.trace import MESSAGE, SEND, Span, Trace

HELD = (
    "Ops hold their communication: the critical path and the savings count it as compute. `simlab simulate "
    "--perfetto FILE` shows it apart."
)
PP = "pp"
"""The dimension of the messages between stages."""


def trace_graph(trace: Trace) -> Graph:
    """The `Graph` of `trace`. Raises `InputError` if it holds no work, or works that need each other
    in a circle."""
    for span in trace.spans:
        for name in ("start_s", "end_s"):
            time_field(f"{name} of a span", getattr(span, name))
    maker = _Ops(trace) if _is_of_ops(trace) else _Layers(trace)
    name = str(trace.metadata.get("name", "trace"))
    source = f"{name}, {trace.metadata.get('source', 'trace')}"
    within = _within(trace)
    notes = (*maker.notes, *[HELD] * bool(within))
    return replace(Graph.of(maker.works(), trace.ranks, source=source, notes=notes), within=within)


def _within(trace: Trace) -> tuple[dict[str, float], ...]:
    """[of each rank, {dimension: seconds}] of the communication that ops hold, as the metadata say."""
    rows = trace.metadata.get("within_ops_s", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"within_ops_s of a trace: {shortened(rows)}: give a table for each rank")
    if len(rows) not in (0, trace.ranks):
        raise InputError(f"within_ops_s of a trace: {len(rows)} rows for {trace.ranks} ranks")
    return tuple(
        {part: time_field(f"within_ops_s of {part}", its, 0) for part, its in row.items()}
        for row in rows
    )


def _is_of_ops(trace: Trace) -> bool:
    """Whether every span is a whole op or a message."""
    return all(
        span.stream == SEND or (span.stream == COMPUTE and span.op_kind and not span.unit)
        for span in trace.spans
    )


class _Maker:
    """Collects works."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.made: list[Work] = []
        self.notes: tuple[str, ...] = ()

    def add(
        self, span: Span, part: str, needs: Sequence[Need], own_s: float, end_s: float | None = None
    ) -> int:
        """Add the work of `span`, and return its number."""
        ended_s = span.end_s if end_s is None else end_s
        self.made.append(
            Work(
                span.rank, part, span.op, span.kind, ended_s - own_s, ended_s, max(0.0, own_s),
                tuple(needs), span.stage, span.unit, span.peer,
            )
        )  # fmt: skip
        return len(self.made) - 1


class _Ops(_Maker):
    """A trace of whole ops and messages."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.program = Program.from_trace(trace)
        self.spans = {Op.of_span(span): span for span in trace.compute()}
        # {(sender, receiver): (latency, seconds on the wire, overhead of the sender), in seconds}
        self.wires = _wires(trace.metadata.get("wires", []))
        self.op_gap_s = time_field("op_gap_s", trace.metadata.get("op_gap_s", 0.0), 0)
        if trace.metadata.get("shared"):
            self.notes = ("Ops or messages shared a processor or a link: a replay ignores that.",)

    def works(self) -> list[Work]:
        """The works: ops in the order of their start, each message after the op that made it."""
        messages = {(span.op_text, span.peer): (span, end) for span, end in arrivals(self.trace)}
        number: dict[Op, int] = {}
        for op, span in self.spans.items():
            number[op] = self.add(span, COMPUTE, (), span.end_s - span.start_s)
        needs: dict[int, list[Need]] = {at: [] for at in number.values()}
        for rank, ops in enumerate(self.program.ranks):
            for before, op in pairwise(ops):
                needs[number[op]].append(Need(number[before], self._pause_s(rank, before)))
        last_on: dict[tuple[int, int], int] = {}
        arrived: dict[tuple[str, int], int] = {}
        for (text, peer), (span, end_s) in sorted(messages.items(), key=lambda item: item[1][1]):
            made = number.get(Op(span.stage, span.op_kind, span.microbatch))
            own = [] if made is None else [Need(made)]
            arrived[text, peer] = self._message(span, end_s, own, last_on)
        for op, at in number.items():
            for need in self.program.needs(op):
                key = str(need), self.spans[op].rank
                if key in arrived:
                    needs[at].append(Need(arrived[key]))
                elif need in number:
                    needs[at].append(Need(number[need]))
        for at, found in needs.items():
            self.made[at] = self.made[at]._replace(needs=tuple(found))
        return self.made

    def _pause_s(self, rank: int, op: Op) -> float:
        """The least seconds between the end of `op` and the start of the next op of its rank."""
        user = self.program.user(op)
        receiver = None if user is None else self.program.rank_of.get(user)
        _, _, overhead_s = self.wires.get((rank, -1 if receiver is None else receiver), (0, 0, 0.0))
        return self.op_gap_s + overhead_s

    def _message(
        self, span: Span, end_s: float, made: list[Need], last_on: dict[tuple[int, int], int]
    ) -> int:
        """Add a message, which follows the one before it on its wire."""
        wire = span.rank, span.peer
        own_s = end_s - span.start_s
        if wire in self.wires:
            latency_s, wire_s, _ = self.wires[wire]
            own_s = min(own_s, latency_s + wire_s)
            if wire in last_on:
                made = [*made, Need(last_on[wire], -latency_s)]
        number = self.add(span, PP, made, own_s, end_s)
        last_on[wire] = number
        return number


def _wires(rows: Any) -> dict[tuple[int, int], tuple[float, float, float]]:
    """{(sender, receiver): (latency, seconds on the wire, overhead of the sender)} of the metadata of
    a trace. `InputError` if a row is not that."""
    found = {}
    for row in rows if isinstance(rows, list | tuple) else [rows]:
        if not isinstance(row, list | tuple) or len(row) != 5:
            raise InputError(
                f"wires of a trace: {shortened(row)}: give sender, receiver and three times"
            )
        source, destination = (whole_field("a rank of a wire", rank) for rank in row[:2])
        latency_s, wire_s, overhead_s = (time_field("a time of a wire", one, 0) for one in row[2:])
        found[source, destination] = latency_s, wire_s, overhead_s
    return found


class _Layers(_Maker):
    """A trace of layers: of compute, collectives and messages."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.rounding_s = ROUNDING * max((span.end_s for span in trace.spans), default=0.0)
        self.own: list[list[Span]] = [[] for _ in range(trace.ranks)]
        for span in sorted(trace.spans, key=lambda span: (span.start_s, span.end_s)):
            if span.stream in (COMPUTE, OPTIMIZER):
                self.own[span.rank].append(span)
        self.starts_s = [[span.start_s for span in spans] for spans in self.own]
        self.of_key: list[dict[_Key, list[Span]]] = [defaultdict(list) for _ in self.own]
        for found, spans in zip(self.of_key, self.own):
            for span in spans:
                for key in _keys(span):
                    found[key].append(span)
        # {(sender, receiver, bytes): the seconds of the shortest measured message}
        self.shortest_s: dict[tuple[int, int, int], float] = {}
        for span in trace.spans if trace.metadata.get("source") == "measured" else ():
            if span.kind == MESSAGE:
                wire, took_s = (span.rank, span.peer, span.bytes), span.end_s - span.start_s
                self.shortest_s[wire] = min(took_s, self.shortest_s.get(wire, took_s))
        self.number: dict[Span, int] = {}
        self.needs: dict[int, list[Need]] = {}

    def works(self) -> list[Work]:
        """The works."""
        for spans in self.own:
            for span in spans:
                part = OPTIMIZER if span.stream == OPTIMIZER else COMPUTE
                self.number[span] = self.add(span, part, (), span.end_s - span.start_s)
            for before, span in pairwise(spans):
                self._need(self.number[span], self.number[before])
        last_on: dict[tuple[int, str], int] = {}
        for members in self._communications():
            self._communication(members, last_on)
        for at, found in self.needs.items():
            self.made[at] = self.made[at]._replace(needs=tuple(found))
        return self.made

    def _need(self, user: int, need: int) -> None:
        self.needs.setdefault(user, []).append(Need(need))

    def _communications(self) -> list[list[Span]]:
        """[the spans of the members of each communication], by start. Members of one communication
        have one stream, label and start; a message has one span."""
        found: dict[tuple[str, str, float, int], list[Span]] = {}
        for span in self.trace.spans:
            if span.stream in (COMPUTE, OPTIMIZER):
                continue
            place = span.rank if span.stream == SEND else -1
            found.setdefault((span.stream, span.op, span.start_s, place), []).append(span)
        return sorted(found.values(), key=lambda spans: (spans[0].start_s, spans[0].end_s))

    def _communication(self, members: list[Span], last_on: dict[tuple[int, str], int]) -> None:
        """Add a communication: all members enter it, and then it takes its time on each."""
        start_s = members[0].start_s
        part = PP if members[0].stream == SEND else members[0].stream
        stream = f"{PP} {members[0].peer}" if members[0].stream == SEND else part
        entered = [
            need
            for span in members
            for need in (self._last_before(span.rank, start_s), last_on.get((span.rank, stream)))
            if need is not None
        ]
        entry = self.add(members[0], ENTRY, [Need(need) for need in set(entered)], 0.0, start_s)
        for span in members:
            end_s = self._arrived_s(span)
            work = self.add(span, part, [Need(entry)], end_s - span.start_s, end_s)
            last_on[span.rank, stream] = work
            if (user := self._user(span)) is not None:
                self._need(user, work)

    def _arrived_s(self, span: Span) -> float:
        """When a communication was over. A measured message ends where its receiver has it, also if it
        arrived while the receiver computed. One for which the receiver waited less than twice as long as the
        shortest of its size between the two ranks took (once may be for what it sends itself) is taken
        to have needed as long as that one."""
        shortest_s = self.shortest_s.get((span.rank, span.peer, span.bytes))
        if span.kind != MESSAGE or shortest_s is None:
            return span.end_s
        before = self._last_before(span.peer, span.end_s)
        busy_until_s = span.start_s if before is None else self.made[before].end_s
        late = span.end_s - busy_until_s < 2 * shortest_s
        return span.start_s + shortest_s if late else span.end_s

    def _last_before(self, rank: int, time_s: float) -> int | None:
        """The number of the last own work of `rank` that ended by `time_s`."""
        own = self.own[rank]
        for at in range(bisect_right(self.starts_s[rank], time_s) - 1, -1, -1):
            if own[at].end_s <= time_s + self.rounding_s:
                return self.number[own[at]]
        return None

    def _user(self, span: Span) -> int | None:
        """The number of the own work that waited for a communication: of its unit of its op, else of
        the step's end."""
        if span.kind == MESSAGE:
            stage = span.stage + (1 if span.op_kind == "F" else -1)
            kinds = "F" if span.op_kind == "F" else "BI"
            user = self._first_after(span.peer, (stage, span.microbatch, kinds), span.end_s)
        elif span.op_kind:
            user = self._first_after(span.rank, (span.op_text, span.unit), span.end_s)
            user = user or self._first_after(span.rank, OPTIMIZER, span.end_s)
        else:
            user = self._first_after(span.rank, ANY, span.end_s)
        return None if user is None else self.number[user]

    def _first_after(self, rank: int, key: "_Key", time_s: float) -> Span | None:
        """The first own work of `rank` with that key that starts from `time_s` on."""
        spans = self.of_key[rank].get(key, [])
        at = bisect_left(spans, time_s - self.rounding_s, key=lambda span: span.start_s)
        return spans[at] if at < len(spans) else None


_Key = str | tuple[str, str] | tuple[int, int, str]
"""By what a communication finds the work that waited for it: any work, the optimizer's, that of an op
in a unit, or that of a stage and a microbatch, forward or backward."""
ANY = "any"


def _keys(span: Span) -> list[_Key]:
    """The keys of an own work."""
    keys: list[_Key] = [ANY, (span.op_text, span.unit)]
    if span.stream == OPTIMIZER:
        keys.append(OPTIMIZER)
    kinds = next((kinds for kinds in ("F", "BI") if span.op_kind and span.op_kind in kinds), "")
    return [*keys, (span.stage, span.microbatch, kinds)] if kinds else keys
