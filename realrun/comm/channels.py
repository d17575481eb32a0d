"""Messages between ranks by isend and irecv, which are matched by their order alone.

There are no tags, and never a blocking send: gloo's send waits for its receive, so two ranks that
send to each other would deadlock. There are two process groups, one for messages to a higher rank
and one for messages to a lower rank. So each pair of ranks talks in one direction only within a
group, and a backend that runs a pair's messages one after the other, as NCCL does, cannot put a
send and a receive that wait for each other into one queue.
"""

import time
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from realrun.comm.clock import now

Pace = tuple[float, float | None]
"""(latency in s, bytes per s) of a paced link; None: its bandwidth is not limited."""
WINDOW = 2  # receives posted ahead: one being used, one arriving
STAMP_BYTES = 8


class Channels:
    """This rank's ends of all links.

    groups: {+1: the process group of messages to higher ranks, -1: of those to lower ranks}.
    clock_offset_s: what this rank's clock lacks to rank 0's. pace: on paced links, a message
    arrives when its latency and its bytes' time are over; None: links are as fast as they are.
    """

    def __init__(
        self,
        rank: int,
        device: torch.device,
        groups: dict[int, dist.ProcessGroup],
        *,
        clock_offset_s: float = 0.0,
        pace: Pace | None = None,
    ) -> None:
        self.rank = rank
        self.device = device
        self.groups = groups  # {+1: to higher ranks, -1: to lower ranks}
        self.clock_offset_s = clock_offset_s
        self.pace = pace
        # by destination: when its paced link has sent all bits
        self._free_at_s: dict[int, float] = {}
        # (work, buffer): a buffer must live until its send is done
        self._sending: deque[tuple[Any, Tensor]] = deque()

    def connect(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Exchange one message each way between the ranks of each pair. All ranks call it, with the
        same pairs.

        NCCL makes a pair's connection at its first message, and the caller stands still until the
        other side is there, too. So that happens here, in one order on all ranks, and not where a
        receive is posted ahead.
        """
        for pair in pairs:
            for source, destination in (pair, pair[::-1]):
                if self.rank == source:
                    self.send(torch.zeros(1, device=self.device), destination)
                elif self.rank == destination:
                    self.inbox(source, ["hello"], (1,), torch.float32).take("hello")
        self.finish_sending()

    def send(self, tensor: Tensor, destination: int) -> None:
        """Post `tensor` to `destination` and return at once."""
        group = self.groups[1 if destination > self.rank else -1]
        buffer = (
            tensor.contiguous()
            if self.pace is None
            else self._stamped(tensor, destination, self.pace)
        )
        self._sending.append((dist.isend(buffer, destination, group=group), buffer))
        while self._sending and self._sending[0][0].is_completed():
            self._sending.popleft()

    def finish_sending(self) -> None:
        """Wait until every posted send is done."""
        while self._sending:
            self._sending.popleft()[0].wait()

    def inbox(
        self, source: int, messages: Iterable[Hashable], shape: Sequence[int], dtype: torch.dtype
    ) -> "Inbox":
        """The messages that `source` will send, in the order in which it sends them. All have one
        shape and type."""
        return Inbox(self, source, messages, shape, dtype)

    def post_receive(
        self, source: int, shape: Sequence[int], dtype: torch.dtype
    ) -> tuple[Any, Tensor]:
        """Post the receive of the next message from `source`, and return its (work, buffer)."""
        group = self.groups[1 if source < self.rank else -1]
        if self.pace is None:
            buffer = torch.empty(shape, dtype=dtype, device=self.device)
        else:
            size = torch.Size(shape).numel() * dtype.itemsize
            buffer = torch.empty(STAMP_BYTES + size, dtype=torch.uint8)
        return dist.irecv(buffer, source, group=group), buffer

    def complete(
        self, work: Any, buffer: Tensor, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """The tensor of a posted receive, once it is there and, on a paced link, once its time has
        come."""
        work.wait()
        if self.pace is None:
            return buffer
        arrival_s = buffer[:STAMP_BYTES].view(torch.float64).item() - self.clock_offset_s
        time.sleep(max(0.0, arrival_s - now()))
        return buffer[STAMP_BYTES:].view(dtype).view(shape)

    def _stamped(self, tensor: Tensor, destination: int, pace: Pace) -> Tensor:
        """The payload behind the time at which it arrives, on rank 0's clock. A link carries one
        message at a time."""
        latency_s, bytes_per_s = pace
        start_s = max(now(), self._free_at_s.get(destination, 0.0))
        self._free_at_s[destination] = start_s + (
            tensor.nbytes / bytes_per_s if bytes_per_s else 0.0
        )
        buffer = torch.empty(STAMP_BYTES + tensor.nbytes, dtype=torch.uint8)
        buffer[:STAMP_BYTES].view(torch.float64)[0] = (
            self._free_at_s[destination] + latency_s + self.clock_offset_s
        )
        buffer[STAMP_BYTES:] = tensor.contiguous().view(torch.uint8).flatten()
        return buffer


class Inbox:
    """The receives from one rank. They are posted `WINDOW` ahead in the order of sending, and are
    handed out by the name of the message."""

    def __init__(
        self,
        channels: Channels,
        source: int,
        messages: Iterable[Hashable],
        shape: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        self._channels = channels
        self._source = source
        self._expected = deque(messages)
        self._form = (shape, dtype)
        self._posted: deque[tuple[Hashable, Any, Tensor]] = deque()  # (message, work, buffer)
        self._arrived: dict[Hashable, Tensor] = {}
        self._post()

    def take(self, message: Hashable) -> Tensor:
        """The tensor called `message`. It waits for that, and keeps what comes before it."""
        while message not in self._arrived:
            name, work, buffer = self._posted.popleft()
            self._arrived[name] = self._channels.complete(work, buffer, *self._form)
            self._post()
        return self._arrived.pop(message)

    def _post(self) -> None:
        while self._expected and len(self._posted) < WINDOW:
            self._posted.append(
                (self._expected.popleft(), *self._channels.post_receive(self._source, *self._form))
            )
