"""A training's state by global names, which do not depend on the plan that cut it. It is what
checkpoints hold.

A name consists of a unit, a parameter in it and what of it is meant, as in 'layer 3.qkv.weight
exp_avg'. Without a last word it is the weight, in 16 bits its fp32 master; 'exp_avg' and
'exp_avg_sq' are Adam's moments. What tensor parallelism cuts is a DTensor. Pipeline stages have
other names, and so do experts, which only the ranks that share them hold. What ZeRO cuts is
gathered, unit by unit.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from realrun.comm.mesh import device_mesh
from realrun.parallel.layers.tensor import OutputCutLinear, RowLinear, VocabEmbedding
from realrun.parallel.sharded import ShardedUnit
from realrun.parallel.stage import ParallelStage
from realrun.parallel.units import Parameters, StageUnits
from simlab.spec.layout import Layout

MOMENTS = ("exp_avg", "exp_avg_sq")
Cut = tuple[str, int | None, int]
"""(name of a parameter, the dimension that tensor parallelism cuts or None, the number of its
pieces)"""


class State:
    """The state of `stages`, {stage: `ParallelStage`}, with their `units` and `optimizer` (Adam).
    All ranks make it together."""

    def __init__(
        self,
        stages: Mapping[int, ParallelStage],
        units: StageUnits,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        device_type: str = "cpu",
    ) -> None:
        self.stages, self.units, self.optimizer = stages, units, optimizer
        whole = device_mesh(layout, device_type)
        self.names = [name for name in whole.mesh_dim_names or () if name != "pp"]
        self.mesh = whole[tuple(self.names)]
        for unit in units.all:
            for tensor in unit.updated:
                _begin_state(optimizer, tensor)

    def tensors(self) -> dict[str, Tensor]:
        """Copies of the state: {global name: DTensor, or tensor that is the same on all ranks}. All
        ranks of a stage call it together."""
        found: dict[str, Tensor] = {}
        for name, unit, cuts in self._units():
            for kind in ("", *MOMENTS):
                local = self._local(unit, kind)
                for (parameter, cut, pieces), value in zip(cuts, local, strict=True):
                    found[_global_name(name, parameter, kind)] = self._distributed(
                        value, cut, pieces
                    )
        found["optimizer steps"] = self._steps().clone()
        return found

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Any]) -> None:
        """Put `tensors`, as `tensors()` gives them, into the training."""
        for name, unit, cuts in self._units():
            for kind in ("", *MOMENTS):
                values = []
                for (parameter, _, _), own in zip(cuts, unit.parameters, strict=True):
                    whole = tensors[_global_name(name, parameter, kind)].to_local()
                    values.append(whole.reshape(own.shape))
                self._put(unit, kind, values)
        for state in self.optimizer.state.values():
            state["step"].copy_(tensors["optimizer steps"])

    def _units(self) -> Iterator[tuple[str, Parameters, list[Cut]]]:
        """(name of a unit, a part of it, the `Cut` of each of the part's parameters)"""
        for number, stage in self.stages.items():
            for name, module in stage.units.items():
                cuts = dict(zip(map(id, module.parameters()), _cuts(module), strict=True))
                for part in self.units.of_stage[number][name]:
                    yield name, part, [cuts[id(parameter)] for parameter in part.parameters]

    def _steps(self) -> Tensor:
        return next(iter(self.optimizer.state.values()))["step"]

    def _local(self, unit: Parameters, kind: str) -> list[Tensor]:
        """The weight or moment of each of the unit's parameters, whole but for what tensor
        parallelism cuts."""
        if not isinstance(unit, ShardedUnit):
            return [
                m.detach().clone() if not kind else self.optimizer.state[m][kind].clone()
                for m in unit.masters
            ]
        shard = unit.shard.detach() if not kind else self.optimizer.state[unit.shard][kind]
        flat = unit.group.all_gather(shard).wait().split([*unit.sizes, unit.padding])
        return [part.clone().view(shape) for part, shape in zip(flat, unit.shapes)]

    def _put(self, unit: Parameters, kind: str, values: Sequence[Tensor]) -> None:
        if not isinstance(unit, ShardedUnit):
            for master, value in zip(unit.masters, values):
                (self.optimizer.state[master][kind] if kind else master).copy_(value)
            unit.from_masters()
            return
        flat = torch.cat(
            [*(value.flatten() for value in values), values[0].new_zeros(unit.padding)]
        )
        own = flat.split(unit.part_size)[unit.group.place]
        (self.optimizer.state[unit.shard][kind] if kind else unit.shard).copy_(own)
        unit.from_masters()

    def _distributed(self, value: Tensor, cut: int | None, pieces: int) -> Tensor:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        if pieces > 1 and cut is not None:  # matrices below each other, each cut by itself
            value = value.unflatten(0, (pieces, -1))
            cut += 1
        placements = [
            Shard(cut) if name == "tp" and cut is not None else Replicate() for name in self.names
        ]
        return DTensor.from_local(value.contiguous(), self.mesh, placements, run_check=False)


def _cuts(module: nn.Module) -> list[Cut]:
    """The `Cut` of each of a unit's parameters, in their order."""
    found: list[Cut] = []
    for path, layer in module.named_modules():
        cuts: dict[str, int | None] = {"weight": None, "bias": None}
        if isinstance(layer, OutputCutLinear):
            cuts = {"weight": 0, "bias": 0}
        elif isinstance(layer, RowLinear):
            cuts = {"weight": 1, "bias": None}
        elif isinstance(layer, VocabEmbedding):
            cuts = {"weight": 0}
        pieces = layer.pieces if isinstance(layer, OutputCutLinear) else 1
        for name, _ in layer.named_parameters(recurse=False):
            found.append((".".join(filter(None, (path, name))), cuts[name], pieces))
    return found


def _global_name(unit: str, parameter: str, kind: str) -> str:
    return f"{unit}.{parameter} {kind}".rstrip()


def _begin_state(optimizer: torch.optim.Optimizer, tensor: nn.Parameter) -> None:
    """Make Adam's state before its first step, so that a checkpoint has a place to be put."""
    if not isinstance(tensor, nn.Parameter) or optimizer.state[tensor]:
        return
    optimizer.state[tensor] = {
        "step": torch.zeros((), device=tensor.device),
        "exp_avg": torch.zeros_like(tensor),
        "exp_avg_sq": torch.zeros_like(tensor),
    }
