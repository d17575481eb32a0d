"""A group whose collectives are rounds of messages, which can be paced."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from realrun.comm.channels import Channels
from realrun.comm.clock import now
from realrun.comm.group import Begun, Group, Pending, Sent, nothing_to_do, part
from realrun.comm.rounds import (
    Rounds,
    all_gather,
    all_reduce,
    all_to_all_rows,
    broadcast_from,
    reduce_scatter,
)
from simlab.collectives import ring_all_reduce


class RoundsGroup(Group):
    """A `Group` whose collectives are rounds of messages: on paced channels they take the time of a
    modelled link, and every byte is counted.

    They are carried out one after the other in a thread of the group's own, as a communicator's are
    on its stream, so that they overlap with what the caller does until it waits. Where the observer
    says how many seconds a collective shall take, each of its rounds takes an equal part of them.
    `Sent.sent_bytes` is what the rounds send: of a broadcast's tree the first rank sends the most,
    and half of the ranks send nothing.

    channels: this rank's `Channels`, which nothing else may use, because messages are matched by
    their order. all_reduce_rounds: function of (ranks, bytes) that returns the rounds of an
    all-reduce.
    """

    def __init__(
        self,
        dimension: str,
        ranks: Sequence[int],
        rank: int,
        channels: Channels,
        traffic: list[Sent] | None = None,
        all_reduce_rounds: Callable[[Sequence[int], float], Rounds] = ring_all_reduce,
    ) -> None:
        super().__init__(dimension, ranks, rank, None, traffic)
        self.channels, self.all_reduce_rounds = channels, all_reduce_rounds
        self._stream = ThreadPoolExecutor(1, f"{dimension} stream") if self.size > 1 else None

    def close(self) -> None:
        """End the thread."""
        if self._stream is not None:
            self._stream.shutdown()

    def all_reduce(self, tensor: Tensor, operation: str = "sum") -> Pending:
        """See `Group`."""
        rounds = self.all_reduce_rounds(self.ranks, tensor.nbytes)

        def work() -> tuple[Tensor, float]:
            flat = tensor.contiguous()
            sent_bytes = all_reduce(flat, rounds, self.channels, operation)
            return tensor if flat is tensor else tensor.copy_(flat), sent_bytes

        return self._carry_out("all_reduce", tensor, work, len(rounds))

    def broadcast(self, tensor: Tensor) -> Pending:
        """See `Group`."""

        def work() -> tuple[Tensor, float]:
            flat = tensor.contiguous()
            sent_bytes = broadcast_from(flat, self.ranks, self.channels)
            return tensor if flat is tensor else tensor.copy_(flat), sent_bytes

        return self._carry_out("broadcast", tensor, work, (self.size - 1).bit_length())

    def all_gather(self, tensor: Tensor, dim: int = 0, out: Tensor | None = None) -> Pending:
        """See `Group`."""

        def work() -> tuple[Tensor, float]:
            whole, sent_bytes = all_gather(tensor.contiguous(), self.ranks, self.channels, out)
            return torch.cat(list(whole), dim) if dim else whole.flatten(0, 1), sent_bytes

        if self.size == 1:
            return super().all_gather(tensor, dim, out)
        return self._carry_out("all_gather", tensor, work, self.size - 1, times=self.size)

    def reduce_scatter(self, tensor: Tensor, dim: int = 0) -> Pending:
        """See `Group`."""
        part(tensor.shape[dim], self, "size")
        return self._carry_out(
            "reduce_scatter",
            tensor,
            lambda: reduce_scatter(
                torch.stack(tensor.chunk(self.size, dim)), self.ranks, self.channels
            ),
            self.size - 1,
        )

    def all_to_all(self, tensor: Tensor) -> Pending:
        """See `Group`."""
        return self._carry_out(
            "all_to_all",
            tensor,
            lambda: all_to_all_rows(tensor, self.ranks, self.channels),
            self.size - 1,
        )

    def shift(self, tensor: Tensor) -> Pending:
        """See `Group`."""

        def work() -> tuple[Tensor, float]:
            form = self.ranks[self.place - 1], tensor.shape, tensor.dtype
            posted = self.channels.post_receive(*form)
            self.channels.send(tensor, self.ranks[(self.place + 1) % self.size])
            received = self.channels.complete(*posted, *form[1:])
            self.channels.finish_sending()  # a send that is dropped before it is done never arrives
            return received, tensor.nbytes

        return self._carry_out("ring", tensor, work, 1)

    def _carry_out(
        self,
        kind: str,
        tensor: Tensor,
        work: Callable[[], tuple[Tensor, float]],
        rounds: int,
        times: int = 1,
    ) -> Pending:
        """Begin `work`, which returns (result, bytes sent), behind what was begun before. times:
        how many times `tensor` the whole buffer is."""
        if self._stream is None:
            return nothing_to_do(tensor)
        begun = self._begins(kind, times * tensor.nbytes)
        seconds = self.observer.seconds(begun.mark)

        @torch.no_grad()
        def paced() -> tuple[Tensor, float, float]:
            if seconds is not None:
                self.channels.pace = seconds / rounds, None
            return (*work(), now())

        return self._pending_future(begun, self._stream.submit(paced))

    def _pending_future(
        self, begun: Begun, future: "Future[tuple[Tensor, float, float]]"
    ) -> Pending:
        """The `Pending` of a future of (result, bytes sent, when it was done)."""
        mark, kind, size_bytes, start_s = begun

        def done() -> None:
            _, sent_bytes, done_s = future.result()
            self.traffic.append(Sent(kind, self.dimension, size_bytes, sent_bytes, start_s, now()))
            self.observer.ended(mark, done_s)

        return Pending((), lambda: future.result()[0], lambda: self.observer.waits(mark), done)
