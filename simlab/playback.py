"""A step of all ranks, instruction by instruction: what each computes and waits for, on the streams compute, tp, cp, dp and pp."""

from functools import cached_property
from itertools import product, zip_longest

from simlab.collectives import busbw_factor
from simlab.cost.communication import Group, p2p_s
from simlab.cost.stage_times import StageCost
from simlab.engine import run_tasks
from simlab.errors import DeadlockError, InputError
from simlab.instructions import BEGIN, COMPUTE, WAIT, rank_instructions
from simlab.refinement import Shared, Task
from simlab.trace import SEND, Span, Trace
from simlab.training.data_parallel import rank_parameters, update_s


class ClusterTimes:
    """Seconds of the instructions of `model` under `plan` on `cluster`."""

    def __init__(self, model, plan, cluster, program):
        cluster.check_alike("a step instruction by instruction")
        self.plan, self.program = plan, program
        self.cost = StageCost(model, plan, cluster)
        self.layers = plan.layers_of_stages(model.layers, program.stages)
        self.message_s = sum(self.cost.message_s())
        self._of_kernels = {}

    def compute_s(self, instruction):
        """Of a compute instruction: its kernels, with its part of what the GPU waits for the host or is slowed by what runs beside it.
        Leaves out: what collectives of dp slow."""
        if instruction.name == "optimizer":
            return self.optimizer_s
        unit = instruction.name.split()[0]
        kind = instruction.op.lstrip("0123456789")[0]
        key = instruction.kernels, unit, kind
        if key not in self._of_kernels:
            self._of_kernels[key] = self._stretch(unit, kind) * self._kernels_s(instruction.kernels)
        return self._of_kernels[key]

    @cached_property
    def optimizer_s(self):
        """Of the rank with most parameters, for all wait for it; the norm of all gradients is in the list."""
        return update_s(self.cost, self.program, rank_parameters(self.cost, self.program, self.layers), self.layers)

    def communication_s(self, instruction):
        """Of what is begun or waited for, while all GPUs of its nodes communicate alike."""
        if instruction.kind == "message":
            return self.message_s
        return self.cost.communication_s(instruction.kind, instruction.size_bytes, instruction.dimension)

    def transfer(self, instruction, ranks):
        """(seconds alone, `Shared` or None) of what `ranks` begin or wait for: see `transfer`."""
        return transfer(self.cost, instruction, ranks)

    def _kernels_s(self, kernels):
        return sum(self.cost.kernel_s(kernel) for kernel in kernels)

    def _stretch(self, unit, kind):
        times = {"layer": self.cost.layer, "embedding": self.cost.embedding, "head": self.cost.head}[unit]
        parts, kernels_s = times.of(kind), self.cost.compute_s(unit, kind)
        return (parts.compute + parts.host) / kernels_s if kernels_s else 1.0


def transfer(cost, instruction, ranks):
    """(seconds alone, `Shared` or None) of a communication of global `ranks`, by `StageCost`.

    Where a node has fewer NICs than GPUs, who else communicates makes a difference. Two times are known: T when all GPUs of the node do
    alike, and A when the others are silent and each of the group's k ranks a node has a NIC, as far as there are NICs. All alike ask for
    D = g / k times the group's share of the g GPUs' NICs, and so take D times as long for the part w of A that is the NICs': A + (D - 1)
    w = T gives w. From moment to moment all that cross share them (`simlab.engine.sharing.Wires`). A message leaves one node and enters
    another, a collective does both on all of its nodes.

    Leaves out which GPU is at which NIC; groups that lie on nodes otherwise than the first one, which is priced for all; mixed clusters,
    whose GPUs have their part of the NICs all the time.
    """
    cluster, message = cost.cluster, instruction.kind == "message"
    places = list(dict.fromkeys(rank // cluster.gpus_per_node for rank in ranks))
    group = Group(2, 1) if message else getattr(cost.groups, instruction.dimension)

    def seconds(size_bytes, cluster):
        if message:
            return cost.slower * p2p_s(size_bytes, cluster, same_node=len(places) == 1)
        return cost.communication_s(instruction.kind, size_bytes, instruction.dimension, cluster=cluster)

    together_s = seconds(instruction.size_bytes, cluster)
    if len(places) == 1 or group.nodes == 1 or cluster.nics_per_node >= cluster.gpus_per_node or cluster.more:
        return together_s, None
    quiet = cost.quiet(group.per_node)
    alone_s, share = seconds(instruction.size_bytes, quiet), min(1.0, group.per_node / cluster.nics_per_node)
    demand = share * cluster.gpus_per_node / group.per_node
    wire_s = (together_s - alone_s) / (demand - 1) if demand > 1 else alone_s - seconds(0, quiet)
    wires = [("out", places[0]), ("in", places[1])] if message else product(("out", "in"), places)
    return alone_s, Shared(tuple(wires), share, max(0.0, min(alone_s, wire_s)))


def playback(model, plan, program, times):
    """The `Trace` of a step: a span for each compute instruction and, on each rank of its group, for each communication.

    times: `ClusterTimes` or the like. An op's span names it and the part of it: '2F0 layer 3'. Ranks are those of `Plan.ranks`.
    """
    coordinates = plan.ranks()
    instructions = [rank_instructions(model, plan, program, p, context_rank=c) for _, c, p, _ in coordinates]
    made = _Tasks(plan, coordinates, times)
    tasks = made.build(instructions)
    ended = run_tasks(tasks)
    spans = []
    for task, start_s, end_s in zip(tasks, ended.starts, ended.ends):
        name = f"{task.op} {task.name}".strip()
        stream = "optimizer" if task.name == "optimizer" else task.stream
        if task.stream.startswith("pp "):
            spans.append(Span(task.ranks[0], SEND, task.op, start_s, end_s, int(task.size_bytes), task.ranks[1]))
        else:
            spans.extend(Span(rank, stream, name, start_s, end_s, int(task.size_bytes)) for rank in task.ranks)
    metadata = {
        "name": model.name, "source": "simulated", "ranks": len(coordinates), "level": "instructions",
        "exposed_s": made.exposed_s(instructions, ended),
    }  # fmt: skip
    return Trace(spans, [], metadata)


def check_agreement(instructions, plan):
    """`DeadlockError` unless the members of each group begin the same collectives, of the same size, in the same order.

    instructions: [of each rank, in `Plan.ranks`' order, its list]. If they do not, the program hangs, or adds up what does not belong
    together. Left out: messages between stages, which the program's own validation covers; the order of one group's collectives among
    another's; a wait ahead of its begin.
    """
    if len(instructions) != plan.gpus:
        raise InputError(f"{len(instructions)} lists for {plan.gpus} ranks: give one for each")
    made = _Tasks(plan, plan.ranks(), None)
    begun = {}  # {(members, dimension): {rank: [its communications]}}
    for rank, its in enumerate(instructions):
        for instruction in its:
            if instruction.action == BEGIN and instruction.kind != "message":
                group = made._ends(rank, instruction), instruction.dimension
                begun.setdefault(group, {}).setdefault(rank, []).append(instruction)
    for (ranks, dimension), lists in begun.items():
        for number, row in enumerate(zip_longest(*(lists.get(rank, []) for rank in ranks)), start=1):
            saying = {}  # {what: [ranks]}
            for rank, instruction in zip(ranks, row):
                what = instruction and (instruction.kind, instruction.size_bytes, instruction.op, instruction.name)
                saying.setdefault(what, []).append(str(rank))
            if len(saying) > 1:
                what = "; ".join(f"rank {', '.join(its)}: {_text(what)}" for what, its in saying.items())
                group = f"the {dimension} group of ranks {', '.join(map(str, ranks))}"
                raise DeadlockError(f"{group} does not agree on its collective number {number}: {what}")


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
        return "optimizer" if instruction.name == "optimizer" else "compute"
    return SEND if instruction.kind == "message" else instruction.dimension


def sent_bytes(instructions, plan):
    """{dimension: bytes that a rank with these `instructions` sends}, its collectives counted as rings (`simlab.traffic`)."""
    sent = {}
    for i in instructions:
        if i.action == BEGIN:
            ranks = plan.dp * plan.cp if i.dimension == "dp" else getattr(plan, i.dimension)
            part = 1.0 if i.kind in ("message", "ring") else busbw_factor(i.kind.replace("_", "-"), ranks)
            sent[i.dimension] = sent.get(i.dimension, 0.0) + part * i.size_bytes
    return sent


class _Tasks:
    def __init__(self, plan, coordinates, times):
        self.plan, self.times, self.coordinates = plan, times, coordinates
        self.number = {coordinate: rank for rank, coordinate in enumerate(coordinates)}
        self.tasks, self.needs = [], []
        self.numbers = []  # [per rank] the task of each of its instructions
        self.shared = {}  # (ranks, dimension, op, name): the number of the task
        self.members = {}

    def build(self, instructions):
        """[`Task`]: one for each compute instruction of each rank, one for each communication of each group."""
        for rank, its in enumerate(instructions):
            self._rank(rank, its)
        return [task._replace(needs=tuple(needs)) for task, needs in zip(self.tasks, self.needs)]

    def exposed_s(self, instructions, ended):
        """[{dimension: seconds in which a rank waits for it} of each rank]"""
        waited = []
        for its, numbers in zip(instructions, self.numbers):
            spent, now_s = {}, 0.0
            for instruction, number in zip(its, numbers):
                if instruction.action == WAIT:
                    gap_s = max(0.0, ended.ends[number] - now_s)
                    spent[instruction.dimension] = spent.get(instruction.dimension, 0.0) + gap_s
                if instruction.action != BEGIN:
                    now_s = max(now_s, ended.ends[number])
            waited.append(spent)
        return waited

    def _rank(self, rank, instructions):
        before = []
        self.numbers.append([])
        for instruction in instructions:
            if instruction.action == COMPUTE:
                number = self._add(instruction, "compute", (rank,), self.times.compute_s(instruction))
                self.needs[number] += before
                before = [number]
                self.numbers[-1].append(number)
                continue
            number = self._communication(rank, instruction)
            self.numbers[-1].append(number)
            if instruction.action == BEGIN:
                self.needs[number] += before
            elif number not in before:
                before = [*before, number]

    def _communication(self, rank, instruction):
        ranks, stream = self._ends(rank, instruction), instruction.dimension
        if instruction.kind == "message":
            stream = f"pp {ranks[0]}-{ranks[1]}"
        key = ranks, stream, instruction.op, instruction.name
        if key not in self.shared:
            self.shared[key] = self._add(instruction, stream, ranks, *self.times.transfer(instruction, ranks))
        return self.shared[key]

    def _ends(self, rank, instruction):
        """The ranks that take part: of a message, sender and receiver."""
        d, c, p, t = self.coordinates[rank]
        if instruction.kind == "message":
            other = self.number[d, c, instruction.peer, t]
            return (other, rank) if instruction.action == WAIT else (rank, other)
        key = {"tp": ("tp", d, c, p), "cp": ("cp", d, p, t), "dp": ("dp", p, t), "pp": ("pp", d, c, t)}[instruction.dimension]
        if key not in self.members:
            fixed = {"tp": (0, 1, 2), "cp": (0, 2, 3), "dp": (2, 3), "pp": (0, 1, 3)}[instruction.dimension]
            mine = self.coordinates[rank]
            self.members[key] = tuple(number for number, other in enumerate(self.coordinates) if all(other[at] == mine[at] for at in fixed))
        return self.members[key]

    def _add(self, instruction, stream, ranks, seconds, shared=None):
        self.tasks.append(Task(instruction.name, instruction.op, stream, ranks, seconds, (), instruction.size_bytes, shared))
        self.needs.append([])
        return len(self.tasks) - 1
