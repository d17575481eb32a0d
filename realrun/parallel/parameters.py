"""The parameters of a unit, whole on every rank or sharded, and what the optimizer updates.

In 16 bits the optimizer updates master weights in fp32, from which the parameters are made again
(`realrun.parallel.precision`).
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from realrun.comm.group import Group, Pending
from realrun.parallel.flat import FlatUnit

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
        flat = self._reducing.wait() / self.group.size
        self._reducing = None
        for parameter, mean in zip(
            self.parameters, flat.split([p.numel() for p in self.parameters])
        ):
            parameter.grad = mean.view_as(parameter)

    def to_masters(self) -> None:
        """Hand the complete gradients to what the optimizer updates, in its type."""
        for parameter, master in zip(self.parameters, self.masters if self.has_masters else []):
            master.grad = None if parameter.grad is None else parameter.grad.to(master.dtype)
            parameter.grad = None

    @torch.no_grad()
    def from_masters(self) -> None:
        """Copy what the optimizer has made to the parameters."""
        for parameter, master in zip(self.parameters, self.masters if self.has_masters else []):
            parameter.copy_(master)

    def pieces(self) -> list[Piece]:
        """The pieces of this unit that this rank updates: all parameters. Their gradients are there
        after `to_masters`."""
        found = zip(self.parameters, self.masters)
        return [
            (p, m.detach().flatten(), None if m.grad is None else m.grad.flatten())
            for p, m in found
        ]


class ShardedUnit(FlatUnit):
    """Parameters of which every rank updates a part, with the interface of `WholeUnit`. A rank
    keeps its part's gradient in the type in which it was reduced.

    part: this rank's part of the parameters, which is gathered where parameters are freed and the
    shard is of another type; else None.
    """

    def __init__(
        self,
        name: str,
        parameters: Iterable[nn.Parameter],
        group: Group,
        *,
        master: torch.dtype = torch.float32,
        frees: bool = False,
        reduce: torch.dtype | None = None,
    ) -> None:
        self.part: Tensor | None = None
        self.gradient: Tensor | None = None
        super().__init__(name, parameters, group, master=master, frees=frees, reduce=reduce)
        if self.frees and self.shard.dtype != self.whole.dtype:
            self.part = self.shard.detach().to(self.whole.dtype)

    def own_part(self) -> Tensor:
        """See `FlatUnit`."""
        return super().own_part() if self.part is None else self.part

    @property
    def updated(self) -> list[nn.Parameter]:
        """[what the optimizer updates]"""
        return [self.shard]

    @property
    def kept(self) -> list[Tensor]:
        """See `WholeUnit`."""
        return [self.whole]

    @property
    def parameter_bytes(self) -> int:
        """See `WholeUnit`."""
        own = self.shard if self.part is None else self.part
        return self.whole_bytes + self.frees * own.nbytes

    @property
    def master_bytes(self) -> int:
        """See `WholeUnit`."""
        return (self.shard.dtype != self.whole.dtype) * self.shard.nbytes

    @property
    def gradient_bytes(self) -> int:
        """See `WholeUnit`."""
        return 0 if self.gradient is None else self.gradient.nbytes

    def add_gradient(self, part: Tensor) -> None:
        """See `FlatUnit`."""
        mean = part / self.group.size
        self.gradient = mean if self.gradient is None else self.gradient.add_(mean)

    def to_masters(self) -> None:
        """See `WholeUnit`."""
        self.shard.grad = None if self.gradient is None else self.gradient.to(self.shard.dtype)
        self.gradient = None

    def from_masters(self) -> None:
        """See `WholeUnit`. Parameters that are kept whole are gathered when the next step
        begins."""
        if self.part is not None:
            self.part.copy_(self.shard.detach())

    def pieces(self) -> list[Piece]:
        """See `WholeUnit`."""
        first, at = self.part_size * self.group.place, 0
        found: list[Piece] = []
        for parameter, size in zip(self.parameters, self.sizes):
            here = slice(max(0, at - first), max(0, min(self.part_size, at + size - first)))
            if here.start < here.stop:
                gradient = None if self.shard.grad is None else self.shard.grad[here]
                found.append((parameter, self.shard.detach()[here], gradient))
            at += size
        return found
