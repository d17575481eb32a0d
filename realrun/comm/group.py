"""The ranks that communicate with each other, and a ledger of what this rank sends in their
collectives."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from realrun.comm.clock import now
from simlab.collectives import busbw_factor
from simlab.errors import InputError, near

# torch 2.13 renamed them
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Mark = tuple[Any, ...] | None
"""What an `Observer` returns when a communication begins. Only the observer looks into it."""
OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Sent(NamedTuple):
    """One communication, as one rank saw it."""

    kind: str
    """'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'broadcast', or 'ring': a message
    to the next rank (simlab's names)."""
    dimension: str
    """Of the group: 'tp', 'cp', ..."""
    size_bytes: int
    """The whole buffer S, as `simlab.lowering.kernels.Communication` counts: what a rank has in the
    end (all-gather) or has at first."""
    sent_bytes: float
    """What this rank sends: n ranks' S (n-1)/n, twice that in an all-reduce, all of S in a
    broadcast or to the next rank."""
    start_s: float
    end_s: float
    """When it was begun, and when its result had been waited for (on CUDA: queued): it may have
    been done before that."""


class Observer:
    """It is told of a group's communications as they happen. This one does nothing;
    `realrun.run.conformance.Conformance` is one that does."""

    def begins(self, dimension: str, kind: str, size_bytes: int) -> Mark:
        """A communication is about to begin. What this method returns comes back with `waits` and
        `ended`."""

    def seconds(self, begun: Mark) -> float | None:
        """The seconds that the communication shall take on links that can be paced. None: as long
        as it takes."""

    def waits(self, begun: Mark) -> None:
        """The communication's result is needed now."""

    def ended(self, begun: Mark, done_s: float | None = None) -> None:
        """The communication's result is there, and has been since `done_s`. None: since when is not
        known."""


class Begun(NamedTuple):
    """What a group knows of a communication that it has begun."""

    mark: Mark
    """What the observer returned."""
    kind: str
    """See `Sent`."""
    size_bytes: int
    """See `Sent`."""
    start_s: float
    """When it began, on this rank's clock."""


class Pending:
    """A communication that was begun. `wait` returns its result, and must be called once."""

    def __init__(
        self,
        works: Iterable[Any],
        result: Callable[[], Tensor],
        waits: Callable[[], None] = lambda: None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self._works, self._result, self._waits, self._done = works, result, waits, done

    def wait(self) -> Tensor:
        """Wait until the communication is done, and return its result."""
        self._waits()
        for work in self._works:
            work.wait()
        result = self._result()
        self._done()
        return result


class Group:
    """The ranks of one group of `dimension`, which use torch's own collectives. Each method begins
    its work and returns a `Pending`.

    ranks:         global rank of each member, the same list on all of them. `place` is the index of
                   this rank in it.
    process_group: torch's group of those ranks in that order; None: that of all ranks.
    traffic:       list to which a `Sent` is added when a communication has ended. A rank by itself
                   sends nothing, and adds none.
    observer:      an `Observer`.

    All ranks of a group must issue the same collectives in the same order; the caller must keep to
    that. `InputError` where `rank` is not in `ranks`, and where a tensor cannot be cut evenly.

    `Sent.sent_bytes` is what a ring sends, or in a broadcast a pipeline. gloo's reduce_scatter is
    an all-reduce and a copy, and it sends twice that: on 4 ranks the loopback's own counters say
    1.50 S each, where a ring sends 0.75 S. So never time it as half of an all-reduce.
    `realrun.comm.rounds_group.RoundsGroup` executes a true one.
    """

    def __init__(
        self,
        dimension: str,
        ranks: Sequence[int],
        rank: int,
        process_group: dist.ProcessGroup | None = None,
        traffic: list[Sent] | None = None,
    ) -> None:
        if rank not in ranks:
            raise InputError(
                f"rank {rank} is not in this {dimension} group, which has {', '.join(map(str, ranks))}"
            )
        self.dimension, self.ranks, self.rank = dimension, list(ranks), rank
        self.size, self.place = len(self.ranks), self.ranks.index(rank)
        self.process_group = process_group
        self.traffic: list[Sent] = [] if traffic is None else traffic
        self.observer = Observer()

    def close(self) -> None:
        """End the process group. All its ranks call it together."""
        if self.process_group is not None:
            dist.destroy_process_group(self.process_group)

    def all_reduce(self, tensor: Tensor, operation: str = "sum") -> Pending:
        """`tensor` becomes the sum of all ranks' tensors, or their maximum where `operation` is
        'max'. It is the result."""
        if self.size == 1:
            return nothing_to_do(tensor)
        begun = self._begins("all_reduce", tensor.nbytes)
        work = dist.all_reduce(
            tensor, OPERATIONS[operation], group=self.process_group, async_op=True
        )
        return self._pending(begun, [work], lambda: tensor)

    def broadcast(self, tensor: Tensor) -> Pending:
        """`tensor` becomes that of the group's first rank. It is the result."""
        if self.size == 1:
            return nothing_to_do(tensor)
        begun = self._begins("broadcast", tensor.nbytes)
        work = dist.broadcast(tensor, group=self.process_group, group_src=0, async_op=True)
        return self._pending(begun, [work], lambda: tensor)

    def all_gather(self, tensor: Tensor, dim: int = 0, out: Tensor | None = None) -> Pending:
        """The tensors of all ranks, which have one shape, one after the other along `dim`.

        out: for `dim` 0 only, the contiguous tensor that becomes the result. `tensor` may be this
        rank's part of it.
        """
        if self.size == 1:
            return nothing_to_do(tensor if out is None else out.copy_(tensor))
        tensor = tensor.contiguous()
        whole = (
            tensor.new_empty(self.size * tensor.shape[0], *tensor.shape[1:]) if out is None else out
        )
        begun = self._begins("all_gather", whole.nbytes)
        work = ALL_GATHER(whole, tensor, group=self.process_group, async_op=True)
        return self._pending(
            begun, [work], lambda: torch.cat(whole.chunk(self.size), dim) if dim else whole
        )

    def reduce_scatter(self, tensor: Tensor, dim: int = 0) -> Pending:
        """This rank's part along `dim` of the sum of all ranks' tensors."""
        if self.size == 1:
            return nothing_to_do(tensor)
        parts, begun = self.cut(tensor, dim), self._begins("reduce_scatter", tensor.nbytes)
        whole = torch.cat(parts) if dim else tensor.contiguous()
        mine = tensor.new_empty(parts[0].shape)
        work = REDUCE_SCATTER(mine, whole, group=self.process_group, async_op=True)
        return self._pending(begun, [work], lambda: mine)

    def all_to_all(self, tensor: Tensor) -> Pending:
        """`tensor` is (n, ...) on n ranks: `tensor[k]` goes to the k-th rank, and in its place
        comes what that rank has for this one."""
        if self.size == 1:
            return nothing_to_do(tensor)
        tensor = tensor.contiguous()
        received, begun = torch.empty_like(tensor), self._begins("all_to_all", tensor.nbytes)
        work = dist.all_to_all_single(received, tensor, group=self.process_group, async_op=True)
        return self._pending(begun, [work], lambda: received)

    def shift(self, tensor: Tensor) -> Pending:
        """`tensor` goes to the next rank of the ring, and the result is what the rank before sent.
        Both are posted at once, because a blocking send to a rank that is sending, too, would wait
        for ever."""
        if self.size == 1:
            return nothing_to_do(tensor)
        tensor = tensor.contiguous()
        received = torch.empty_like(tensor)
        begun = self._begins("ring", tensor.nbytes)
        after, before = self.ranks[(self.place + 1) % self.size], self.ranks[self.place - 1]
        messages = [
            dist.P2POp(dist.isend, tensor, after, self.process_group),
            dist.P2POp(dist.irecv, received, before, self.process_group),
        ]
        return self._pending(begun, dist.batch_isend_irecv(messages), lambda: received)

    def cut(self, tensor: Tensor, dim: int, what: str = "size") -> tuple[Tensor, ...]:
        """The part of each rank of `tensor` along `dim`, as views. `what`: its name in an error."""
        part(tensor.shape[dim], self, what)
        return tensor.chunk(self.size, dim)

    def own(self, tensor: Tensor, dim: int) -> Tensor:
        """This rank's part of `tensor` along `dim`, a view."""
        return self.cut(tensor, dim)[self.place]

    def _begins(self, kind: str, size_bytes: int) -> Begun:
        """Tell the observer that a communication begins. Called just before it does."""
        mark = self.observer.begins(self.dimension, kind, size_bytes)
        return Begun(mark, kind, size_bytes, now())

    def _pending(self, begun: Begun, works: Iterable[Any], result: Callable[[], Tensor]) -> Pending:
        mark, kind, size_bytes, start_s = begun

        def done() -> None:
            sent_bytes = size_bytes * (
                1 if kind == "ring" else busbw_factor(kind.replace("_", "-"), self.size)
            )
            self.traffic.append(Sent(kind, self.dimension, size_bytes, sent_bytes, start_s, now()))
            self.observer.ended(mark)

        return Pending(works, result, lambda: self.observer.waits(mark), done)


def part(whole: int, group: Group, what: str) -> int:
    """`whole` / n, the part of one of the group's n ranks. `InputError` if that is no whole number;
    `what` names it there."""
    if whole % group.size:
        raise InputError(
            f"{what} = {whole} cannot be cut evenly over {group.size} {group.dimension} ranks; {near(group.size, whole)}"
        )
    return whole // group.size


def nothing_to_do(tensor: Tensor) -> Pending:
    """The communication of one rank with itself: its result is `tensor`."""
    return Pending((), lambda: tensor)
