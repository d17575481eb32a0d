"""What is copied between a GPU and its node's host: parameters or activations of each op, or the
optimizer's gradients, states and parameters once a step (`Plan.offload`).

Copies out and copies in have a stream each, for PCIe carries both at once. What moves between the
host and its drives for the update has a third one. What a unit uses is
fetched while the unit before it runs, or so much earlier that ZeRO-3 can then gather it. A layer's
activations leave while the next layers' forward runs. An op that copies out ends when its copies
have.
"""

from collections.abc import Iterator, Sequence

from simlab.layer.units import is_layer
from simlab.lowering.instruction import Instruction, Unit
from simlab.lowering.sharding import Make, both, ended
from simlab.lowering.zero import shards_of
from simlab.memory.states import optimizer_bytes
from simlab.program import Op
from simlab.spec.model import Model
from simlab.spec.plan import Plan

OUT, IN = "offload out", "offload in"
"""The dimensions of copies to the host, and from it."""
DRIVE = "drive"
"""The dimension of copies between the host and the node's drives."""
FETCHED_FOR = {"parameters": "FBI", "activations": "BI"}
"""{what is offloaded: kinds of ops that it is fetched for}."""


class Offloading:
    """The rules for one rank, and what it has begun and not waited for."""

    def __init__(self, model: Model, plan: Plan, make: Make) -> None:
        self.model, self.plan, self.make = model, plan, make
        self.coming: dict[str, Instruction] = {}
        self.leaving: list[Instruction] = []

    def fetch(self, op: Op, units: Sequence[Unit]) -> Iterator[Instruction]:
        """Begin to fetch what `units` use in `op`."""
        if op.kind in FETCHED_FOR.get(self.plan.offload, ""):
            for unit in units:
                if size_bytes := self._size_bytes(unit):
                    what = f"{unit.name} {self.plan.offload} in"
                    self.coming[unit.name] = self.make(unit, what, IN, "copy", size_bytes)
                    yield self.coming[unit.name]

    def arrived(self, unit: Unit) -> Iterator[Instruction]:
        """Wait for what a unit uses."""
        if unit.name in self.coming:
            yield ended(self.coming.pop(unit.name))

    def after(self, op: Op, unit: Unit) -> Iterator[Instruction]:
        """What a unit leaves for the host."""
        if self.plan.offload == "activations" and op.kind == "F" and self._size_bytes(unit):
            name = f"{unit.name} activations out"
            self.leaving.append(self.make(unit, name, OUT, "copy", self._size_bytes(unit)))
            yield self.leaving[-1]

    def end_op(self) -> Iterator[Instruction]:
        """Wait until all that leaves has left."""
        while self.leaving:
            yield ended(self.leaving.pop(0))

    def gradients_out(self, parameters: float) -> Iterator[Instruction]:
        """What the host's optimizer needs of this rank's `parameters`."""
        size_bytes = parameters * self.plan.gradient_bytes
        yield from both(self.make(None, "gradients out", OUT, "copy", size_bytes))

    def states_moved(self, parameters: float, way: str) -> Iterator[Instruction]:
        """The optimizer's states of this rank's `parameters`, which come 'in' from drives for the
        update and go 'out' to them again."""
        if self.plan.offload_to == "nvme":
            size_bytes = parameters * optimizer_bytes(self.plan)
            yield from both(self.make(None, f"states {way}", DRIVE, "copy", size_bytes))

    def parameters_in(self, parameters: float) -> Iterator[Instruction]:
        """What it gives back, unless parameters live on the host."""
        if self.plan.offload == "optimizer":
            size_bytes = parameters * self.plan.element_bytes
            yield from both(self.make(None, "parameters in", IN, "copy", size_bytes))

    def _size_bytes(self, unit: Unit) -> float:
        """Of what comes for a unit, or of the activations that a layer leaves."""
        plan = self.plan
        if plan.offload == "parameters":
            return unit.parameters * plan.element_bytes / shards_of(plan, "parameters")
        from simlab.memory.activations import layer_activations_bytes

        if not is_layer(unit.type):
            return 0.0
        return layer_activations_bytes(self.model.of_kind(unit.type), plan, plan.recompute)
