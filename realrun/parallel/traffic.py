"""The collectives of one group of ranks, counted as they are issued."""

from collections import Counter

import torch.distributed as dist

from simlab.collectives import busbw_factor

# torch 2.13 renamed them
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Collectives:
    """The collectives of `group` (None: all ranks). Each starts at once and returns a work whose `wait()` ends it.

    calls:        {kind: how many}, kind one of all-reduce, all-gather, reduce-scatter, broadcast.
    buffer_bytes: {kind: bytes of whole buffers, S}, as nccl-tests count them: what every rank has in the end (all-gather) or at
                  first (reduce-scatter), the tensor itself of the others.

    All ranks of a group must issue the same collectives in the same order: the caller's to keep.
    """

    def __init__(self, group=None):
        self.group = group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.forget()

    def forget(self):
        """Count from zero again."""
        self.calls, self.buffer_bytes = Counter(), Counter()

    @property
    def volume_bytes(self):
        """{kind: bytes that each rank sends} where the collectives run as rings (a broadcast: as a pipeline).

        2(n-1)/n S an all-reduce, (n-1)/n S an all-gather or reduce-scatter, S a broadcast: `simlab.collectives.busbw_factor`. What
        gloo sends is another matter: its reduce-scatter is an all-reduce and a copy.
        """
        return {kind: busbw_factor(kind, self.ranks) * size for kind, size in self.buffer_bytes.items()}

    def all_reduce(self, tensor, op=dist.ReduceOp.SUM):
        """`tensor` becomes the sum (or `op`) of all ranks' tensors."""
        self._count("all-reduce", tensor)
        return dist.all_reduce(tensor, op=op, group=self.group, async_op=True)

    def all_gather(self, whole, part):
        """`whole`, of ranks x part, becomes all ranks' parts in their order. `part` may be this rank's place in it."""
        self._count("all-gather", whole)
        return _ALL_GATHER(whole, part, group=self.group, async_op=True)

    def reduce_scatter(self, part, whole):
        """`part` becomes this rank's part of the sum of all ranks' `whole`."""
        self._count("reduce-scatter", whole)
        return _REDUCE_SCATTER(part, whole, group=self.group, async_op=True)

    def broadcast(self, tensor):
        """`tensor` becomes that of the group's first rank."""
        self._count("broadcast", tensor)
        return dist.broadcast(tensor, group=self.group, group_src=0, async_op=True)

    def _count(self, kind, whole):
        self.calls[kind] += 1
        self.buffer_bytes[kind] += whole.nbytes
