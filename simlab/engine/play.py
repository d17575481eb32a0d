"""A step of all ranks, instruction by instruction: what each computes and waits for, on the streams
compute, tp, cp, dp and pp."""

from itertools import zip_longest

from simlab.cost.walk import SLOWING
from simlab.engine import run_tasks
from simlab.engine.instruction_times import ClusterTimes, transfer
from simlab.engine.tasks import Task
from simlab.errors import DeadlockError, InputError
from simlab.lowering.instructions import (
    BEGIN,
    COMPUTE,
    WAIT,
    group_of,
    rank_instructions,
)
from simlab.trace import OPTIMIZER, SEND, Span, Trace

__all__ = [
    "ClusterTimes",
    "check_agreement",
    "play",
    "stream_of",
    "transfer",
    "whole_step_s",
]


def play(model, plan, program, times, *, collapsed=False):
    """The `Trace` of a step: a span for each compute instruction and, on each rank of its group,
    for each communication.

    times: `ClusterTimes` or the like: `compute_s(instruction)`, `transfer(instruction, ranks)`,
    `slowdown` (the part of its speed that a kernel loses beside a collective), `sends_block`
    (whether a rank goes on only when what it sends is there). collapsed: whether one GPU of each
    pipeline rank, the one that computes most, stands for all of them, which do the same at the same
    time; a node's GPUs then share its NICs evenly.

    An op's span names it and the part of it: '2F0 layer 3'. Ranks are those of the plan's `Layout`,
    or pipeline ranks.
    """
    places = plan.layout.all_coordinates()
    if collapsed:
        places = [(0, plan.cp - 1, p, 0) for p in range(plan.pp)]
    made = _Tasks(plan, times, collapsed)
    lists = {}
    for _, cp, pp, _ in places:
        if (pp, cp) not in lists:
            lists[pp, cp] = rank_instructions(model, plan, program, pp, context_rank=cp)
    instructions = [lists[pp, cp] for _, cp, pp, _ in places]
    tasks = made.build(instructions)
    ended = run_tasks(tasks, times.slowdown)
    metadata = {
        "name": model.name,
        "source": "simulated",
        "ranks": len(places),
        "level": "instructions",
        "exposed_s": made.exposed_s(instructions, ended),
    }
    return Trace(_spans(tasks, made.instructions, ended), [], metadata)


def _spans(tasks, instructions, ended):
    """The spans of tasks, each of an instruction."""
    spans, row = [], tuple.__new__
    for task, instruction, start_s, end_s in zip(tasks, instructions, ended.starts, ended.ends):
        label, stream = f"{task.op} {task.name}".strip(), stream_of(instruction)
        kind, peer, ranks = instruction.kind, -1, task.ranks
        if kind == "message":
            label, ranks, peer = task.op, task.ranks[:1], task.ranks[1]
        elif instruction.action == COMPUTE:
            kind = instruction.op_kind or OPTIMIZER
        _, stage, op_kind, microbatch, unit = instruction[8:13]
        where = label, start_s, end_s, int(task.size_bytes), peer
        fields = kind, stage, unit, microbatch, op_kind
        spans += [row(Span, (rank, stream, *where, *fields)) for rank in ranks]
    return spans


def check_agreement(instructions, plan):
    """`DeadlockError` unless the members of each group begin the same collectives, of the same
    size, in the same order.

    instructions: [the list of each rank]. If they do not, the program
    hangs, or adds up what does not belong together. Left out: messages between stages, which the
    program's own validation covers; the order of one group's collectives among another's; a wait
    ahead of its begin.
    """
    if len(instructions) != plan.gpus:
        raise InputError(f"{len(instructions)} lists for {plan.gpus} ranks: give one for each")
    made = _Tasks(plan, None)
    begun = {}  # {(members, dimension): {rank: [its communications]}}
    for rank, its in enumerate(instructions):
        for instruction in its:
            if instruction.action == BEGIN and instruction.kind != "message":
                group = made._ends(rank, instruction), instruction.dimension
                begun.setdefault(group, {}).setdefault(rank, []).append(instruction)
    for (ranks, dimension), lists in begun.items():
        for number, row in enumerate(
            zip_longest(*(lists.get(rank, []) for rank in ranks)), start=1
        ):
            saying = {}  # {what: [ranks]}
            for rank, instruction in zip(ranks, row):
                what = instruction and (
                    instruction.kind,
                    instruction.size_bytes,
                    instruction.op,
                    instruction.name,
                )
                saying.setdefault(what, []).append(str(rank))
            if len(saying) > 1:
                what = "; ".join(
                    f"rank {', '.join(its)}: {_text(what)}" for what, its in saying.items()
                )
                group = f"the {dimension} group of ranks {', '.join(map(str, ranks))}"
                raise DeadlockError(
                    f"{group} does not agree on its collective number {number}: {what}"
                )


def _text(what):
    if what is None:
        return "none is left"
    kind, size_bytes, op, name = what
    return f"{kind} of {size_bytes:,.10g} bytes, {f'{op} {name}'.strip()}"


def whole_step_s(trace):
    """Seconds from the first thing that any rank does to the last, its optimizer's step."""
    return max(span.end_s for span in trace.spans) - min(span.start_s for span in trace.spans)


def stream_of(instruction):
    """The stream that shows it."""
    if instruction.action == COMPUTE:
        return OPTIMIZER if instruction.is_optimizer else "compute"
    return SEND if instruction.kind == "message" else instruction.dimension


class _Tasks:
    def __init__(self, plan, times, collapsed=False):
        self.plan, self.times, self.collapsed = plan, times, collapsed
        self.tasks, self.needs, self.instructions = [], [], []
        # the global ranks of one for each pipeline rank
        self.stands_for = [plan.layout.rank(pp=p) for p in range(plan.pp)] if collapsed else None
        self.numbers = []  # [per rank] the task of each of its instructions
        self.shared = {}  # (ranks, dimension, op, name): the number of the task
        self.members = {}  # {(rank, dimension): the ranks of its group}

    def build(self, instructions):
        """[`Task`]: one for each compute instruction of each rank, one for each communication of
        each group."""
        for rank, its in enumerate(instructions):
            self._rank(rank, its)
        return self.tasks

    def exposed_s(self, instructions, ended):
        """[{dimension: seconds in which a rank waits for it} of each rank]"""
        waited = []
        for its, numbers in zip(instructions, self.numbers):
            spent, now_s = {}, 0.0
            for instruction, number in zip(its, numbers):
                waits = instruction.action == WAIT or self._blocks(instruction)
                if waits:
                    gap_s = max(0.0, ended.ends[number] - now_s)
                    spent[instruction.dimension] = spent.get(instruction.dimension, 0.0) + gap_s
                if waits or instruction.action == COMPUTE:
                    now_s = max(now_s, ended.ends[number])
            waited.append(spent)
        return waited

    def _rank(self, rank, instructions):
        before = []
        self.numbers.append([])
        for instruction in instructions:
            if instruction.action == COMPUTE:
                number = self._add(
                    instruction, "compute", (rank,), self.times.compute_s(instruction)
                )
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

    def _blocks(self, instruction):
        """Whether a rank goes on only when the message that it sends is there."""
        return instruction.kind == "message" and self.times.sends_block

    def _communication(self, rank, instruction):
        ranks, stream = self._ends(rank, instruction), instruction.dimension
        if instruction.kind == "message":
            stream = f"pp {ranks[0]}-{ranks[1]}"
        key = ranks, stream, instruction.op, instruction.name
        if key not in self.shared:
            self.shared[key] = self._add(
                instruction, stream, ranks, *self._transfer(instruction, ranks)
            )
        return self.shared[key]

    def _transfer(self, instruction, ranks):
        if not self.collapsed:
            return self.times.transfer(instruction, ranks)
        return self.times.alike_s(instruction, [self.stands_for[rank] for rank in ranks]), None

    def _ends(self, rank, instruction):
        """The ranks that take part: of a message, sender and receiver."""
        layout, dimension = self.plan.layout, instruction.dimension
        if instruction.kind == "message":
            other = instruction.peer if self.collapsed else layout.peer(rank, instruction.peer)
            return (other, rank) if instruction.action == WAIT else (rank, other)
        if instruction.kind == "copy":
            return (rank,)
        if (rank, dimension) not in self.members:
            if self.collapsed:
                ranks = tuple(range(self.plan.pp)) if dimension in ("pp", "ends") else (rank,)
            else:
                group = "pp" if dimension == "ends" else group_of(self.plan, dimension)
                ranks = layout.group(group, rank)
            if dimension == "ends":
                its = (
                    ranks
                    if self.collapsed
                    else sorted(ranks, key=lambda r: layout.coordinates(r).pp)
                )
                ranks = its[0], its[-1]
            self.members |= {(member, dimension): ranks for member in ranks}
        return self.members[rank, dimension]

    def _add(self, instruction, stream, ranks, seconds, shared=None):
        name, op, slows = instruction.name, instruction.op, instruction.dimension in SLOWING
        needs = []  # what is found later is added here
        task = Task(name, op, stream, ranks, seconds, needs, instruction.size_bytes, shared, slows)
        self.instructions.append(instruction)
        self.tasks.append(task)
        self.needs.append(needs)
        return len(self.tasks) - 1
