"""The parameters of a unit that every rank keeps whole, and what the optimizer updates.

In 16 bits the optimizer updates master weights in fp32, from which the parameters are made again
(`realrun.parallel.precision`).
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from realrun.comm.group import Group, Pending

Piece = tuple[nn.Parameter, Tensor, Tensor | None]
"""(parameter, the part of it that a rank updates, that part's gradient or None), parts 1-D."""


class WholeUnit:
    """Parameters that every rank keeps whole. Their gradients are averaged by one all-reduce.

    master: the type of what the optimizer updates. That is the parameters themselves, or copies of
    them if they are of another type.
    """

    def __init__(
        self, name: str, parameters: Iterable[nn.Parameter], group: Group, *, master: torch.dtype
    ) -> None:
        self.name, self.parameters, self.group = name, list(parameters), group
        self.sizes = [p.numel() for p in self.parameters]
        self.has_masters = any(p.dtype != master for p in self.parameters)
        self.masters = self.parameters
        if self.has_masters:
            self.masters = [nn.Parameter(p.detach().to(master)) for p in self.parameters]
        self._reducing: Pending | None = None

    @property
    def updated(self) -> list[nn.Parameter]:
        """What the optimizer updates."""
        return self.masters

    @property
    def kept(self) -> list[nn.Parameter]:
        """Tensors, one for each storage that parameters are in."""
        return self.parameters

    @property
    def parameter_bytes(self) -> int:
        """The bytes of what this rank keeps of the parameters."""
        return sum(p.nbytes for p in self.parameters)

    @property
    def master_bytes(self) -> int:
        """The bytes of what the optimizer updates, where that is a copy; else 0."""
        return self.has_masters * sum(master.nbytes for master in self.masters)

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradients that this rank keeps, before `to_masters`."""
        return sum(p.grad.nbytes for p in self.parameters if p.grad is not None)

    def reduce(self) -> None:
        """Start to add up the gradients of all ranks. A parameter without a gradient counts as
        zero."""
        gradients = [
            torch.zeros_like(p, dtype=p.grad_dtype) if p.grad is None else p.grad
            for p in self.parameters
        ]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._reducing = self.group.all_reduce(flat)

    def reduced(self) -> None:
        """Wait for the reduction, if one is under way, and leave the means in `parameter.grad`."""
        if self._reducing is None:
            return
        flat = self._reducing.wait().div_(self.group.size)
        self._reducing = None
        for parameter, mean in zip(self.parameters, flat.split(self.sizes)):
            parameter.grad = mean.view_as(parameter)

    def to_masters(self) -> None:
        """Hand the complete gradients to what the optimizer updates, in its type."""
        for parameter, master in zip(self.parameters, self.masters if self.has_masters else []):
            master.grad = None if parameter.grad is None else parameter.grad.to(master.dtype)
            parameter.grad = None

    @torch.no_grad()
    def from_masters(self) -> None:
        """Copy what the optimizer has made to the parameters."""
        if self.has_masters:
            torch._foreach_copy_([*self.parameters], [*self.masters])

    def pieces(self) -> list[Piece]:
        """The pieces of this unit that this rank updates: all parameters. Their gradients are there
        after `to_masters`."""
        found = zip(self.parameters, self.masters)
        return [
            (p, m.detach().flatten(), None if m.grad is None else m.grad.flatten())
            for p, m in found
        ]
