"""Recordings of all ranks' instructions become one measured `Trace` for each step, on rank 0's clock."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from realrun.record.merge import from_zero
from realrun.record.recorder import Record, Recording
from simlab.engine.play import stream_of
from simlab.lowering.instructions import BEGIN, COMPUTE, WAIT, Instruction
from simlab.lowering.sub_operations import sub_operations
from simlab.spec.plan import Plan
from simlab.trace import ACTIVATIONS, LIVE, OPTIMIZER, SEND, MemoryPoint, Span, Trace


class ListedJob(Protocol):
    """What a trace needs to know of a job: see `realrun.Job`."""

    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def kept_steps(self) -> range: ...
    @property
    def executed(self) -> Plan: ...
    def instructions(self, rank: int) -> list[Instruction]: ...


class Done(NamedTuple):
    """One instruction that a rank has done, on rank 0's clock, s."""

    instruction: Instruction
    record: Record
    start_s: float
    end_s: float
    over_s: float
    """When a communication was over that was waited for."""


def measured_traces(job: ListedJob, recordings: Sequence[Recording], device: str) -> list[Trace]:
    """The `Trace` of each measured step that is kept, on rank 0's clock, from 0 s.

    It has a span for each compute instruction and, on each rank of its group, for each
    communication. A communication's span begins when the last member had begun it, and ends when it
    was over on that rank. recordings: of all ranks. device: its name.
    """
    lists = [job.instructions(rank) for rank in range(job.ranks)]
    steps: dict[int, list[list[Done]]] = {}
    for rank, (recording, instructions) in enumerate(zip(recordings, lists)):
        for record in recording.records:
            if record.step in job.kept_steps:
                of_ranks = steps.setdefault(record.step, [[] for _ in recordings])
                of_ranks[rank].append(_done(record, instructions, recording.clock_offset_s))
    return [
        _StepTrace(job, of_ranks).trace(step, device) for step, of_ranks in sorted(steps.items())
    ]


def _done(record: Record, instructions: Sequence[Instruction], offset_s: float) -> Done:
    times = (time_s + offset_s for time_s in (record.start_s, record.end_s, record.done_s))
    return Done(instructions[record.position], record, *times)


class _StepTrace:
    """The trace of one step, made of what each rank has done in it."""

    def __init__(self, job: ListedJob, of_ranks: list[list[Done]]) -> None:
        self.job, self.of_ranks, self.members = job, of_ranks, Members(job.executed)
        self.spans: list[Span] = []
        self.memory: list[MemoryPoint] = []
        self.waits: list[dict[str, float]] = [{} for _ in of_ranks]
        self.begun_s = self._begun_s()

    def _begun_s(self) -> dict[Hashable, float]:
        """When the last member of each communication had begun it."""
        begun_s: dict[Hashable, float] = {}
        for rank, its in enumerate(self.of_ranks):
            for done in its:
                if done.instruction.action == BEGIN:
                    key = self.members.key(rank, done.instruction)
                    begun_s[key] = max(begun_s.get(key, done.start_s), done.start_s)
        return begun_s

    def trace(self, step: int, device: str) -> Trace:
        """The `Trace`, from 0 s."""
        for rank, its in enumerate(self.of_ranks):
            for done in its:
                if done.instruction.action == COMPUTE:
                    self._computed(rank, done)
            # {dimension: when the last communication was over}: a group's follow each other
            free_s: dict[str, float] = {}
            for done in self._waits(rank, its):
                self._communicated(rank, done, free_s)
        metadata = {
            "name": self.job.name,
            "source": "measured",
            "ranks": self.job.ranks,
            "level": "instructions",
            "step": step,
            "device": device,
            "exposed_s": self.waits,
            "units": {LIVE: "microbatches", ACTIVATIONS: "bytes"},
        }
        zero_s = min(done.start_s for its in self.of_ranks for done in its)
        return Trace(*from_zero(self.spans, self.memory, zero_s), metadata)

    def _waits(self, rank: int, its: list[Done]) -> list[Done]:
        """The waits of `rank`, in the order in which it began what they wait for: what was begun
        first may be waited for last. A message is begun by another rank, and counts where it is
        waited for."""
        begun = {
            self.members.key(rank, done.instruction): at
            for at, done in enumerate(its)
            if done.instruction.action == BEGIN
        }
        waits = [
            (begun.get(self.members.key(rank, done.instruction), at), done)
            for at, done in enumerate(its)
            if done.instruction.action == WAIT
        ]
        return [done for _, done in sorted(waits, key=lambda wait: wait[0])]

    def _computed(self, rank: int, done: Done) -> None:
        stream, fields = stream_of(done.instruction), _fields(done.instruction)
        label = _label(done.instruction)
        self.spans.append(Span(rank, stream, label, done.start_s, done.end_s, **fields))
        self.memory.append(MemoryPoint(rank, LIVE, done.end_s, done.record.live))
        self.memory.append(MemoryPoint(rank, ACTIVATIONS, done.end_s, done.record.bytes))

    def _communicated(self, rank: int, done: Done, free_s: dict[str, float]) -> None:
        instruction, over_s = done.instruction, done.over_s
        dimension, size = instruction.dimension, int(instruction.size_bytes)
        waited_s = done.end_s - done.start_s
        self.waits[rank][dimension] = self.waits[rank].get(dimension, 0.0) + waited_s
        since_s, fields = self.begun_s[self.members.key(rank, instruction)], _fields(instruction)
        if instruction.kind == "message":
            sender = self.members.other(rank, instruction)
            times = min(since_s, over_s), over_s
            self.spans.append(Span(sender, SEND, instruction.op, *times, size, rank, **fields))
            return
        since_s = max(since_s, free_s.get(dimension, since_s))
        free_s[dimension] = over_s
        times = min(since_s, over_s), over_s
        self.spans.append(Span(rank, dimension, _label(instruction), *times, size, **fields))


def _label(instruction: Instruction) -> str:
    return f"{instruction.op} {instruction.name}".strip()


def _fields(instruction: Instruction) -> dict[str, Any]:
    """The fields of the span that shows `instruction`: what was done, and which op it is a part
    of."""
    whole_step = OPTIMIZER if instruction.name == OPTIMIZER else ""
    return {
        "kind": instruction.kind or instruction.op_kind or whole_step,
        "stage": instruction.stage,
        "unit": instruction.unit,
        "microbatch": instruction.microbatch,
        "op_kind": instruction.op_kind,
        "part": sub_operations(instruction.kernels),
    }


class Members:
    """Which communication an instruction of a rank is, by a key that is the same on all ranks that
    take part."""

    def __init__(self, plan: Plan) -> None:
        self.layout = plan.layout

    def key(self, rank: int, instruction: Instruction) -> Hashable:
        """The key of the communication that `instruction` of `rank` begins or waits for."""
        if instruction.kind == "message":
            return "message", self.layout.group("pp", rank), instruction.op
        group = self.layout.group(instruction.dimension, rank)
        return instruction.dimension, group, instruction.op, instruction.name

    def ranks(self, rank: int, instruction: Instruction) -> list[int]:
        """The ranks that take part: of a message, `rank` and the one at its other end."""
        if instruction.kind == "message":
            return [rank, self.other(rank, instruction)]
        return list(self.layout.group(instruction.dimension, rank))

    def other(self, rank: int, instruction: Instruction) -> int:
        """The rank at the other end of a message."""
        assert instruction.peer is not None  # a message has one
        return self.layout.peer(rank, instruction.peer)
