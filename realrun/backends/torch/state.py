"""A training's state by the names that `realrun.checkpoint.state` has, so that either back-end can
read the other's checkpoints.

Everything is gathered and saved whole, unlike in our own, whose tensor-parallel parts stay parts.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from realrun.backends.torch.model import TorchStage, cut_order, whole
from realrun.checkpoint.state import MOMENTS

NAMES = {
    "embed": "embedding.rows",
    "position": "embedding.position",
    "norm": "head.norm",
    "head": "head.column",
}
"""{module of a `TorchStage`: unit and module of ours}; layers keep theirs, and are numbered through
all stages."""


class TorchState:
    """The state of `stages`, {first layer: `TorchStage`}, with their Adam. `optimizer` is that, or
    with ZeRO-1 the part of it on this rank."""

    def __init__(
        self, stages: Mapping[int, TorchStage], optimizer: torch.optim.Optimizer, tp: int
    ) -> None:
        self.optimizer, self.tp = optimizer, tp
        self.parameters = {
            global_name(name, first): parameter
            for first, stage in stages.items()
            for name, parameter in stage.named_parameters()
        }
        self.pieces = {
            global_name(name, first): pieces
            for first, stage in stages.items()
            for name, pieces in stage.pieces.items()
        }
        for parameter in own_parameters(optimizer):
            if not optimizer.state[parameter]:
                zeros = {
                    kind: torch.zeros_like(parameter, memory_format=torch.preserve_format)
                    for kind in MOMENTS
                }
                optimizer.state[parameter] = {"step": torch.tensor(0.0)} | zeros

    def tensors(self) -> dict[str, Tensor]:
        """Copies of the state: {global name: whole tensor}. All ranks of a stage call it
        together."""
        found = {}
        for name, kind, held in self._held():
            copied = whole(held) if isinstance(held, DTensor) else held.clone()
            found[f"{name} {kind}".rstrip()] = self._theirs(name, copied)
        return found | {
            "optimizer steps": next(iter(self.optimizer.state.values()))["step"].clone()
        }

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Put `tensors`, as `tensors()` gives them, into the training."""
        for name, kind, held in self._held():
            given = self._ours(name, tensors[f"{name} {kind}".rstrip()])
            if isinstance(held, DTensor):
                given = distribute_tensor(given, held.device_mesh, held.placements)
            held.copy_(given)
        for state in self.optimizer.state.values():
            state["step"].copy_(tensors["optimizer steps"])

    def _held(self) -> Iterator[tuple[str, str, Tensor]]:
        """(name, '' or which of Adam's moments, tensor as it is held) of what this rank has."""
        own = set(map(id, own_parameters(self.optimizer)))
        for name, parameter in self.parameters.items():
            yield name, "", parameter.detach()
            if id(parameter) in own:
                yield from ((name, kind, self.optimizer.state[parameter][kind]) for kind in MOMENTS)

    def _theirs(self, name: str, tensor: Tensor) -> Tensor:
        """`tensor` as checkpoints have it: matrices that are one parameter one by one, each of which
        tensor parallelism cuts."""
        pieces = self.pieces.get(name, 1)
        if pieces == 1:
            return tensor
        return tensor[cut_order(len(tensor), self.tp, pieces).argsort()].unflatten(0, (pieces, -1))

    def _ours(self, name: str, tensor: Tensor) -> Tensor:
        pieces = self.pieces.get(name, 1)
        if pieces == 1:
            return tensor
        return tensor.flatten(0, 1)[cut_order(pieces * tensor.shape[1], self.tp, pieces)]


def own_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters that `optimizer` updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def global_name(name: str, first_layer: int) -> str:
    """The name that a checkpoint has for a `TorchStage`'s parameter."""
    module, _, rest = name.partition(".")
    if module == "blocks":
        layer, _, rest = rest.partition(".")
        return f"layer {first_layer + int(layer)}.{rest}"
    return f"{NAMES[module]}.{rest}"
