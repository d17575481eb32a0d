"""Messages between ranks: isend and irecv, matched by order alone.

No tags, and never a blocking send: gloo's waits for its receive, so two facing ones would deadlock. There are two
process groups, one for messages to a higher rank and one for messages to a lower one. So each pair of ranks talks
in one direction only within a group, and a backend that runs a pair's messages one after the other (NCCL does)
cannot put a send and a receive that wait for each other into one queue.
"""

import time
from collections import deque

import torch
import torch.distributed as dist

from realrun.clock import now

WINDOW = 2  # receives posted ahead: one being used, one arriving
STAMP_BYTES = 8


class Channels:
    """This rank's ends of all links. `pace` is None or (latency_s, bytes_per_s or None)."""

    def __init__(self, rank, device, groups, *, clock_offset_s=0.0, pace=None):
        self.rank = rank
        self.device = device
        self.groups = groups  # {+1: to higher ranks, -1: to lower ranks}
        self.clock_offset_s = clock_offset_s
        self.pace = pace
        self._free_at_s = {}  # by destination: when its paced link has sent all bits
        self._sending = deque()  # (work, buffer): a buffer must live until its send is done

    def connect(self, pairs):
        """Exchange one message each way between the ranks of each pair; called by all ranks, with the same pairs.

        NCCL makes a pair's connection at its first message, and the caller stands still until the other side is there
        too. So that happens here, in one order on all ranks, and not where a receive is posted ahead.
        """
        for pair in pairs:
            for source, destination in (pair, pair[::-1]):
                if self.rank == source:
                    self.send(torch.zeros(1, device=self.device), destination)
                elif self.rank == destination:
                    self.inbox(source, ["hello"], (1,), torch.float32).take("hello")
        self.finish_sending()

    def send(self, tensor, destination):
        """Post `tensor` to `destination` and return at once."""
        group = self.groups[1 if destination > self.rank else -1]
        buffer = tensor.contiguous() if self.pace is None else self._stamped(tensor, destination)
        self._sending.append((dist.isend(buffer, destination, group=group), buffer))
        while self._sending and self._sending[0][0].is_completed():
            self._sending.popleft()

    def finish_sending(self):
        """Wait until every posted send is done."""
        while self._sending:
            self._sending.popleft()[0].wait()

    def inbox(self, source, messages, shape, dtype):
        """The messages that `source` will send, in the order in which it sends them; all of one shape and type."""
        return Inbox(self, source, messages, shape, dtype)

    def post_receive(self, source, shape, dtype):
        """(work, buffer) of the next message from `source`."""
        group = self.groups[1 if source < self.rank else -1]
        if self.pace is None:
            buffer = torch.empty(shape, dtype=dtype, device=self.device)
        else:
            size = torch.Size(shape).numel() * dtype.itemsize
            buffer = torch.empty(STAMP_BYTES + size, dtype=torch.uint8)
        return dist.irecv(buffer, source, group=group), buffer

    def complete(self, work, buffer, shape, dtype):
        """The tensor of a posted receive, once it is there (and, on a paced link, once its time has come)."""
        work.wait()
        if self.pace is None:
            return buffer
        arrival_s = buffer[:STAMP_BYTES].view(torch.float64).item() - self.clock_offset_s
        time.sleep(max(0.0, arrival_s - now()))
        return buffer[STAMP_BYTES:].view(dtype).view(shape)

    def _stamped(self, tensor, destination):
        """The payload behind its arrival time on rank 0's clock: the pace of the link, one message at a time."""
        latency_s, bytes_per_s = self.pace
        start_s = max(now(), self._free_at_s.get(destination, 0.0))
        self._free_at_s[destination] = start_s + (tensor.nbytes / bytes_per_s if bytes_per_s else 0.0)
        buffer = torch.empty(STAMP_BYTES + tensor.nbytes, dtype=torch.uint8)
        buffer[:STAMP_BYTES].view(torch.float64)[0] = self._free_at_s[destination] + latency_s + self.clock_offset_s
        buffer[STAMP_BYTES:] = tensor.contiguous().view(torch.uint8).flatten()
        return buffer


class Inbox:
    """Receives from one rank, posted `WINDOW` ahead in its sending order, handed out by message name."""

    def __init__(self, channels, source, messages, shape, dtype):
        self._channels = channels
        self._source = source
        self._expected = deque(messages)
        self._form = (shape, dtype)
        self._posted = deque()  # (message, work, buffer)
        self._arrived = {}
        self._post()

    def take(self, message):
        """The tensor called `message`: waits for it, keeping what comes before it."""
        while message not in self._arrived:
            name, work, buffer = self._posted.popleft()
            self._arrived[name] = self._channels.complete(work, buffer, *self._form)
            self._post()
        return self._arrived.pop(message)

    def _post(self):
        while self._expected and len(self._posted) < WINDOW:
            self._posted.append((self._expected.popleft(), *self._channels.post_receive(self._source, *self._form)))
