"""A data-parallel step with the optimizer's states on the host, or on its drives: the GPU, PCIe
both ways, the CPU and the drive as streams of their own, layer by layer.

ZeRO-Offload (Ren et al. 2021, arXiv 2101.06840): gradients go to the host as the backward makes
them, the CPU updates, updated parameters come back. ZeRO-Infinity (Rajbhandari et al. 2021, arXiv
2104.07857): the states come from a drive and go back to it.

This module makes tasks of its own, where `predict` and `layer_trace` evaluate instruction lists with
`Plan.offload = 'optimizer'`. Lists cannot say what it is about. A list is one step, which begins when
nothing is in flight, while an update of one step runs here beside the forward of the next one. A rank
computes in one stream, which the host's update would leave free for the next step. And what a list
copies for the optimizer goes in one piece at the end, as no field of a plan says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simlab.cost.groups import host_sharers
from simlab.cost.optimizer import HOST_ADAM_S
from simlab.cost.stage_times import StageCost
from simlab.engine import run_tasks
from simlab.engine.tasks import Task
from simlab.errors import InputError
from simlab.layer.parameters import unit_parameters
from simlab.layer.units import UnitKind
from simlab.lowering.zero import gathers_updated, shards_of
from simlab.memory.states import optimizer_bytes
from simlab.spec.model import Model
from simlab.spec.named import AnyCluster, AnyModel, named
from simlab.spec.plan import Plan
from simlab.trace import Span, Trace

TARGETS = ("host", "nvme")
OVERLAPS = ("none", "transfers", "delayed")
STREAMS = ("compute", "dp", "pcie out", "host", "nvme", "pcie in")
STEPS = 8
"""That are simulated: the first three until they follow each other evenly, then four that are
counted."""


class Busy(NamedTuple):
    """Seconds that each stream works in a step."""

    compute: float
    dp: float
    pcie_out: float
    host: float
    nvme: float
    pcie_in: float


@dataclass(frozen=True)
class OffloadStep:
    """A step with offloaded states, when many follow each other."""

    step_s: float
    busy_s: Busy
    trace: Trace
    """Two steps, one rank, a span for each layer's part."""

    @property
    def exposed_s(self) -> float:
        """What the step takes over the GPU's own work."""
        return self.step_s - self.busy_s.compute


class _Part(NamedTuple):
    name: str
    parameters: float
    forward_s: float
    backward_s: float


def offload_step(
    model: AnyModel,
    plan: Plan,
    cluster: AnyCluster,
    *,
    to: str = "host",
    overlap: str = "transfers",
    host_adam_s: float = HOST_ADAM_S,
) -> OffloadStep:
    """`OffloadStep` of `model` under a data-parallel `plan` (ZeRO stage 0, 1 or 2) on `cluster`,
    its optimizer's states elsewhere.

    to:          'host': in its memory; 'nvme': on its drives, each part's states read before its
                 update and written after it, two
                 parts ahead at most.
    overlap:     'none': gradients go when the last backward is over, the next step begins when all
                 parameters are back;
                 'transfers': gradients go as they are made, parameters come back part by part, the
                 next forward waits for them; 'delayed': and the next step begins with the
                 parameters of the step before, so that the update runs beside it (ZeRO-Offload's
                 delayed parameter update, section 5.2: another algorithm, by one step).
    host_adam_s: the CPU's time per parameter.

    The GPUs of a node share its host and its drives, which update and carry what all of them own;
    PCIe is each one's own. The update waits for all gradients, for their norm is of all of them.
    Before they go, gradients are reduced; after they came, parameters are gathered, on the stream
    'dp'. Leaves out: what transfers take of the GPU's and the host's memory bandwidth, and
    reductions of its multiprocessors.
    """
    model, plan, cluster = named(model, plan, cluster)
    _check(plan, to, overlap)
    plan.check(model, cluster.gpus)
    cluster.check_alike("a step with its optimizer elsewhere")
    cost = StageCost(model, plan, cluster)
    parts = _parts(model, plan, cost)
    tasks = _Tasks(cost, parts, to, overlap, host_adam_s)
    for step in range(STEPS):
        tasks.add_step(step)
    times = run_tasks(tasks.list)
    first = [times.starts[number] for number in tasks.begins]
    step_s = (first[-1] - first[3]) / (STEPS - 4)
    from_s, until_s = first[-3], first[-1]
    spans, busy = [], dict.fromkeys(STREAMS, 0.0)
    for task, start_s, end_s in zip(tasks.list, times.starts, times.ends):
        busy[task.stream] += task.seconds / STEPS
        if task.seconds and start_s >= from_s - 1e-12 and start_s < until_s:
            spans.append(
                Span(
                    0,
                    task.stream,
                    f"{task.op} {task.name}",
                    start_s - from_s,
                    end_s - from_s,
                    int(task.size_bytes),
                )
            )
    metadata = {
        "name": f"{model.name}, optimizer on {to}, {overlap}",
        "source": "simulated",
        "ranks": 1,
        "level": "layers",
    }
    return OffloadStep(step_s, Busy(*busy.values()), Trace(spans, [], metadata))


def _check(plan: Plan, to: str, overlap: str) -> None:
    for name, value, choices in (("to", to, TARGETS), ("overlap", overlap, OVERLAPS)):
        if value not in choices:
            raise InputError(f"{name} = {value!r}: give one of {', '.join(choices)}")
    if (plan.tp, plan.pp, plan.cp) != (1, 1, 1) or plan.zero == 3 or plan.hybrid:
        raise InputError(
            f"tp = {plan.tp}, pp = {plan.pp}, cp = {plan.cp}, zero = {plan.zero}: offload is for dp alone, with ZeRO 0, 1 or 2"
        )
    if plan.bucket_bytes is not None:
        raise InputError(
            f"bucket_bytes = {plan.bucket_bytes}: gradients go unit by unit here; leave it out"
        )
    if plan.offload != "none":
        raise InputError(
            f"offload = {plan.offload!r}: leave it out of the plan; `to` says where the states go"
        )


def _parts(model: Model, plan: Plan, cost: StageCost) -> list[_Part]:
    """The embedding, the layers and the head, with what each holds and takes."""

    def part(name: str, unit: UnitKind, parameters: float) -> _Part:
        forward_s, backward_s = (cost.unit_parts(unit, kind).total for kind in "FB")
        return _Part(name, parameters, forward_s, backward_s)

    def sized(name: str, unit: UnitKind) -> _Part:
        return part(name, unit, unit_parameters(model, plan, unit, first=True))

    middle = [sized(f"layer {n}", unit) for n, unit in enumerate(model.layer_kinds)]
    return [sized("embedding", "embedding"), *middle, sized("head", "head")]


class _Tasks:
    def __init__(
        self,
        cost: StageCost,
        parts: list[_Part],
        to: str,
        overlap: str,
        host_adam_s: float,
    ) -> None:
        self.cost, self.parts, self.overlap = cost, parts, overlap
        self.list: list[Task] = []
        self.begins: list[int] = []  # of each step, its first task
        # [per step] of each part, the tasks that bring its parameters back
        self.back: list[list[list[int]]] = []
        plan, cluster = cost.plan, cost.cluster
        self.own = [part.parameters / shards_of(plan, "optimizer") for part in parts]
        self.pcie_s = 1 / cluster.known("pcie_bytes_per_s")
        sharers = host_sharers(plan, cluster)
        self.host_s = sharers * host_adam_s
        self.drive_s = (
            optimizer_bytes(plan) * sharers / cluster.known("nvme_bytes_per_s")
            if to == "nvme"
            else 0.0
        )

    def _add(
        self,
        step: int,
        name: str,
        stream: str,
        seconds: float,
        needs: Sequence[int],
        size_bytes: float = 0.0,
    ) -> int:
        self.list.append(
            Task(name, f"step {step}", stream, (0,), seconds, tuple(needs), size_bytes)
        )
        return len(self.list) - 1

    def add_step(self, step: int) -> None:
        """Add the tasks of a step to the list."""
        plan, parts = self.cost.plan, self.parts
        late = 2 if self.overlap == "delayed" else 1
        # by part: the tasks that bring its parameters
        there: list[list[int]] = self.back[step - late] if step >= late else [[]] * len(parts)
        if self.overlap == "none":
            there = [[number for numbers in there for number in numbers]] * len(parts)
        forwards = [
            self._add(step, f"F {p.name}", "compute", p.forward_s, need)
            for p, need in zip(parts, there)
        ]
        self.begins.append(forwards[0])
        one_s = sum(part.forward_s + part.backward_s for part in parts)
        self._add(step, "other microbatches", "compute", (plan.microbatches - 1) * one_s, ())
        backwards = [
            self._add(step, f"B {p.name}", "compute", p.backward_s, ()) for p in reversed(parts)
        ][::-1]
        arrived = self._out(step, backwards)
        self.back.append(self._update(step, arrived))

    def _out(self, step: int, backwards: list[int]) -> list[int]:
        """Reduce and send each part's gradients, last part first; the tasks that have sent them."""
        arrived = []
        for part, own, made in reversed(list(zip(self.parts, self.own, backwards))):
            made = backwards[0] if self.overlap == "none" else made
            size = own * self.cost.plan.gradient_bytes
            if self.cost.plan.dp > 1:
                made = self._add(
                    step, f"reduce {part.name}", "dp", self._reduce_s(part.parameters), [made]
                )
            arrived.append(
                self._add(
                    step, f"gradients {part.name}", "pcie out", size * self.pcie_s, [made], size
                )
            )
        return arrived

    def _reduce_s(self, parameters: float) -> float:
        kind = "reduce_scatter" if self.cost.plan.zero else "all_reduce"
        size = parameters * self.cost.plan.gradient_bytes
        return self.cost.communication_s(kind, size, "dp")

    def _update(self, step: int, arrived: list[int]) -> list[list[int]]:
        """Update each part, first part first, and bring it back; by part, the tasks that do so."""
        back, plan = [], self.cost.plan
        updates: list[int] = []
        for number, (part, own) in enumerate(zip(self.parts, self.own)):
            needs = list(arrived)
            if self.drive_s:
                if number >= 2:
                    self._drive(step, "write", number - 2, [updates[-2]])
                needs.append(self._drive(step, "read", number, arrived))
            updates.append(self._add(step, f"Adam {part.name}", "host", own * self.host_s, needs))
        for part, own, updated in zip(self.parts, self.own, updates):
            updated = updates[-1] if self.overlap == "none" else updated
            size = own * plan.element_bytes
            came = self._add(
                step, f"parameters {part.name}", "pcie in", size * self.pcie_s, [updated], size
            )
            if gathers_updated(plan):
                size = part.parameters * plan.element_bytes
                came = self._add(
                    step,
                    f"gather {part.name}",
                    "dp",
                    self.cost.collective_s("all_gather", size, self.cost.groups.shard),
                    [came],
                )
            back.append([came])
        for number in range(max(0, len(updates) - 2), len(updates)) if self.drive_s else ():
            self._drive(step, "write", number, [updates[number]])
        return back

    def _drive(self, step: int, what: str, number: int, needs: Sequence[int]) -> int:
        seconds = self.own[number] * self.drive_s
        return self._add(step, f"{what} {self.parts[number].name}", "nvme", seconds, needs)
