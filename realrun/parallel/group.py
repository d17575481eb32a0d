"""The ranks that communicate with each other, and a ledger of what this rank sends in their collectives."""

from typing import NamedTuple

import torch
import torch.distributed as dist

from realrun.clock import now
from simlab.collectives import busbw_factor
from simlab.errors import InputError
from simlab.plan import near

# torch 2.13 renamed them
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Sent(NamedTuple):
    """One communication, as one rank saw it."""

    kind: str
    """'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'broadcast', or 'ring': a message to the next rank (simlab's names)."""
    dimension: str
    """Of the group: 'tp', 'cp', ..."""
    size_bytes: int
    """The whole buffer S, as `simlab.cost.kernels.Communication` counts: what a rank has in the end (all-gather) or has at first."""
    sent_bytes: float
    """What this rank sends: n ranks' S (n-1)/n, twice that in an all-reduce, all of S in a broadcast or to the next rank."""
    start_s: float
    end_s: float
    """When it was begun, and when its result had been waited for (on CUDA: queued): it may have been done before that."""


class Observer:
    """Is told of a group's communications as they happen. This one does nothing: see `realrun.cursor.Cursor`."""

    def begins(self, dimension, kind, size_bytes):
        """Ahead of a communication; what is returned comes back with `waits` and `ended`."""

    def seconds(self, begun):
        """How long it shall take on links that can be paced; None: as long as it takes."""

    def waits(self, begun):
        """Its result is needed now."""

    def ended(self, begun, done_s=None):
        """Its result is there, and has been since `done_s` (None: not known)."""


class Pending:
    """A communication that was begun. `wait` returns its result; it must be called once."""

    def __init__(self, works, result, waits=lambda: None, done=lambda: None):
        self._works, self._result, self._waits, self._done = works, result, waits, done

    def wait(self):
        """The result."""
        self._waits()
        for work in self._works:
            work.wait()
        result = self._result()
        self._done()
        return result


class Group:
    """The ranks of one group of `dimension`, by torch's own collectives. Each method begins its work and returns a `Pending`.

    ranks:         [global rank of each member], the same list on all of them; `place` is this one's index in it.
    process_group: torch's, of those ranks in that order; None: of all ranks.
    traffic:       [`Sent`]: what this rank has sent is added at the end. A rank by itself sends nothing, which is not counted.
    observer:      an `Observer`.

    All ranks of a group must issue the same collectives in the same order: the caller's to keep.

    `Sent.sent_bytes` is what a ring sends, or in a broadcast a pipeline. gloo's reduce_scatter is an all-reduce and a copy and sends twice
    that (4 ranks, the loopback's own counters: 1.50 S each, a ring's is 0.75 S). So never time it as half an all-reduce;
    `realrun.parallel.collectives.RoundsGroup` executes a true one.
    """

    def __init__(self, dimension, ranks, rank, process_group=None, traffic=None):
        if rank not in ranks:
            raise InputError(f"rank {rank} is not in this {dimension} group, which has {', '.join(map(str, ranks))}")
        self.dimension, self.ranks, self.rank = dimension, list(ranks), rank
        self.size, self.place = len(self.ranks), self.ranks.index(rank)
        self.process_group = process_group
        self.traffic = [] if traffic is None else traffic
        self.observer = Observer()

    def close(self):
        """End the process group; by all its ranks together."""
        if self.process_group is not None:
            dist.destroy_process_group(self.process_group)

    def all_reduce(self, tensor, operation="sum"):
        """`tensor` becomes the sum (or maximum) of all ranks'; it is the result."""
        if self.size == 1:
            return nothing_to_do(tensor)
        begun = self._begins("all_reduce", tensor.nbytes)
        work = dist.all_reduce(tensor, OPERATIONS[operation], group=self.process_group, async_op=True)
        return self._pending(begun, [work], lambda: tensor)

    def broadcast(self, tensor):
        """`tensor` becomes that of the group's first rank; it is the result."""
        if self.size == 1:
            return nothing_to_do(tensor)
        begun = self._begins("broadcast", tensor.nbytes)
        work = dist.broadcast(tensor, group=self.process_group, group_src=0, async_op=True)
        return self._pending(begun, [work], lambda: tensor)

    def all_gather(self, tensor, dim=0, out=None):
        """The tensors of all ranks, which have one shape, one after the other along `dim`.

        out: for `dim` 0, what becomes the result, contiguous; `tensor` may be this rank's place in it.
        """
        if self.size == 1:
            return nothing_to_do(tensor if out is None else out.copy_(tensor))
        tensor = tensor.contiguous()
        whole = tensor.new_empty(self.size * tensor.shape[0], *tensor.shape[1:]) if out is None else out
        begun = self._begins("all_gather", whole.nbytes)
        work = ALL_GATHER(whole, tensor, group=self.process_group, async_op=True)
        return self._pending(begun, [work], lambda: torch.cat(whole.chunk(self.size), dim) if dim else whole)

    def reduce_scatter(self, tensor, dim=0):
        """This rank's part along `dim` of the sum of all ranks' tensors."""
        if self.size == 1:
            return nothing_to_do(tensor)
        parts, begun = self.cut(tensor, dim), self._begins("reduce_scatter", tensor.nbytes)
        mine, whole = tensor.new_empty(parts[0].shape), torch.cat(parts) if dim else tensor.contiguous()
        work = REDUCE_SCATTER(mine, whole, group=self.process_group, async_op=True)
        return self._pending(begun, [work], lambda: mine)

    def all_to_all(self, tensor):
        """(n, ...): `tensor[k]` goes to the k-th rank; in its place comes what that rank has for this one."""
        if self.size == 1:
            return nothing_to_do(tensor)
        tensor = tensor.contiguous()
        received, begun = torch.empty_like(tensor), self._begins("all_to_all", tensor.nbytes)
        work = dist.all_to_all_single(received, tensor, group=self.process_group, async_op=True)
        return self._pending(begun, [work], lambda: received)

    def shift(self, tensor):
        """`tensor` goes to the next rank of the ring; the result is what the rank before sent.

        Both are posted at once: a blocking send to a rank that is sending, too, would wait for ever.
        """
        if self.size == 1:
            return nothing_to_do(tensor)
        tensor, received = tensor.contiguous(), torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        begun = self._begins("ring", tensor.nbytes)
        after, before = self.ranks[(self.place + 1) % self.size], self.ranks[self.place - 1]
        messages = [dist.P2POp(dist.isend, tensor, after, self.process_group), dist.P2POp(dist.irecv, received, before, self.process_group)]
        return self._pending(begun, dist.batch_isend_irecv(messages), lambda: received)

    def cut(self, tensor, dim, what="size"):
        """[part of each rank] of `tensor` along `dim`, views."""
        part(tensor.shape[dim], self, what)
        return tensor.chunk(self.size, dim)

    def own(self, tensor, dim):
        """This rank's part of `tensor` along `dim`, a view."""
        return self.cut(tensor, dim)[self.place]

    def _begins(self, kind, size_bytes):
        """What is known of a communication when it begins; call it ahead of that."""
        mark = self.observer.begins(self.dimension, kind, size_bytes)
        return mark, kind, size_bytes, now()

    def _pending(self, begun, works, result):
        mark, kind, size_bytes, start_s = begun

        def done():
            sent_bytes = size_bytes * (1 if kind == "ring" else busbw_factor(kind.replace("_", "-"), self.size))
            self.traffic.append(Sent(kind, self.dimension, size_bytes, sent_bytes, start_s, now()))
            self.observer.ended(mark)

        return Pending(works, result, lambda: self.observer.waits(mark), done)


def part(whole, group, what):
    """`whole` / n, one rank's part; `InputError` if that is no whole number."""
    if whole % group.size:
        raise InputError(f"{what} = {whole} cannot be cut evenly over {group.size} {group.dimension} ranks; {near(group.size, whole)}")
    return whole // group.size


def nothing_to_do(tensor):
    """A communication of one rank with itself."""
    return Pending((), lambda: tensor)
