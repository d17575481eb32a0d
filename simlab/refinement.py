"""The refined form of a plan's program: each op becomes its layers' computing and communicating, on named streams, rank by rank.

A `Task` names the op that it is a part of, so that a picture can zoom. Either every GPU has its own tasks, or one GPU of each pipeline
stage stands for all that do the same: then collectives have the same time and one participant. `simlab.engine.run_tasks` runs both.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from simlab.cost.kernels import Communication, layer_kernels, message_kernels
from simlab.cost.parameters import stage_parameters, unit_parameters
from simlab.cost.stage_times import BESIDE, StageCost, waits_for_messages
from simlab.schedules import V_SHAPED


class Task(NamedTuple):
    """A piece of work that holds one stream of each of `ranks` while it runs."""

    name: str
    """What it is: 'layer 3', 'layer 3 output scatter'."""
    op: str
    """The op that it is a part of: '2F0'; '' for what belongs to the step."""
    stream: str
    """'compute', 'tp', 'cp', 'dp', 'replicas', or 'pp 0-1' for messages from rank 0 to 1."""
    ranks: tuple[int, ...]
    seconds: float
    needs: tuple[int, ...]
    """Numbers of the tasks that must have ended."""
    size_bytes: float = 0.0
    shared: "Shared | None" = None
    """Where others may slow it: then `seconds` are those that it takes alone."""


class Shared(NamedTuple):
    """What a task uses of wires that others use, too."""

    wires: tuple
    share: float
    """Of each wire, alone."""
    seconds: float
    """For which it does, alone: the last ones of the task's."""


class Segment(NamedTuple):
    """A run of kernels between two communications that the GPU waits for, or one of those."""

    name: str
    stream: str
    seconds: float
    size_bytes: float = 0.0


REPLICAS = "replicas"
"""The stream of sums between the replicas of a shard (`Plan.hybrid`), beside what 'dp' gathers and scatters within."""


@dataclass
class Refinement:
    """All tasks of a step of `model` under `plan` on `cluster`.

    collapsed: one rank per pipeline stage's GPU stands for all; else every rank of `Plan.ranks()` is there.
    """

    model: object
    plan: object
    cluster: object
    program: object
    collapsed: bool = True
    tasks: list = field(default_factory=list)

    def __post_init__(self):
        plan = self.plan
        self.cluster.check_alike("a step layer by layer")
        self.cost = StageCost(self.model, plan, self.cluster)
        self.layers = plan.layers_of_stages(self.model.layers, self.program.stages)
        self.message_s = sum(self.cost.message_s())
        self.waits_for_messages = waits_for_messages(plan)
        ends = {"first": plan.schedule in V_SHAPED or self.program.stages == 1}
        self.sharded_s = {unit: self.cost.sharded_s(unit, **ends) for unit in ("embedding", "layer", "head")}
        coordinates = [(0, 0, p, 0) for p in range(plan.pp)] if self.collapsed else plan.ranks()
        self.number = {coordinate: rank for rank, coordinate in enumerate(coordinates)}
        self.segments = self._segments()
        self._build()

    @property
    def ranks(self):
        """How many there are."""
        return len(self.number)

    def group(self, dimension, coordinate):
        """Ranks that share all coordinates with `coordinate` but those of `dimension`: 'tp', 'cp', 'dp' (and cp) or 'all'."""
        d, c, p, t = coordinate
        return self._groups[dimension][{"tp": (d, c, p), "cp": (d, p, t), "dp": (p, t), "all": ()}[dimension]]

    def _make_groups(self):
        self._groups = {dimension: {} for dimension in ("tp", "cp", "dp", "all")}
        for (d, c, p, t), rank in self.number.items():
            for dimension, key in (("tp", (d, c, p)), ("cp", (d, p, t)), ("dp", (p, t)), ("all", ())):
                self._groups[dimension].setdefault(key, []).append(rank)
        self._groups = {dimension: {key: tuple(ranks) for key, ranks in its.items()} for dimension, its in self._groups.items()}

    # one layer --------------------------------------------------------------------------------------------

    def _segments(self):
        """{op kind: [Segment]} of one layer."""
        cost, kernels = self.cost, layer_kernels(self.model, self.plan)
        by_name = {k.name: k for part in kernels for k in part}
        parts = {
            "F": kernels.forward, "I": [*kernels.again, *kernels.input_grad], "W": kernels.weight_grad,
            "B": [*kernels.again, *kernels.input_grad, *kernels.weight_grad],
        }  # fmt: skip
        whole = {"F": cost.layer.forward, "W": cost.layer.weight_grad, "B": cost.layer.backward,
                 "I": cost.layer.again.plus(cost.layer.input_grad)}  # fmt: skip
        return {kind: self._cut(part, by_name, whole[kind]) for kind, part in parts.items()}

    def _cut(self, kernels, by_name, parts):
        """`kernels` as segments that together take what `parts` says."""
        segments, compute_s = [], 0.0
        for kernel in kernels:
            if not isinstance(kernel, Communication):
                compute_s += self.cost.kernel_s(kernel)
                continue
            exposed_s, _ = self.cost.exposed_s(kernel, by_name)
            if exposed_s > 0:
                segments += [Segment("", "compute", compute_s), Segment(kernel.name, kernel.dimension, exposed_s, kernel.size_bytes)]
                compute_s = 0.0
        segments.append(Segment("", "compute", compute_s))
        spent_s = sum(segment.seconds for segment in segments if segment.stream == "compute")
        stretched = (parts.compute + parts.host) / spent_s if spent_s else 1.0  # what runs beside slows it; what the host is late with
        return [s._replace(seconds=s.seconds * stretched) if s.stream == "compute" else s for s in segments]

    # all of it ----------------------------------------------------------------------------------------------

    def _build(self):
        self._make_groups()
        self.shared = {}  # (members, what): the task that all of them take part in
        self.issued = {}  # (coordinate, op, layer): the task that gathers its parameters
        self.ended = {}  # (coordinate, op): the task that ends it
        self.latest = {}  # coordinate: what ended its last op
        self.arrived = {}  # (coordinate of the receiver, op): the task that brings its result
        self.reductions = []
        self.scatters = {}  # coordinate: the tasks that scatter its units' gradients
        self.last_backward = self._last_backwards()
        for rank, op in _in_order(self.program):
            for coordinate in [c for c in self.number if c[2] == rank]:
                self._op(coordinate, op)
        self._finish()

    def _last_backwards(self):
        """The ops after which a stage's gradients are complete."""
        last = {}
        for ops in self.program.ranks:
            last |= {op.stage: op for op in ops if op.kind in "BW"}
        return set(last.values())

    def _add(self, *fields, **more):
        self.tasks.append(Task(*fields, **more))
        return len(self.tasks) - 1

    def _op(self, coordinate, op):
        """The tasks of one op on one rank; those of a group are made by the member that comes first."""
        before = *self._needed(coordinate, op), *self.latest.get(coordinate, ())
        if any(self.program.rank_of[need] != coordinate[2] for need in self.program.needs(op)):
            for kernel in message_kernels(self.model, self.plan):
                seconds = self.cost.kernel_s(kernel)
                before = (self._collective(coordinate, op, kernel.dimension, kernel.name, seconds, before, kernel.size_bytes),)
        units = self._units(op)
        for at, unit in enumerate(units):
            before += self._gathered(coordinate, op, at, units, before)
            before = self._computed(coordinate, op, unit, before, self._slowed(op, units, at))
            if op.kind in "BW":
                before = self._reduced(coordinate, op, unit, before)
        self.ended[coordinate, op] = before[0]
        self.latest[coordinate] = before
        self._send(coordinate, op, before[0])

    def _units(self, op):
        """Names of the units of an op, in order: 'embedding', 'layer 3', 'head'."""
        units = [f"layer {layer}" for layer in range(self.layers[op.stage])]
        units = ["embedding"] * (op.stage == 0) + units + ["head"] * (op.stage == self.program.stages - 1)
        return units if op.kind == "F" else units[::-1]

    def _slowed(self, op, units, at):
        """How many times as long the `at`th unit takes while the gradients of the one before are scattered and reduced, and parameters of
        one that follows are gathered."""
        own_s, beside_s, ahead = getattr(self.cost, units[at].split()[0]).of(op.kind).total, 0.0, self.plan.prefetch
        if at and op in self.last_backward and self.plan.dp_overlap:
            beside_s += self.cost.last_reduce_s(self._parameters(units[at - 1]))
        if at and op.kind in "BW" and self.cost.scatters_beside:
            beside_s += self.sharded_s[units[at - 1].split()[0]][2]
        if ahead and op.kind != "W" and at + ahead < len(units):
            beside_s += self.sharded_s[units[at + ahead].split()[0]][op.kind != "F"]
        return 1 + BESIDE * min(1.0, beside_s / own_s) if own_s else 1.0

    def _computed(self, coordinate, op, unit, before, slowed):
        """A unit's tasks, computing `slowed` times as long; what the next one has to wait for."""
        rank, text = (self.number[coordinate],), str(op)
        if not unit.startswith("layer"):
            seconds = slowed * getattr(self.cost, unit).of(op.kind).total
            return (self._add(unit, text, "compute", rank, seconds, before),) if seconds else before
        for segment in self.segments[op.kind]:
            name = f"{unit} {segment.name}".rstrip()
            if segment.stream == "compute":
                before = (self._add(name, text, "compute", rank, slowed * segment.seconds, before),)
            else:
                before = (self._collective(coordinate, op, segment.stream, name, segment.seconds, before, segment.size_bytes),)
        return before

    def _collective(self, coordinate, op, dimension, name, seconds, before, size_bytes=0.0, stream=None):
        """One task for all members of the group, which needs what each of them waits for; on the dimension's stream, or on `stream`."""
        members = self.group(dimension, coordinate)
        key = members, op, name
        if key not in self.shared:
            self.shared[key] = self._add(name, str(op), stream or dimension, members, seconds, before, size_bytes=size_bytes)
        else:
            task = self.tasks[self.shared[key]]
            self.tasks[self.shared[key]] = task._replace(needs=task.needs + before)
        return self.shared[key]

    def _gathered(self, coordinate, op, at, units, before):
        """ZeRO-3: the gathering of the parameters of the unit that is the `at`th to run; now issued are those up to `Plan.prefetch` ahead,
        before what follows this unit, for a group's communication runs in the order in which it is issued (as in FSDP2)."""
        seconds = [self.sharded_s[unit.split()[0]][op.kind != "F"] for unit in units]
        if not seconds[at] or op.kind == "W":
            return ()
        ahead = self.plan.prefetch
        for index in range(at, min(at + 1 + ahead, len(units))):
            if index == at + ahead or at == 0:  # the others were issued when an earlier unit began, or when the op did
                needs = before if index == at + ahead else self.latest.get(coordinate, ())
                self.issued[coordinate, op, units[index]] = self._collective(
                    coordinate, op, "dp", f"{units[index]} gather", seconds[index], needs
                )
        return (self.issued[coordinate, op, units[at]],)

    def _reduced(self, coordinate, op, unit, before):
        """The reduction of a unit's gradients: from ZeRO-2 on after each backward; what is left (all, or between replicas) after the last,
        if it may overlap. What the next unit waits for: the scattering of the unit before the last one; without overlap the last one."""
        ended, scatter_s = before, self.sharded_s[unit.split()[0]][2]
        if scatter_s:
            its = self.scatters.setdefault(coordinate, [])
            its.append(self._collective(coordinate, op, "dp", f"{unit} scatter", scatter_s, before))
            self.reductions.append(its[-1])
            ended = (*before, *its[-3:-2]) if self.cost.scatters_beside else its[-1:]
        if op in self.last_backward and self.plan.dp_overlap:
            self._reduce(coordinate, op, f"{unit} gradients", self._parameters(unit), tuple(its[-1:]) if scatter_s else before)
        return tuple(ended)

    def _parameters(self, unit):
        return unit_parameters(self.model, self.plan, unit.split()[0], first=self.program.stages == 1 or self.plan.schedule in V_SHAPED)

    def _reduce(self, coordinate, op, name, parameters, before):
        seconds = self.cost.last_reduce_s(parameters)
        if seconds:
            size = parameters * self.plan.gradient_bytes
            stream = REPLICAS if self.plan.zero > 1 else None  # beside the scattering within, as FSDP2's HSDP has a stream for each
            self.reductions.append(self._collective(coordinate, op, "dp", name, seconds, before, size, stream))

    def _needed(self, coordinate, op):
        for other in self.program.needs(op):
            source = self.program.rank_of[other]
            yield self.ended[coordinate, other] if source == coordinate[2] else self.arrived[coordinate, other]

    def _send(self, coordinate, op, last):
        user = self.program.user(op)
        if user is None or self.program.rank_of[user] == coordinate[2]:
            return
        d, c, _, t = coordinate
        receiver = (d, c, self.program.rank_of[user], t)
        ranks = self.number[coordinate], self.number[receiver]
        sent = self._add(
            "message", str(op), f"pp {ranks[0]}-{ranks[1]}", ranks, self.message_s, (last,), size_bytes=self.cost.message_bytes()
        )
        self.arrived[receiver, op] = sent
        if self.waits_for_messages:
            self.latest[coordinate] += (self._add("sent", str(op), "compute", ranks[:1], 0.0, (sent,)),)

    def _finish(self):
        """What is reduced at the end, unless it overlaps: all gradients; then the norm of all."""
        ends = self.program.stages - 1
        for coordinate in self.number:
            last = self.ended[coordinate, self.program.ranks[coordinate[2]][-1]]
            for op in self.program.ranks[coordinate[2]]:
                if op in self.last_backward and not self.plan.dp_overlap:
                    whole = stage_parameters(self.model, self.plan, self.layers[op.stage], first=op.stage == 0, last=op.stage == ends)
                    self._reduce(coordinate, op, "gradients", whole, (last,))
        self._tied_head_reduced()
        done = [self.ended[c, self.program.ranks[c[2]][-1]] for c in self.number]
        self._add("norm of all gradients", "", "compute", self.group("all", (0, 0, 0, 0)), 0.0, tuple({*self.reductions, *done}))

    def _tied_head_reduced(self):
        """Where the head is a copy of the embedding on another rank: the sum of the two gradients."""
        seconds, end = self.cost.tied_head_s(), self.plan.pp - 1
        for d, c, p, t in self.number if seconds else ():
            if p == 0:
                both = (d, c, 0, t), (d, c, end, t)
                needs = tuple(self.ended[coordinate, self.program.ranks[coordinate[2]][-1]] for coordinate in both)
                ranks = tuple(self.number[coordinate] for coordinate in both)
                self.reductions.append(self._add("tied head", "", "dp", ranks, seconds, needs, size_bytes=self.cost.tied_head_bytes()))


def _in_order(program):
    """[(rank, op)] such that every op comes after what it needs, each rank's in its own order."""
    done, at, order = set(), [0] * len(program.ranks), []
    waiting = True
    while waiting:
        waiting = False
        for rank, ops in enumerate(program.ranks):
            while at[rank] < len(ops) and all(need in done for need in program.needs(ops[at[rank]])):
                done.add(ops[at[rank]])
                order.append((rank, ops[at[rank]]))
                at[rank] += 1
                waiting = True
    return order
