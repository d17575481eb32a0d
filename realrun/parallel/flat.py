"""Parameters that travel together: a flat buffer that every rank owns an equal part of."""

import torch
from torch import nn

from simlab.errors import InputError


class FlatUnit:
    """`parameters` (of one layer, say) become views of one buffer `whole`, padded with zeros so that n ranks have equal parts.

    shard:  this rank's part, (ceil(numbers / n),), what the optimizer updates; its `grad` is the mean over all ranks and the sum over all
            backwards since the optimizer's last step. In the type `master`, which may be wider than the parameters' own.
    frees:  whether `whole` comes and goes (ZeRO-3). If not, and the types are the same, `shard` is a view of it and takes no memory.
    reduce: the type in which gradients travel; None: the parameters'.

    (FlatParameter of Zhao et al. 2023, "PyTorch FSDP", arXiv 2304.11277, section 3.2.2. FSDP2 instead cuts each parameter by rows, and pads
    those: the same bytes wherever n divides the rows.)
    """

    def __init__(self, name, parameters, group, *, master=torch.float32, frees=False, reduce=None):
        self.name, self.parameters, self.group = name, list(parameters), group
        self._check()
        self.frees, self.reduce_type = frees, reduce or self.parameters[0].dtype
        self.sizes, self.shapes = [p.numel() for p in self.parameters], [p.shape for p in self.parameters]
        self.part_size = -(-sum(self.sizes) // group.size)
        self.whole = self.parameters[0].detach().new_zeros(self.part_size * group.size)
        for parameter, view in zip(self.parameters, self.whole.split([*self.sizes, self.padding])):
            parameter.data = view.copy_(parameter.detach().flatten()).view_as(parameter)
        mine = group.own(self.whole, 0)
        self.is_view = not frees and mine.dtype == master
        self.shard = nn.Parameter(mine if self.is_view else mine.to(master, copy=True))
        self._gathering = self._reducing = None
        self._nbytes = self.whole.untyped_storage().nbytes()
        if frees:
            self.free()

    def _check(self):
        types = {p.dtype for p in self.parameters}
        if len(types) != 1:
            raise InputError(f"{self.name} has parameters of {', '.join(sorted(map(str, types)))}: give each type a layer of its own")
        if not all(p.requires_grad for p in self.parameters):
            raise InputError(f"{self.name} has frozen parameters: leave them out of the sharded module")

    @property
    def padding(self):
        """Numbers at the end that belong to no parameter; less than n."""
        return self.part_size * self.group.size - sum(self.sizes)

    @property
    def whole_bytes(self):
        """What `whole` takes now: all, or none when it is freed."""
        return self.whole.untyped_storage().nbytes()

    # parameters -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def gather(self):
        """Start to make `whole` of all ranks' shards. Nothing if that is under way, or done and `whole` was not freed since."""
        if self._gathering is None and not (self.frees and self.whole_bytes):
            if not self.whole_bytes:  # to the size that it has would be a copy to another place
                self.whole.untyped_storage().resize_(self._nbytes)
            self._gathering = self.group.all_gather(self.own_part(), out=self.whole)

    def own_part(self):
        """This rank's part, in the parameters' type."""
        return self.shard.detach().to(self.whole.dtype)

    def gathered(self):
        """Wait until `whole` is there: the parameters can be used."""
        self.gather()
        self.arrived()

    def arrived(self):
        """Wait for a gather that is under way, if one is."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None

    def free(self):
        """Give the memory of `whole` back; parameters, and what autograd has saved of them, find it there again after a gather."""
        if self._gathering is not None:
            self.gathered()
        self.whole.untyped_storage().resize_(0)

    # gradients --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def flat_gradient(self):
        """All gradients in one buffer like `whole`, in the type in which they travel; the parameters' own are dropped."""
        flat = self.whole.new_zeros(self.part_size * self.group.size, dtype=self.reduce_type)
        for parameter, place in zip(self.parameters, flat.split([*self.sizes, self.padding])):
            if parameter.grad is not None:
                place.copy_(parameter.grad.flatten())
                parameter.grad = None
        return flat

    def reduce(self):
        """Start to reduce the gradients to the ranks that own them."""
        self._reducing = self.group.reduce_scatter(self.flat_gradient())

    def reduced(self):
        """Wait for that, and add the mean to `shard.grad`."""
        if self._reducing is not None:
            part = self._reducing.wait()
            self._reducing = None
            self.add_gradient(part)

    def add_gradient(self, part):
        """Add this rank's part of a sum over all ranks, as a mean, to `shard.grad`."""
        mean = part.to(self.shard.dtype) / self.group.size
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad.add_(mean)
