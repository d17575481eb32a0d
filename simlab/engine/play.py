"""A step of all ranks, instruction by instruction: what each computes and waits for, on the streams
compute, tp, cp, dp and pp."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple, Protocol

from simlab.cost.walk import Seconds, slows
from simlab.engine.instruction_times import ClusterTimes, transfer
from simlab.engine.tasks import Shared, Task, TaskTimes, run_tasks
from simlab.errors import DeadlockError, InputError
from simlab.lowering.instruction import Instruction
from simlab.lowering.instructions import group_of, rank_instructions
from simlab.lowering.pieces import BEGIN, COMPUTE, WAIT
from simlab.lowering.sub_operations import sub_operations
from simlab.program import Program
from simlab.spec.layout import MIRRORED, Coordinates
from simlab.spec.model import Model
from simlab.spec.plan import Plan
from simlab.trace import OPTIMIZER, SEND, Span, Trace

__all__ = [
    "ClusterTimes",
    "check_agreement",
    "play",
    "stream_of",
    "transfer",
]


class StepTimes(Protocol):
    """What the instructions of a step take: `ClusterTimes`, or the like."""

    @property
    def sends_block(self) -> bool:
        """Whether a rank goes on only when what it sends is there."""

    def computing(self, instruction: Instruction) -> Seconds:
        """`Seconds` of a compute instruction."""

    def transfer(
        self, instruction: Instruction, ranks: Sequence[int]
    ) -> tuple[float, Shared | None]:
        """(seconds alone, what it shares) of a communication of `ranks`."""

    def alike_s(self, instruction: Instruction, ranks: Sequence[int]) -> float:
        """Seconds of a communication of `ranks` while all GPUs of their nodes do alike."""


def play(
    model: Model, plan: Plan, program: Program, times: StepTimes, *, collapsed: bool = False
) -> Trace:
    """The `Trace` of a step: a span for each compute instruction and, on each rank of its group,
    for each communication.

    times: `ClusterTimes` or the like. collapsed: whether one GPU of each pipeline rank, the one that
    computes most, stands for all of them, which do the same at the same time; a node's GPUs then
    share its NICs evenly.

    An op's span names it and the part of it: '2F0 layer 3'. Ranks are those of the plan's `Layout`,
    or pipeline ranks.
    """
    places = plan.layout.all_coordinates()
    if collapsed:
        places = [Coordinates(0, plan.cp - 1, p, 0) for p in range(plan.pp)]
    made = _Tasks(plan, times, collapsed)
    lists: dict[tuple[int, int], list[Instruction]] = {}
    for _, cp, pp, _ in places:
        if (pp, cp) not in lists:
            lists[pp, cp] = rank_instructions(model, plan, program, pp, context_rank=cp)
    instructions = [lists[pp, cp] for _, cp, pp, _ in places]
    tasks = made.build(instructions)
    ended = run_tasks(tasks)
    metadata = {
        "name": model.name,
        "source": "simulated",
        "ranks": len(places),
        **({"row": "stage" if program.has_a_rank_for_each_stage else "pp"} if collapsed else {}),
        "level": "instructions",
        "exposed_s": made.exposed_s(instructions, ended),
    }
    return Trace(_spans(tasks, made.instructions, ended), [], metadata)


def _spans(
    tasks: Sequence[Task], instructions: Sequence[Instruction], ended: TaskTimes
) -> list[Span]:
    """The spans of tasks, each of an instruction."""
    spans: list[Span] = []
    parts: dict[int, str] = {}  # layers that are alike share their kernels
    row = tuple.__new__
    for task, instruction, start_s, end_s in zip(tasks, instructions, ended.starts, ended.ends):
        label, stream = f"{task.op} {task.name}".strip(), stream_of(instruction)
        kind, peer, ranks = instruction.kind, -1, task.ranks
        if kind == "message":
            label, ranks, peer = task.op, task.ranks[:1], task.ranks[1]
        elif instruction.action == COMPUTE:
            kind = instruction.op_kind or OPTIMIZER
        kernels = instruction.kernels
        if (part := parts.get(id(kernels))) is None:
            part = parts[id(kernels)] = sub_operations(kernels)
        _, stage, op_kind, microbatch, unit = instruction[8:13]
        where = label, start_s, end_s, int(task.size_bytes), peer
        fields = kind, stage, unit, microbatch, op_kind, part
        spans += [row(Span, (rank, stream, *where, *fields)) for rank in ranks]
    return spans


def check_agreement(instructions: Sequence[Sequence[Instruction]], plan: Plan) -> None:
    """`DeadlockError` unless the members of each group begin the same collectives, of the same
    size, in the same order.

    instructions: [the list of each rank]. If they do not, the program
    hangs, or adds up what does not belong together. Left out: messages between stages, which the
    program's own validation covers; the order of one group's collectives among another's; a wait
    ahead of its begin.
    """
    if len(instructions) != plan.gpus:
        raise InputError(f"{len(instructions)} lists for {plan.gpus} ranks: give one for each")
    groups = _Groups(plan)
    # {(members, dimension): {rank: [its communications]}}
    begun: dict[tuple[tuple[int, ...], str], dict[int, list[Instruction]]] = {}
    for rank, its in enumerate(instructions):
        for instruction in its:
            if instruction.action == BEGIN and instruction.kind != "message":
                group = groups.members(rank, instruction), instruction.dimension
                begun.setdefault(group, {}).setdefault(rank, []).append(instruction)
    for (ranks, dimension), lists in begun.items():
        rows = zip_longest(*(lists.get(rank, []) for rank in ranks))
        for number, row in enumerate(rows, start=1):
            saying: dict[_Collective | None, list[str]] = {}  # {what: [ranks]}
            for rank, instruction in zip(ranks, row):
                what = instruction and _collective(instruction)
                saying.setdefault(what, []).append(str(rank))
            if len(saying) > 1:
                said = "; ".join(
                    f"rank {', '.join(its)}: {_text(what)}" for what, its in saying.items()
                )
                group_text = f"the {dimension} group of ranks {', '.join(map(str, ranks))}"
                raise DeadlockError(
                    f"{group_text} does not agree on its collective number {number}: {said}"
                )


class _Collective(NamedTuple):
    """What the members of a group must agree on."""

    kind: str
    size_bytes: float
    op: str
    name: str


def _collective(instruction: Instruction) -> _Collective:
    return _Collective(instruction.kind, instruction.size_bytes, instruction.op, instruction.name)


def _text(what: _Collective | None) -> str:
    if what is None:
        return "none is left"
    kind, size_bytes, op, name = what
    return f"{kind} of {size_bytes:,.10g} bytes, {f'{op} {name}'.strip()}"


def stream_of(instruction: Instruction) -> str:
    """The stream that shows it."""
    if instruction.action == COMPUTE:
        return OPTIMIZER if instruction.is_optimizer else "compute"
    return SEND if instruction.kind == "message" else instruction.dimension


class _Groups:
    """The ranks that take part in communications; collapsed: of the one for each pipeline rank."""

    def __init__(self, plan: Plan, collapsed: bool = False) -> None:
        self.plan, self.collapsed = plan, collapsed
        # {(rank, dimension): the ranks of its group}
        self.found: dict[tuple[int, str], tuple[int, ...]] = {}

    def members(self, rank: int, instruction: Instruction) -> tuple[int, ...]:
        """The ranks that take part in what `rank` does: of a message, sender and receiver."""
        if instruction.kind == "copy":
            return (rank,)
        if instruction.peer is not None:
            peer = instruction.peer
            other = peer if self.collapsed else self.plan.layout.peer(rank, peer)
            return (other, rank) if instruction.action == WAIT else (rank, other)
        key = rank, instruction.dimension
        if key not in self.found:
            ranks = self._group(*key)
            self.found |= {(member, instruction.dimension): ranks for member in ranks}
        return self.found[key]

    def _group(self, rank: int, dimension: str) -> tuple[int, ...]:
        if dimension == "ends":
            ranks = self._group(rank, "pp")
            if not self.collapsed:
                coordinates = self.plan.layout.coordinates
                ranks = tuple(sorted(ranks, key=lambda member: coordinates(member).pp))
            return ranks[0], ranks[-1]
        if self.collapsed and dimension == "pp":
            return tuple(range(self.plan.pp))
        if self.collapsed:
            reaches = group_of(self.plan, dimension) in MIRRORED
            return self.plan.layout.same_stages(rank) if reaches else (rank,)
        return self.plan.layout.group(group_of(self.plan, dimension), rank)


class _Tasks:
    def __init__(self, plan: Plan, times: StepTimes, collapsed: bool) -> None:
        self.times, self.groups = times, _Groups(plan, collapsed)
        self.tasks: list[Task] = []
        self.needs: list[list[int]] = []
        self.instructions: list[Instruction] = []
        # the global ranks of one for each pipeline rank
        self.stands_for = [plan.layout.rank(pp=p) for p in range(plan.pp)] if collapsed else []
        self.numbers: list[list[int]] = []  # [per rank] the task of each of its instructions
        # {(ranks, dimension, op, name): the number of the task}
        self.shared: dict[tuple[tuple[int, ...], str, str, str], int] = {}

    def build(self, instructions: Sequence[Sequence[Instruction]]) -> list[Task]:
        """[`Task`]: one for each compute instruction of each rank, one for each communication of
        each group."""
        for rank, its in enumerate(instructions):
            self._rank(rank, its)
        return self.tasks

    def exposed_s(
        self, instructions: Sequence[Sequence[Instruction]], ended: TaskTimes
    ) -> list[dict[str, float]]:
        """[{dimension: seconds in which a rank waits for it} of each rank]"""
        waited = []
        for its, numbers in zip(instructions, self.numbers):
            spent: dict[str, float] = {}
            now_s = 0.0
            for instruction, number in zip(its, numbers):
                waits = instruction.action == WAIT or self._blocks(instruction)
                if waits:
                    gap_s = max(0.0, ended.ends[number] - now_s)
                    spent[instruction.dimension] = spent.get(instruction.dimension, 0.0) + gap_s
                if waits or instruction.action == COMPUTE:
                    now_s = max(now_s, ended.ends[number])
            waited.append(spent)
        return waited

    def _rank(self, rank: int, instructions: Sequence[Instruction]) -> None:
        before: list[int] = []
        self.numbers.append([])
        for instruction in instructions:
            if instruction.action == COMPUTE:
                alone_s, beside_s = self.times.computing(instruction)
                number = self._add(instruction, "compute", (rank,), alone_s, beside_s=beside_s)
                self.needs[number] += before
                before = [number]
                self.numbers[-1].append(number)
                continue
            number = self._communication(rank, instruction)
            self.numbers[-1].append(number)
            if instruction.action == BEGIN:
                self.needs[number] += before
                if not self._blocks(instruction):
                    continue
            if number not in before:
                before = [*before, number]

    def _blocks(self, instruction: Instruction) -> bool:
        """Whether a rank goes on only when the message that it sends is there."""
        return instruction.kind == "message" and self.times.sends_block

    def _communication(self, rank: int, instruction: Instruction) -> int:
        ranks, stream = self.groups.members(rank, instruction), instruction.dimension
        if instruction.kind == "message":
            stream = f"pp {ranks[0]}-{ranks[1]}"
        key = ranks, stream, instruction.op, instruction.name
        if key not in self.shared:
            self.shared[key] = self._add(
                instruction, stream, ranks, *self._transfer(instruction, ranks)
            )
        return self.shared[key]

    def _transfer(
        self, instruction: Instruction, ranks: Sequence[int]
    ) -> tuple[float, Shared | None]:
        if not self.groups.collapsed:
            return self.times.transfer(instruction, ranks)
        return self.times.alike_s(instruction, [self.stands_for[rank] for rank in ranks]), None

    def _add(
        self,
        instruction: Instruction,
        stream: str,
        ranks: tuple[int, ...],
        seconds: float,
        shared: Shared | None = None,
        beside_s: float = 0.0,
    ) -> int:
        name, op = instruction.name, instruction.op
        slowing = slows(instruction.dimension, instruction.kind, self.groups.plan)
        needs: list[int] = []  # what is found later is added here
        size_bytes = instruction.size_bytes
        task = Task(name, op, stream, ranks, seconds, needs, size_bytes, shared, slowing, beside_s)
        self.instructions.append(instruction)
        self.tasks.append(task)
        self.needs.append(needs)
        return len(self.tasks) - 1
