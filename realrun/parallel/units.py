"""When the units of a rank's stages travel: data parallelism and ZeRO, for any schedule.

The rules are those of `simlab.lowering.instructions`. Gradients are reduced during the last
backward (ZeRO 0, 1) or during each backward (2, 3). Updated parameters are gathered when a step
begins (1, 2) or before each use (3). The simpler form of data parallelism, for one stage and one
backward at a time, is in `realrun.parallel.naive.data`.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

import torch
from torch import nn

from realrun.comm.group import Group
from realrun.parallel.layers.sequence import sum_gradients
from realrun.parallel.parameters import WholeUnit
from realrun.parallel.sharded import ShardedUnit
from realrun.parallel.stage import ParallelStage, Unit
from simlab.lowering.zero import (
    frees,
    gathers_for_ops,
    gathers_updated,
    reduces_after_ops,
    reduces_beside,
    reduces_each_backward,
    shards_of,
)
from simlab.program import Op
from simlab.spec.plan import Plan

Parameters = WholeUnit | ShardedUnit


class StageUnits:
    """The units of a rank's stages.

    stages:   {stage: `ParallelStage`}.
    group:    the ranks that hold the same part of the model. tp: the tensor-parallel ranks.
    last:     {stage: its last B or W}.
    gradient: the type in which gradients are added up and travel.
    experts:  where ranks share experts, those that hold the same ones; else None.

    A unit's parameters are one `Parameters`, or two where ranks share experts: those of the experts
    travel apart from the rest.
    """

    def __init__(
        self,
        stages: Mapping[int, ParallelStage],
        plan: Plan,
        group: Group,
        tp: Group,
        last: Mapping[int, Op],
        gradient: torch.dtype,
        experts: Group | None = None,
    ) -> None:
        self.plan, self.group, self.tp, self.last, self.gradient = plan, group, tp, last, gradient
        self.experts = experts
        self.shared = group.size > 1
        self.partial: dict[str, list[nn.Parameter]] = {}
        self.of_stage: dict[int, dict[str, list[Parameters]]] = {}
        for number, stage in stages.items():
            self.of_stage[number] = {
                name: self.parts_of(module, name) for name, module in stage.units.items()
            }
            for name, module in stage.units.items():
                self.partial[name] = module.partial_over_tp()
        self.sharded = {
            number: {name: _sharded(parts) for name, parts in units.items()}
            for number, units in self.of_stage.items()
        }
        self.comes_and_goes = self.shared and gathers_for_ops(plan)
        self.reduces_each = reduces_each_backward(plan)
        self.reducing: list[Parameters] = []
        self.gradient_bytes = 0

    def parts_of(self, module: Unit, name: str) -> list[Parameters]:
        """The parts that the parameters of the unit `module` make."""
        shared = [] if self.experts is None else module.own_experts()
        elsewhere = {id(parameter) for parameter in shared}
        rest = [p for p in module.parameters() if id(p) not in elsewhere]
        parts = [self._part(rest, name, self.group)]
        if self.experts is not None and shared:
            parts.append(self._part(shared, f"{name} experts", self.experts))
        return parts

    def _part(self, parameters: list[nn.Parameter], name: str, group: Group) -> Parameters:
        """`parameters`, which the ranks of `group` hold alike."""
        plan, gradient = self.plan, self.gradient
        master = torch.promote_types(parameters[0].dtype, torch.float32)
        if group.size == 1 or shards_of(plan, "optimizer") == 1:
            part: Parameters = WholeUnit(name, parameters, group, master=master)
        else:
            part = ShardedUnit(
                name,
                parameters,
                group,
                master=master,
                frees=gathers_for_ops(plan),
                reduce=gradient,
            )
        for parameter in parameters:
            parameter.grad_dtype = gradient
        return part

    def state_bytes(self, optimizer: torch.optim.Optimizer) -> dict[str, int]:
        """{"parameters", "gradients", "optimizer": bytes on this rank}. Gradients are those at the
        last step's end; the optimizer's counters of steps are left out."""
        states = [
            value for state in optimizer.state.values() for value in state.values() if value.dim()
        ]
        return {
            "parameters": sum(unit.parameter_bytes for unit in self.all),
            "gradients": self.gradient_bytes,
            "optimizer": sum(value.nbytes for value in states)
            + sum(unit.master_bytes for unit in self.all),
        }

    @property
    def all(self) -> list[Parameters]:
        """The parts of every unit of this rank."""
        return [
            part for units in self.of_stage.values() for parts in units.values() for part in parts
        ]

    def step_begins(self, stages: Iterable[int]) -> None:
        """Called before a step, with its `stages` in the order of their first forwards."""
        if not (self.shared and gathers_updated(self.plan)):
            return
        for stage in stages:
            for part in chain.from_iterable(self._in_order(stage, "F")):
                part.gather()
                if not self.plan.dp_overlap:
                    part.gathered()

    def op_begins(self, stage: int, kind: str) -> None:
        """Called when an op is next. Under ZeRO-3 its first units are on their way before anything
        else is waited for."""
        if self.comes_and_goes and kind != "W":
            for part in chain.from_iterable(self._in_order(stage, kind)[: self.plan.prefetch]):
                part.gather()

    def unit_begins(self, stage: int, kind: str, name: str) -> None:
        """Called before a unit is computed. What it needs is there when this returns, and what
        comes after it is under way."""
        own = self.sharded[stage][name]
        if self.comes_and_goes and kind != "W":
            units, ahead = self._in_order(stage, kind), self.plan.prefetch
            at = units.index(own)
            for part in chain.from_iterable(units[at + ahead : at + ahead + 1]):
                part.gather()
            for part in own:
                part.gathered()
        elif kind == "F" and gathers_updated(self.plan):
            for part in own:
                part.arrived()

    def unit_ends(self, op: Op, name: str) -> None:
        """Called after a unit is computed. It frees what is not needed until the next op, and
        reduces gradients that are complete."""
        completes = op == self.last.get(op.stage)  # a program may have no backward
        if self.comes_and_goes and frees(self.plan, op.kind, completes):
            for part in self.sharded[op.stage][name]:
                part.free()
        if op.kind in "BW" and (
            self.reduces_each or (completes and not reduces_after_ops(self.plan))
        ):
            self._reduce(op.stage, name)

    def step_ends(self, stages: Iterable[int]) -> None:
        """Called after a step's last op. All gradients are complete when this returns, and the
        masters have them. `stages`: in the order of their last backwards, with the last one
        first."""
        if reduces_after_ops(self.plan):
            for stage in stages:
                for name in reversed(self.of_stage[stage]):
                    self._reduce(stage, name)
                    self._wait_for_reductions(0)
        self._wait_for_reductions(0)
        self.gradient_bytes = sum(unit.gradient_bytes for unit in self.all)
        for unit in self.all:
            unit.to_masters()

    def _in_order(self, stage: int, kind: str) -> list[list[ShardedUnit]]:
        """The sharded parts of each unit of `stage`, in the order in which an op of `kind` uses
        the units."""
        units = [*self.sharded[stage].values()]
        return units if kind == "F" else units[::-1]

    def _reduce(self, stage: int, name: str) -> None:
        sum_gradients(self.partial[name], self.tp)
        if not self.shared:
            return
        for part in self.of_stage[stage][name]:
            self._wait_for_reductions(1 if self.reduces_each else len(self.reducing))
            if part in self.reducing:
                self._wait_for_reductions(0)
            if part.group.size > 1:
                part.reduce()
                self.reducing.append(part)
        if self.reduces_each and not reduces_beside(self.plan):
            self._wait_for_reductions(0)

    def _wait_for_reductions(self, left: int) -> None:
        while len(self.reducing) > left:
            self.reducing.pop(0).reduced()


def _sharded(parts: Iterable[Parameters]) -> list[ShardedUnit]:
    """Those of a unit's parts that ranks have in parts."""
    return [part for part in parts if isinstance(part, ShardedUnit)]
