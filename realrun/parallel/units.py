"""Units of parameters that travel together, and when they do: data parallelism and ZeRO of a rank's stages, for any schedule.

The same rules as `simlab.instructions`: gradients are reduced during the last backward (ZeRO 0, 1) or during each (2, 3), updated
parameters are gathered when a step begins (1, 2) or before each use (3). The simpler forms, for one stage and one backward at a time, are
in `realrun.parallel.data` and `realrun.parallel.zero`.

In 16 bits, the optimizer updates master weights in fp32, from which the parameters are made again (`realrun.parallel.precision`).
"""

import torch
from torch import nn

from realrun.parallel.flat import FlatUnit
from realrun.parallel.sequence import sum_gradients


class WholeUnit:
    """Parameters that every rank keeps whole: gradients are averaged in one all-reduce. The interface of `FlatUnit`.

    master: the type of what the optimizer updates: the parameters themselves, or copies of them if it is another one.
    """

    def __init__(self, name, parameters, group, *, master):
        self.name, self.parameters, self.group = name, list(parameters), group
        self.has_masters = any(p.dtype != master for p in self.parameters)
        self.masters = [nn.Parameter(p.detach().to(master)) for p in self.parameters] if self.has_masters else self.parameters
        self._reducing = None

    @property
    def updated(self):
        """[what the optimizer updates]"""
        return self.masters

    @property
    def kept(self):
        """[tensors, one of each storage that parameters are in]"""
        return self.parameters

    @property
    def parameter_bytes(self):
        """Of what this rank keeps of the parameters."""
        return sum(p.nbytes for p in self.parameters)

    @property
    def master_bytes(self):
        """Of what the optimizer updates, where that is a copy."""
        return self.has_masters * sum(master.nbytes for master in self.masters)

    @property
    def gradient_bytes(self):
        """Of the gradients that this rank keeps, before `to_masters`."""
        return sum(p.grad.nbytes for p in self.parameters if p.grad is not None)

    def reduce(self):
        """Start to sum up the gradients of all ranks."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
        flat = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        self._reducing = self.group.all_reduce(flat)

    def reduced(self):
        """Wait for that, and leave the means in `parameter.grad`."""
        flat = self._reducing.wait() / self.group.size
        self._reducing = None
        for parameter, mean in zip(self.parameters, flat.split([p.numel() for p in self.parameters])):
            parameter.grad = mean.view_as(parameter)

    def to_masters(self):
        """Complete gradients go to what the optimizer updates, in its type."""
        for parameter, master in zip(self.parameters, self.masters if self.has_masters else []):
            master.grad = None if parameter.grad is None else parameter.grad.to(master.dtype)
            parameter.grad = None

    @torch.no_grad()
    def from_masters(self):
        """What the optimizer has made goes to the parameters."""
        for parameter, master in zip(self.parameters, self.masters if self.has_masters else []):
            parameter.copy_(master)

    def pieces(self):
        """[(parameter, the part of it that this rank updates, that part's gradient or None)], 1-D, after `to_masters`."""
        found = zip(self.parameters, self.masters)
        return [(p, m.detach().flatten(), None if m.grad is None else m.grad.flatten()) for p, m in found]


class ShardedUnit(FlatUnit):
    """Parameters of which every rank updates a part, and keeps that part's gradient as it was reduced.

    part: this rank's of the parameters, where those come and go and the shard is of another type: what is gathered.
    """

    def __init__(self, name, parameters, group, **options):
        self.part, self.gradient = None, None
        super().__init__(name, parameters, group, **options)
        if self.frees and self.shard.dtype != self.whole.dtype:
            self.part = self.shard.detach().to(self.whole.dtype)

    def own_part(self):
        """See `FlatUnit`."""
        return super().own_part() if self.part is None else self.part

    @property
    def updated(self):
        """[what the optimizer updates]"""
        return [self.shard]

    @property
    def kept(self):
        """See `WholeUnit`."""
        return [self.whole]

    @property
    def parameter_bytes(self):
        """See `WholeUnit`."""
        own = self.shard if self.part is None else self.part
        return self.whole_bytes + self.frees * own.nbytes

    @property
    def master_bytes(self):
        """See `WholeUnit`."""
        return (self.shard.dtype != self.whole.dtype) * self.shard.nbytes

    @property
    def gradient_bytes(self):
        """See `WholeUnit`."""
        return 0 if self.gradient is None else self.gradient.nbytes

    def add_gradient(self, part):
        """See `FlatUnit`."""
        mean = part / self.group.size
        self.gradient = mean if self.gradient is None else self.gradient.add_(mean)

    def to_masters(self):
        """See `WholeUnit`."""
        self.shard.grad = None if self.gradient is None else self.gradient.to(self.shard.dtype)
        self.gradient = None

    def from_masters(self):
        """See `WholeUnit`; what is kept whole is gathered when the next step begins."""
        if self.part is not None:
            self.part.copy_(self.shard.detach())

    def pieces(self):
        """See `WholeUnit`."""
        first, found, at = self.part_size * self.group.place, [], 0
        for parameter, size in zip(self.parameters, self.sizes):
            here = slice(max(0, at - first), max(0, min(self.part_size, at + size - first)))
            if here.start < here.stop:
                found.append((parameter, self.shard.detach()[here], None if self.shard.grad is None else self.shard.grad[here]))
            at += size
        return found


class StageUnits:
    """The units of a rank's stages.

    stages:   {stage: `ParallelStage`}; group: of the ranks that hold the same part of the model; tp: that of the tensor-parallel ranks.
    last:     {stage: text of its last B or W}.
    gradient: the type in which gradients are added up and travel.
    """

    def __init__(self, stages, plan, group, tp, last, gradient):
        self.plan, self.group, self.tp, self.last, self.gradient = plan, group, tp, last, gradient
        self.shared = group.size > 1
        self.partial, self.of_stage = {}, {}
        for number, stage in stages.items():
            self.of_stage[number] = {name: self.unit_of(module, name, group, plan, gradient) for name, module in stage.units.items()}
            for name, module in stage.units.items():
                self.partial[name] = module.partial_over_tp()
        self.reducing, self.gradient_bytes = [], 0

    @staticmethod
    def unit_of(module, name, group, plan, gradient):
        """The unit that `module`'s parameters are."""
        parameters = list(module.parameters())
        master = torch.promote_types(parameters[0].dtype, torch.float32)
        if not plan.zero or group.size == 1:
            unit = WholeUnit(name, parameters, group, master=master)
        else:
            unit = ShardedUnit(name, parameters, group, master=master, frees=plan.zero == 3, reduce=gradient)
        for parameter in parameters:
            parameter.grad_dtype = gradient
        return unit

    def state_bytes(self, optimizer):
        """{"parameters", "gradients", "optimizer": bytes on this rank}: gradients at the last step's end; no counters of steps."""
        states = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
        return {
            "parameters": sum(unit.parameter_bytes for unit in self.all),
            "gradients": self.gradient_bytes,
            "optimizer": sum(value.nbytes for value in states) + sum(unit.master_bytes for unit in self.all),
        }

    @property
    def all(self):
        """[every unit of this rank]"""
        return [unit for units in self.of_stage.values() for unit in units.values()]

    def step_begins(self, stages):
        """`stages` in the order of their first forwards."""
        if self.plan.zero not in (1, 2) or not self.shared:
            return
        for unit in (unit for stage in stages for unit in self.of_stage[stage].values()):
            unit.gather()
            if not self.plan.dp_overlap:
                unit.gathered()

    def op_begins(self, stage, kind):
        """ZeRO-3: the first units are on their way before anything else is waited for."""
        for unit in self._in_order(stage, kind)[: self.plan.prefetch] if self._comes_and_goes(kind) else []:
            unit.gather()

    def unit_begins(self, stage, kind, name):
        """What is needed is there when this returns, and what comes after it under way."""
        unit = self.of_stage[stage][name]
        if self._comes_and_goes(kind):
            units, ahead = self._in_order(stage, kind), self.plan.prefetch
            at = units.index(unit)
            for other in units[at + ahead : at + ahead + 1]:
                other.gather()
            unit.gathered()
        elif self.plan.zero in (1, 2) and self.shared and kind == "F":
            unit.arrived()

    def unit_ends(self, stage, kind, name, op):
        """Free what is not needed until the next op; reduce gradients that are complete."""
        unit = self.of_stage[stage][name]
        if self._comes_and_goes(kind):
            unit.free()
        if kind in "BW" and (self.plan.zero >= 2 or (op == self.last[stage] and self.plan.dp_overlap)):
            self._reduce(unit)

    def step_ends(self, stages):
        """All gradients are complete when this returns, and with the masters. `stages`: in the order of their last backwards, the last one
        first."""
        if self.plan.zero < 2 and not self.plan.dp_overlap:
            for unit in (unit for stage in stages for unit in reversed(self.of_stage[stage].values())):
                self._reduce(unit)
                self._wait_for_reductions(0)
        self._wait_for_reductions(0)
        self.gradient_bytes = sum(unit.gradient_bytes for unit in self.all)
        for unit in self.all:
            unit.to_masters()

    def _comes_and_goes(self, kind):
        return self.plan.zero == 3 and self.shared and kind != "W"

    def _in_order(self, stage, kind):
        units = list(self.of_stage[stage].values())
        return units if kind == "F" else units[::-1]

    def _reduce(self, unit):
        plan = self.plan
        sum_gradients(self.partial[unit.name], self.tp)
        if not self.shared:
            return
        self._wait_for_reductions(1 if plan.zero >= 2 else len(self.reducing))
        if unit in self.reducing:
            self._wait_for_reductions(0)
        unit.reduce()
        self.reducing.append(unit)
        if plan.zero >= 2 and not (plan.dp_overlap and (plan.zero == 2 or plan.prefetch)):
            self._wait_for_reductions(0)

    def _wait_for_reductions(self, left):
        while len(self.reducing) > left:
            self.reducing.pop(0).reduced()
