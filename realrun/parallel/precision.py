"""Mixed precision: weights are kept and updated in 32 bits, and the model computes in 16
(Micikevicius et al. 2018, arXiv 1710.03740).

bf16 has fp32's range and needs no scaling. fp16's smallest number is 6e-8, and gradients below it
vanish. So the loss is multiplied by a scale before the backward, and the gradients are divided by
it after. When a gradient overflows, the step is skipped and the scale is halved.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from realrun.comm.group import Pending
from simlab.errors import InputError

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class Reduces(Protocol):
    """Ranks that can reduce a tensor, as a `Group` does."""

    def all_reduce(self, tensor: Tensor, operation: str = "sum") -> Pending:
        """See `realrun.comm.group.Group`."""


class LossScaler:
    """It keeps the loss's `scale` as large as it can be (section 3.2; the defaults are those of
    torch's GradScaler).

    groups: the `Group`s over which a found infinity must be known. They are those of every
    dimension in which ranks hold different gradients (tensor and pipeline parallelism, sharded data
    parallelism) or gradients that may differ. A rank that skips a step alone has other weights ever
    after. `InputError` for numbers that make no sense.
    """

    def __init__(
        self,
        groups: Iterable[Reduces] = (),
        *,
        scale: float = 2.0**16,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
    ) -> None:
        for name, value, good, valid in (
            ("scale", scale, scale > 0, "above 0"),
            ("growth", growth, growth > 1, "above 1"),
            ("backoff", backoff, 0 < backoff < 1, "between 0 and 1"),
            ("interval", interval, interval >= 1, "of at least 1"),
        ):
            if not (good and math.isfinite(value)):
                raise InputError(f"{name} = {value!r}: give a number {valid}")
        self.groups, self.scale = list(groups), float(scale)
        self.growth, self.backoff, self.interval = growth, backoff, interval
        self.good_steps = 0

    @property
    def state(self) -> list[float]:
        """[scale, good steps since it changed], which a checkpoint needs."""
        return [self.scale, self.good_steps]

    @state.setter
    def state(self, state: Sequence[float]) -> None:
        self.scale, self.good_steps = state[0], int(state[1])

    def unscale(self, gradients: Iterable[Tensor | None]) -> bool:
        """Divide the gradients by the scale, in place. Returns whether all of them are finite on
        all ranks, and adapts the scale.

        It takes one all-reduce (maximum) of 4 bytes over each group in turn, which reaches every
        rank of a mesh if the groups are all its dimensions. All ranks must call it, those without
        gradients too.
        """
        there = [gradient for gradient in gradients if gradient is not None]
        found = torch.zeros(1, device=there[0].device if there else None)
        for gradient in there:
            gradient /= self.scale
            found = torch.maximum(found, (~torch.isfinite(gradient)).any().float())
        for group in self.groups:
            group.all_reduce(found, "max").wait()
        finite = not found.item()
        self._adapt(finite)
        return finite

    def _adapt(self, finite: bool) -> None:
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.good_steps == self.interval:
            self.scale, self.good_steps = self.scale * self.growth, 0


class MasterWeights:
    """A `module` in `dtype` ('fp16', 'bf16' or 'fp32') whose weights are kept in fp32, and updated
    there by `optimizer`, a function of parameters that returns a torch optimizer. `InputError` for
    another `dtype`.

    It is for replicated weights; sharded units keep masters of their own shards. Norms are in
    `dtype` as everything else is: autocast's lists of ops that stay in fp32 are left out.
    """

    def __init__(
        self,
        module: nn.Module,
        dtype: str,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        if dtype not in TYPES:
            raise InputError(f"precision {dtype!r}: give one of {', '.join(TYPES)}")
        self.masters = [
            torch.nn.Parameter(p.detach().to(torch.float32, copy=True)) for p in module.parameters()
        ]
        self.module = module.to(TYPES[dtype])
        self.optimizer = optimizer(self.masters)

    def step(
        self, *, scaler: LossScaler | None = None, clip: Callable[[], None] | None = None
    ) -> bool:
        """Update the masters from the module's gradients, and the module from the masters. Returns
        whether it updated, see `LossScaler`.

        clip: called before the update, to change the masters' gradients in place.
        """
        for master, parameter in zip(self.masters, self.module.parameters()):
            master.grad = None if parameter.grad is None else parameter.grad.to(torch.float32)
            parameter.grad = None
        if finite := scaler is None or scaler.unscale([master.grad for master in self.masters]):
            if clip is not None:
                clip()
            self.optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(self.masters, self.module.parameters()):
                    parameter.copy_(master)
        self.optimizer.zero_grad(set_to_none=True)
        return finite
