"""Collectives carried out on messages: the rounds of `simlab.collectives`, sent with isend and irecv.

`simlab.engine.network.run_rounds` times rounds on links, `run_rounds` here executes the very same object. It sends over
`realrun.channels.Channels`, so links can be paced: then ring, tree and hierarchical take what their closed forms say.
"""

from concurrent.futures import ThreadPoolExecutor
from math import prod

import torch

from realrun.clock import now
from realrun.parallel.group import Group, Pending, Sent, nothing_to_do, part
from simlab.collectives import Transfer, all_to_all, broadcast, ring_all_gather, ring_all_reduce, ring_reduce_scatter

COMBINE = {"sum": torch.add, "max": torch.maximum}


def run_rounds(rounds, parts, channels, *, combine=torch.add, landing=None):
    """Carry out this rank's share of `rounds`; returns the bytes that it sent. Called by all ranks that the rounds name.

    parts:   {name of a part, as `Transfer.parts` has it: 1-D tensor}, changed in place.
    combine: of a part and what arrives for it, where the transfer `adds`.
    landing: Transfer → [tensors in which what it brings is put]; None: the parts of the same names.

    A rank begins a round when all of the one before has arrived and its own sends of that are done, as simlab has it. Receives are
    posted before sends, and both before anything is waited for: facing messages never wait for each other.
    """
    landing = landing or (lambda t: [parts[name] for name in t.parts])
    sent_bytes = 0
    for transfers in rounds:
        arriving = [_post_receive(channels, t, landing(t)) for t in transfers if t.destination == channels.rank]
        for t in transfers:
            if t.source == channels.rank:
                message = torch.cat([parts[name] for name in t.parts])  # a copy: what arrives meanwhile does not change it
                if message.numel():
                    channels.send(message, t.destination)
                    sent_bytes += message.nbytes
        contents = [channels.complete(*posted) if posted else None for _, _, posted in arriving]
        channels.finish_sending()
        for (t, into, posted), content in zip(arriving, contents):
            if posted:
                for tensor, piece in zip(into, content.split([tensor.numel() for tensor in into])):
                    tensor.copy_(combine(tensor, piece) if t.adds else piece)
    return sent_bytes


def _post_receive(channels, transfer, into):
    """(transfer, tensors to fill, what `Channels.complete` wants, or None if there is nothing to receive)."""
    shape, dtype = (sum(tensor.numel() for tensor in into),), into[0].dtype
    return transfer, into, (*channels.post_receive(transfer.source, shape, dtype), shape, dtype) if prod(shape) else None


def parts_of(flat, rounds):
    """{name: view} of `flat`, 1-D, cut evenly as the names of the parts in `rounds` tell: p, or (p, piece of p)."""
    names = {name for transfers in rounds for t in transfers for name in t.parts}
    return _cut(flat, sorted(name if isinstance(name, tuple) else (name,) for name in names), names)


def _cut(flat, paths, names):
    if not paths or not paths[0]:
        return {}
    pieces = flat.tensor_split(max(path[0] for path in paths) + 1)
    if len(paths[0]) == 1:
        return {path[0]: pieces[path[0]] for path in paths}
    whole = max(path[1] for path in paths) + 1
    return {path: pieces[path[0]].tensor_split(whole)[path[1]] for path in paths}


# the collectives ------------------------------------------------------------------------------------------


def star_all_reduce(ranks, size_bytes):
    """The naive one, as rounds: everybody sends everything to the first, which adds and sends it back: 2 (n-1) S over its one link."""
    up = [Transfer(rank, ranks[0], size_bytes, (0,), True) for rank in ranks[1:]]
    return [up, [Transfer(t.destination, t.source, size_bytes, t.parts) for t in up]]


def all_reduce(tensor, rounds, channels, operation="sum"):
    """`tensor`, contiguous, becomes the sum (or maximum) of all ranks' by `rounds`, those of any all-reduce. Returns bytes sent."""
    flat = tensor.view(-1)
    return run_rounds(rounds, parts_of(flat, rounds), channels, combine=COMBINE[operation])


def all_gather(tensor, ranks, channels, out=None):
    """((n, ...): the tensors of all `ranks`, bytes sent), round a ring. out: where to put them, contiguous."""
    whole = (tensor.new_empty(len(ranks) * tensor.numel()) if out is None else out).view(len(ranks), *tensor.shape)
    whole[ranks.index(channels.rank)] = tensor
    rows = whole.view(len(ranks), -1)
    return whole, run_rounds(ring_all_gather(ranks, whole.nbytes), dict(enumerate(rows)), channels)


def reduce_scatter(tensor, ranks, channels):
    """(this rank's row of the sum of all `ranks`' (n, ...), bytes sent), round a ring: S (n-1)/n, half of an all-reduce.

    The ring of simlab leaves part r + 1 on rank r: so row r is called part r + 1.
    """
    n, rows = len(ranks), tensor.clone(memory_format=torch.contiguous_format).view(len(ranks), -1)
    sent_bytes = run_rounds(ring_reduce_scatter(ranks, tensor.nbytes), {(r + 1) % n: rows[r] for r in range(n)}, channels)
    return rows[ranks.index(channels.rank)].view(tensor.shape[1:]), sent_bytes


def broadcast_from(tensor, ranks, channels):
    """`tensor`, contiguous, becomes that of the first of `ranks`, down a binomial tree. Returns bytes sent."""
    return run_rounds(broadcast(ranks, tensor.nbytes), {0: tensor.view(-1)}, channels)


def all_to_all_rows(tensor, ranks, channels):
    """((n, ...): from each rank its row for this one, bytes sent), pairwise: in round k with those k places away."""
    n, mine = len(ranks), ranks.index(channels.rank)
    received = torch.empty_like(tensor)
    received[mine] = tensor[mine]
    source = {rank: received.view(n, -1)[place] for place, rank in enumerate(ranks)}
    parts = dict(enumerate(tensor.contiguous().view(n, -1)))
    return received, run_rounds(all_to_all(ranks, tensor.nbytes), parts, channels, landing=lambda t: [source[t.source]])


class RoundsGroup(Group):
    """A `Group` whose collectives are those above: on paced channels they take a modelled link's time, and every byte is counted.

    They are carried out one after the other in a thread of the group's own, as a communicator's are on its stream, so that they overlap
    with what the caller does until it waits. Where the observer says how many seconds one shall take, each of its rounds takes an equal
    part of them. `Sent.sent_bytes` are those of the rounds: of a broadcast's tree the first rank sends the most, half of the ranks nothing.

    channels: this rank's `Channels`, used by nothing else (messages are matched by their order).
    all_reduce_rounds: (ranks, bytes) → rounds.
    """

    def __init__(self, dimension, ranks, rank, channels, traffic=None, all_reduce_rounds=ring_all_reduce):
        super().__init__(dimension, ranks, rank, None, traffic)
        self.channels, self.all_reduce_rounds = channels, all_reduce_rounds
        self._stream = ThreadPoolExecutor(1, f"{dimension} stream") if self.size > 1 else None

    def close(self):
        """End the thread."""
        if self._stream is not None:
            self._stream.shutdown()

    def all_reduce(self, tensor, operation="sum"):
        """See `Group`."""
        rounds = self.all_reduce_rounds(self.ranks, tensor.nbytes)

        def work():
            flat = tensor.contiguous()
            sent_bytes = all_reduce(flat, rounds, self.channels, operation)
            return tensor if flat is tensor else tensor.copy_(flat), sent_bytes

        return self._carry_out("all_reduce", tensor, work, len(rounds))

    def broadcast(self, tensor):
        """See `Group`."""

        def work():
            flat = tensor.contiguous()
            sent_bytes = broadcast_from(flat, self.ranks, self.channels)
            return tensor if flat is tensor else tensor.copy_(flat), sent_bytes

        return self._carry_out("broadcast", tensor, work, (self.size - 1).bit_length())

    def all_gather(self, tensor, dim=0, out=None):
        """See `Group`."""

        def work():
            whole, sent_bytes = all_gather(tensor.contiguous(), self.ranks, self.channels, out)
            return torch.cat(list(whole), dim) if dim else whole.flatten(0, 1), sent_bytes

        if self.size == 1:
            return super().all_gather(tensor, dim, out)
        return self._carry_out("all_gather", tensor, work, self.size - 1, times=self.size)

    def reduce_scatter(self, tensor, dim=0):
        """See `Group`."""
        part(tensor.shape[dim], self, "size")
        return self._carry_out(
            "reduce_scatter", tensor,
            lambda: reduce_scatter(torch.stack(tensor.chunk(self.size, dim)), self.ranks, self.channels), self.size - 1,
        )  # fmt: skip

    def all_to_all(self, tensor):
        """See `Group`."""
        return self._carry_out("all_to_all", tensor, lambda: all_to_all_rows(tensor, self.ranks, self.channels), self.size - 1)

    def shift(self, tensor):
        """See `Group`."""

        def work():
            form = self.ranks[self.place - 1], tensor.shape, tensor.dtype
            posted = self.channels.post_receive(*form)
            self.channels.send(tensor, self.ranks[(self.place + 1) % self.size])
            received = self.channels.complete(*posted, *form[1:])
            self.channels.finish_sending()  # a send that is dropped before it is done never arrives
            return received, tensor.nbytes

        return self._carry_out("ring", tensor, work, 1)

    def _carry_out(self, kind, tensor, work, rounds, times=1):
        """Begin `work`, which returns (result, bytes sent), behind what was begun before."""
        if self.size == 1:
            return nothing_to_do(tensor)
        begun = self._begins(kind, times * tensor.nbytes)
        seconds = self.observer.seconds(begun[0])

        @torch.no_grad()
        def paced():
            if seconds is not None:
                self.channels.pace = seconds / rounds, None
            return (*work(), now())

        return self._pending(begun, self._stream.submit(paced))

    def _pending(self, begun, future):
        """Of a future of (result, bytes sent, when it was done)."""
        mark, kind, size_bytes, start_s = begun

        def done():
            _, sent_bytes, done_s = future.result()
            self.traffic.append(Sent(kind, self.dimension, size_bytes, sent_bytes, start_s, now()))
            self.observer.ended(mark, done_s)

        return Pending((), lambda: future.result()[0], lambda: self.observer.waits(mark), done)
