"""When the units of a rank's stages travel: data parallelism and ZeRO, for any schedule.

The rules are those of `simlab.lowering.instructions`. Gradients are reduced during the last
backward (ZeRO 0, 1) or during each backward (2, 3). Updated parameters are gathered when a step
begins (1, 2) or before each use (3). The simpler forms, for one stage and one backward at a time,
are in `realrun.parallel.naive.data` and `realrun.parallel.naive.zero`.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from realrun.comm.group import Group
from realrun.parallel.parameters import ShardedUnit, WholeUnit
from realrun.parallel.sequence import sum_gradients
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
from simlab.spec.plan import Plan

Parameters = WholeUnit | ShardedUnit


class StageUnits:
    """The units of a rank's stages.

    stages:   {stage: `ParallelStage`}.
    group:    the ranks that hold the same part of the model. tp: the tensor-parallel ranks.
    last:     {stage: text of its last B or W}.
    gradient: the type in which gradients are added up and travel.
    """

    def __init__(
        self,
        stages: Mapping[int, ParallelStage],
        plan: Plan,
        group: Group,
        tp: Group,
        last: Mapping[int, str],
        gradient: torch.dtype,
    ) -> None:
        self.plan, self.group, self.tp, self.last, self.gradient = plan, group, tp, last, gradient
        self.shared = group.size > 1
        self.partial: dict[str, list[nn.Parameter]] = {}
        self.of_stage: dict[int, dict[str, Parameters]] = {}
        for number, stage in stages.items():
            self.of_stage[number] = {
                name: self.unit_of(module, name, group, plan, gradient)
                for name, module in stage.units.items()
            }
            for name, module in stage.units.items():
                self.partial[name] = module.partial_over_tp()
        self.reducing: list[Parameters] = []
        self.gradient_bytes = 0

    @staticmethod
    def unit_of(
        module: Unit, name: str, group: Group, plan: Plan, gradient: torch.dtype
    ) -> Parameters:
        """The unit of parameters that those of `module` make."""
        parameters = list(module.parameters())
        master = torch.promote_types(parameters[0].dtype, torch.float32)
        if group.size == 1 or shards_of(plan, "optimizer") == 1:
            unit: Parameters = WholeUnit(name, parameters, group, master=master)
        else:
            unit = ShardedUnit(
                name,
                parameters,
                group,
                master=master,
                frees=gathers_for_ops(plan),
                reduce=gradient,
            )
        for parameter in parameters:
            parameter.grad_dtype = gradient
        return unit

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
        """Every unit of this rank."""
        return [unit for units in self.of_stage.values() for unit in units.values()]

    def step_begins(self, stages: Iterable[int]) -> None:
        """Called before a step, with its `stages` in the order of their first forwards."""
        if not (self.shared and gathers_updated(self.plan)):
            return
        for stage in stages:
            for unit in self._in_order(stage, "F"):
                unit.gather()
                if not self.plan.dp_overlap:
                    unit.gathered()

    def op_begins(self, stage: int, kind: str) -> None:
        """Called when an op is next. Under ZeRO-3 its first units are on their way before anything
        else is waited for."""
        if self._comes_and_goes() and kind != "W":
            for unit in self._in_order(stage, kind)[: self.plan.prefetch]:
                unit.gather()

    def unit_begins(self, stage: int, kind: str, name: str) -> None:
        """Called before a unit is computed. What it needs is there when this returns, and what
        comes after it is under way."""
        unit = self.of_stage[stage][name]
        if not isinstance(unit, ShardedUnit):
            return
        if self._comes_and_goes() and kind != "W":
            units, ahead = self._in_order(stage, kind), self.plan.prefetch
            at = units.index(unit)
            for other in units[at + ahead : at + ahead + 1]:
                other.gather()
            unit.gathered()
        elif kind == "F" and gathers_updated(self.plan):
            unit.arrived()

    def unit_ends(self, stage: int, kind: str, name: str, op: str) -> None:
        """Called after a unit is computed. It frees what is not needed until the next op, and
        reduces gradients that are complete."""
        unit = self.of_stage[stage][name]
        completes = op == self.last.get(stage)  # a program may have no backward
        if (
            isinstance(unit, ShardedUnit)
            and self._comes_and_goes()
            and frees(self.plan, kind, completes)
        ):
            unit.free()
        if kind in "BW" and (
            reduces_each_backward(self.plan) or (completes and self.plan.dp_overlap)
        ):
            self._reduce(unit)

    def step_ends(self, stages: Iterable[int]) -> None:
        """Called after a step's last op. All gradients are complete when this returns, and the
        masters have them. `stages`: in the order of their last backwards, with the last one
        first."""
        if reduces_after_ops(self.plan):
            for stage in stages:
                for unit in reversed(self.of_stage[stage].values()):
                    self._reduce(unit)
                    self._wait_for_reductions(0)
        self._wait_for_reductions(0)
        self.gradient_bytes = sum(unit.gradient_bytes for unit in self.all)
        for unit in self.all:
            unit.to_masters()

    def _comes_and_goes(self) -> bool:
        return self.shared and gathers_for_ops(self.plan)

    def _in_order(self, stage: int, kind: str) -> list[ShardedUnit]:
        """The sharded units of `stage`, in the order in which an op of `kind` uses them."""
        units = [unit for unit in self.of_stage[stage].values() if isinstance(unit, ShardedUnit)]
        return units if kind == "F" else units[::-1]

    def _reduce(self, unit: Parameters) -> None:
        sum_gradients(self.partial[unit.name], self.tp)
        if not self.shared:
            return
        each = reduces_each_backward(self.plan)
        self._wait_for_reductions(1 if each else len(self.reducing))
        if unit in self.reducing:
            self._wait_for_reductions(0)
        unit.reduce()
        self.reducing.append(unit)
        if each and not reduces_beside(self.plan):
            self._wait_for_reductions(0)

    def _wait_for_reductions(self, left: int) -> None:
        while len(self.reducing) > left:
            self.reducing.pop(0).reduced()
