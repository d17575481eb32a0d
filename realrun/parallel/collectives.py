"""Collectives carried out on messages: the rounds of `simlab.collectives`, sent with isend and irecv.

`simlab.engine.network.run_rounds` times rounds on links, `run_rounds` here executes the very same object. It sends over
`realrun.channels.Channels`, so links can be paced: then ring, tree and hierarchical take what their closed forms say.
"""

from math import prod

import torch

from realrun.parallel.group import Group, nothing_to_do, part
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

    Its `Sent.sent_bytes` are those of its rounds: of a broadcast's tree the first rank sends the most, half of the ranks nothing.

    channels: this rank's `Channels`, used by nothing else (messages are matched by their order).
    all_reduce_rounds: (ranks, bytes) → rounds. Nothing overlaps: a method returns when its collective is done; `shift` alone is begun
    and waited for later.
    """

    def __init__(self, dimension, ranks, rank, channels, traffic=None, all_reduce_rounds=ring_all_reduce):
        super().__init__(dimension, ranks, rank, None, traffic)
        self.channels, self.all_reduce_rounds = channels, all_reduce_rounds

    def all_reduce(self, tensor, operation="sum"):
        """See `Group`."""
        flat = tensor.contiguous()
        sent_bytes = all_reduce(flat, self.all_reduce_rounds(self.ranks, tensor.nbytes), self.channels, operation)
        return self._done(tensor if flat is tensor else tensor.copy_(flat), "all_reduce", tensor.nbytes, sent_bytes)

    def broadcast(self, tensor):
        """See `Group`."""
        flat = tensor.contiguous()
        sent_bytes = broadcast_from(flat, self.ranks, self.channels)
        return self._done(tensor if flat is tensor else tensor.copy_(flat), "broadcast", tensor.nbytes, sent_bytes)

    def all_gather(self, tensor, dim=0, out=None):
        """See `Group`."""
        whole, sent_bytes = all_gather(tensor, self.ranks, self.channels, out)
        return self._done(torch.cat(list(whole), dim) if dim else whole.flatten(0, 1), "all_gather", whole.nbytes, sent_bytes)

    def reduce_scatter(self, tensor, dim=0):
        """See `Group`."""
        part(tensor.shape[dim], self, "size")
        mine, sent_bytes = reduce_scatter(torch.stack(tensor.chunk(self.size, dim)), self.ranks, self.channels)
        return self._done(mine, "reduce_scatter", tensor.nbytes, sent_bytes)

    def all_to_all(self, tensor):
        """See `Group`."""
        received, sent_bytes = all_to_all_rows(tensor, self.ranks, self.channels)
        return self._done(received, "all_to_all", tensor.nbytes, sent_bytes)

    def shift(self, tensor):
        """See `Group`."""
        if self.size == 1:
            return super().shift(tensor)
        form = self.ranks[self.place - 1], tensor.shape, tensor.dtype
        posted = self.channels.post_receive(*form)
        self.channels.send(tensor, self.ranks[(self.place + 1) % self.size])

        def arrived():
            received = self.channels.complete(*posted, *form[1:])
            self.channels.finish_sending()  # a send that is dropped before it is done never arrives
            return received

        return self._pending([], arrived, "ring", tensor.nbytes)

    def _done(self, result, kind, size_bytes, sent_bytes):
        return nothing_to_do(result) if self.size == 1 else self._pending([], lambda: result, kind, size_bytes, sent_bytes)
