"""A training's state by the names that `realrun.parallel.state` has, so that either engine's checkpoints are the other's.

Everything is gathered and saved whole: unlike ours, whose tensor-parallel parts stay parts.
"""

import torch

from realrun.parallel.state import MOMENTS
from realrun.torch_engine.model import qkv_order

NAMES = {"embed": "embedding.rows", "position": "embedding.position", "norm": "head.norm", "head": "head.column"}
"""{module of a `TorchStage`: unit and module of ours}; layers keep theirs, and are numbered through all stages."""


class TorchState:
    """Of `stages`, {first layer: `TorchStage`}, with their Adam, which is `optimizer` or, of ZeRO-1, what it has on this rank."""

    def __init__(self, stages, optimizer, tp):
        self.optimizer, self.tp = optimizer, tp
        self.parameters = {
            global_name(name, first): parameter for first, stage in stages.items() for name, parameter in stage.named_parameters()
        }
        for parameter in own_parameters(optimizer):
            if not optimizer.state[parameter]:
                zeros = {kind: torch.zeros_like(parameter, memory_format=torch.preserve_format) for kind in MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(0.0)} | zeros

    def tensors(self):
        """{global name: whole tensor}: copies. Called by all ranks of a stage together."""
        found = {}
        for name, kind, held in self._held():
            whole = held.full_tensor() if hasattr(held, "full_tensor") else held.clone()
            found[f"{name} {kind}".rstrip()] = self._theirs(name, whole)
        return found | {"optimizer steps": next(iter(self.optimizer.state.values()))["step"].clone()}

    @torch.no_grad()
    def take(self, tensors):
        """Put `tensors`, as `tensors()` gives them, into the training."""
        from torch.distributed.tensor import distribute_tensor

        for name, kind, held in self._held():
            whole = self._ours(name, tensors[f"{name} {kind}".rstrip()])
            if hasattr(held, "full_tensor"):
                whole = distribute_tensor(whole, held.device_mesh, held.placements)
            held.copy_(whole)
        for state in self.optimizer.state.values():
            state["step"].copy_(tensors["optimizer steps"])

    def _held(self):
        """(name, '' or which of Adam's moments, tensor as it is held) of what this rank has."""
        own = set(map(id, own_parameters(self.optimizer)))
        for name, parameter in self.parameters.items():
            yield name, "", parameter.detach()
            if id(parameter) in own:
                yield from ((name, kind, self.optimizer.state[parameter][kind]) for kind in MOMENTS)

    def _theirs(self, name, whole):
        """As checkpoints have it: queries', keys' and values' matrices one by one, each of which tensor parallelism cuts."""
        if ".qkv." not in name:
            return whole
        return whole[qkv_order(len(whole), self.tp).argsort()].unflatten(0, (3, -1))

    def _ours(self, name, whole):
        if ".qkv." not in name:
            return whole
        return whole.flatten(0, 1)[qkv_order(3 * whole.shape[1], self.tp)]


def own_parameters(optimizer):
    """[parameters that it updates]"""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def global_name(name, first_layer):
    """Of a `TorchStage`'s parameter."""
    module, _, rest = name.partition(".")
    if module == "blocks":
        layer, _, rest = rest.partition(".")
        return f"layer {first_layer + int(layer)}.{rest}"
    return f"{NAMES[module]}.{rest}"
