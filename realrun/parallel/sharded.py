"""The parameters of a unit in a flat buffer, of which every rank updates an equal part."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from realrun.comm.group import Group, Pending
from realrun.parallel.parameters import Piece
from simlab.errors import InputError


class ShardedUnit:
    """Parameters, those of one layer for example, that become views of one buffer `whole`, with the
    interface of `WholeUnit`. The buffer is padded with zeros so that n ranks have equal parts.

    shard:    this rank's part, (ceil(numbers / n),), which the optimizer updates. Its type is
              `master`, which may be wider than the parameters' own.
    gradient: of the shard, the mean over all ranks of the sum over all backwards since the optimizer's
              last step, in the type in which it was reduced.
    frees:    whether `whole` is freed and gathered again (ZeRO-3). If it is not, and the types are
              the same, `shard` is a view of it and takes no memory.
    part:     this rank's part of the parameters, which is gathered where parameters are freed and the
              shard is of another type; else None.
    reduce:   the type in which gradients travel; None: the parameters'.

    `InputError` for parameters of several types, and for frozen ones.

    (FlatParameter of Zhao et al. 2023, "PyTorch FSDP", arXiv 2304.11277, section 3.2.2. FSDP2
    instead cuts each parameter by rows, and pads those. The bytes are the same wherever n divides
    the rows.)
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
        self.name, self.parameters, self.group = name, list(parameters), group
        self._check()
        self.frees, self.reduce_type = frees, reduce or self.parameters[0].dtype
        self.sizes = [p.numel() for p in self.parameters]
        self.shapes = [p.shape for p in self.parameters]
        self.part_size = -(-sum(self.sizes) // group.size)
        self.whole = self.parameters[0].detach().new_zeros(self.part_size * group.size)
        for parameter, view in zip(self.parameters, self.whole.split([*self.sizes, self.padding])):
            parameter.data = view.copy_(parameter.detach().flatten()).view_as(parameter)
        mine = group.own(self.whole, 0)
        self.is_view = not frees and mine.dtype == master
        self.shard = nn.Parameter(mine if self.is_view else mine.to(master, copy=True))
        self.gradient: Tensor | None = None
        self.part: Tensor | None = None
        if frees and master != self.whole.dtype:
            self.part = self.shard.detach().to(self.whole.dtype)
        self._gathering: Pending | None = None
        self._reducing: Pending | None = None
        self._nbytes = self.whole.untyped_storage().nbytes()
        if frees:
            self.free()

    def _check(self) -> None:
        types = {p.dtype for p in self.parameters}
        if len(types) != 1:
            raise InputError(
                f"{self.name} has parameters of {', '.join(sorted(map(str, types)))}: give each type a layer of its own"
            )
        if not all(p.requires_grad for p in self.parameters):
            raise InputError(
                f"{self.name} has frozen parameters: leave them out of the sharded module"
            )

    @property
    def padding(self) -> int:
        """The count of numbers at the end that belong to no parameter. It is less than n."""
        return self.part_size * self.group.size - sum(self.sizes)

    @property
    def whole_bytes(self) -> int:
        """The bytes that `whole` takes now: all of it, or 0 when it is freed."""
        return self.whole.untyped_storage().nbytes()

    @torch.no_grad()
    def gather(self) -> None:
        """Start to make `whole` of all ranks' shards. It does nothing if that is under way, or is
        done and `whole` was not freed since."""
        if self._gathering is None and not (self.frees and self.whole_bytes):
            if not self.whole_bytes:  # to the size that it has would be a copy to another place
                self.whole.untyped_storage().resize_(self._nbytes)
            self._gathering = self.group.all_gather(self.own_part(), out=self.whole)

    def own_part(self) -> Tensor:
        """This rank's part, in the parameters' type."""
        return self.shard.detach().to(self.whole.dtype) if self.part is None else self.part

    def gathered(self) -> None:
        """Wait until `whole` is there, so that the parameters can be used."""
        self.gather()
        self.arrived()

    def arrived(self) -> None:
        """Wait for a gather that is under way, if one is."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None

    def free(self) -> None:
        """Give the memory of `whole` back. Parameters, and what autograd has saved of them, find it
        there again after a gather."""
        if self._gathering is not None:
            self.gathered()
        self.whole.untyped_storage().resize_(0)

    @torch.no_grad()
    def flat_gradient(self) -> Tensor:
        """All gradients in one buffer like `whole`, in the type in which they travel. The
        parameters' own gradients are dropped."""
        gradients = [
            torch.zeros_like(p, dtype=self.reduce_type) if p.grad is None else p.grad
            for p in self.parameters
        ]
        gradients.append(self.whole.new_zeros(self.padding, dtype=self.reduce_type))
        for parameter in self.parameters:
            parameter.grad = None
        return torch.cat([gradient.to(self.reduce_type).flatten() for gradient in gradients])

    def reduce(self) -> None:
        """Start to reduce the gradients to the ranks that own them."""
        self._reducing = self.group.reduce_scatter(self.flat_gradient())

    def reduced(self) -> None:
        """Wait for the reduction, and add the mean to `gradient`."""
        if self._reducing is not None:
            mean = self._reducing.wait().div_(self.group.size)
            self._reducing = None
            self.gradient = mean if self.gradient is None else self.gradient.add_(mean)

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
