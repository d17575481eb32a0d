"""Collectives carried out on messages: the rounds of `simlab.collectives`, sent with isend and
irecv.

`simlab.engine.network.run_rounds` times rounds on links, and `run_rounds` here executes the very
same rounds. It sends over `realrun.comm.channels.Channels`, whose links can be paced: then ring,
tree and hierarchical collectives take as long as their closed forms say.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from realrun.comm.channels import Channels
from simlab.collectives import (
    Transfer,
    all_to_all,
    broadcast,
    ring_all_gather,
    ring_reduce_scatter,
)

Part = Hashable
"""The name of a part of the data, as `Transfer.parts` has it: p, or (p, piece of p)."""
Rounds = Sequence[Sequence[Transfer]]
COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sum": torch.add, "max": torch.maximum}


def run_rounds(
    rounds: Rounds,
    parts: Mapping[Any, Tensor],
    channels: Channels,
    *,
    combine: Callable[[Tensor, Tensor], Tensor] = torch.add,
    landing: Callable[[Transfer], list[Tensor]] | None = None,
) -> int:
    """Carry out this rank's share of `rounds`, and return the bytes that it sent. All ranks that
    the rounds name call it.

    parts:   {name of a part, as `Transfer.parts` has it: 1-D tensor}; they are changed in place.
    combine: function of a part and what arrives for it, used where the transfer `adds`.
    landing: function of a transfer that returns the tensors into which what it brings is put; None:
             the parts of the same names.

    As in simlab, a rank begins a round when all that the round before brings has arrived, and its
    own sends of that round are done. Receives are posted before sends, and both before anything is
    waited for, so facing messages never wait for each other.
    """
    into_of = landing or (lambda t: [parts[name] for name in t.parts])
    sent_bytes = 0
    for transfers in rounds:
        arriving = [
            _post_receive(channels, t, into_of(t))
            for t in transfers
            if t.destination == channels.rank
        ]
        for t in transfers:
            if t.source == channels.rank:
                # a copy: what arrives meanwhile does not change it
                message = torch.cat([parts[name] for name in t.parts])
                if message.numel():
                    channels.send(message, t.destination)
                    sent_bytes += message.nbytes
        contents = [channels.complete(*posted) if posted else None for _, _, posted in arriving]
        channels.finish_sending()
        for (t, into, _), content in zip(arriving, contents):
            if content is not None:
                for tensor, piece in zip(into, content.split([tensor.numel() for tensor in into])):
                    tensor.copy_(combine(tensor, piece) if t.adds else piece)
    return sent_bytes


def _post_receive(
    channels: Channels, transfer: Transfer, into: list[Tensor]
) -> tuple[Transfer, list[Tensor], tuple[Any, ...] | None]:
    """(transfer, tensors to fill, the arguments of `Channels.complete`). The last is None where
    there is nothing to receive."""
    shape, dtype = (sum(tensor.numel() for tensor in into),), into[0].dtype
    return (
        transfer,
        into,
        (*channels.post_receive(transfer.source, shape, dtype), shape, dtype)
        if prod(shape)
        else None,
    )


def parts_of(flat: Tensor, rounds: Rounds) -> dict[Part, Tensor]:
    """{name: view} of `flat`, 1-D, cut evenly as the names of the parts in `rounds` tell."""
    names = {name for transfers in rounds for t in transfers for name in t.parts}
    return _cut(flat, sorted(name if isinstance(name, tuple) else (name,) for name in names), names)


def _cut(flat: Tensor, paths: list[tuple[int, ...]], names: set[Any]) -> dict[Part, Tensor]:
    if not paths or not paths[0]:
        return {}
    pieces = flat.tensor_split(max(path[0] for path in paths) + 1)
    if len(paths[0]) == 1:
        return {path[0]: pieces[path[0]] for path in paths}
    whole = max(path[1] for path in paths) + 1
    return {path: pieces[path[0]].tensor_split(whole)[path[1]] for path in paths}


def star_all_reduce(ranks: Sequence[int], size_bytes: float) -> list[list[Transfer]]:
    """The rounds of the naive all-reduce: every rank sends everything to the first one, which adds
    and sends the sum back. Its one link carries 2 (n-1) S."""
    up = [Transfer(rank, ranks[0], size_bytes, (0,), True) for rank in ranks[1:]]
    return [up, [Transfer(t.destination, t.source, size_bytes, t.parts) for t in up]]


def all_reduce(tensor: Tensor, rounds: Rounds, channels: Channels, operation: str = "sum") -> int:
    """`tensor`, contiguous, becomes the sum of all ranks' tensors, or their maximum where
    `operation` is 'max', by the `rounds` of any all-reduce. Returns the bytes that this rank
    sent."""
    flat = tensor.view(-1)
    return run_rounds(rounds, parts_of(flat, rounds), channels, combine=COMBINE[operation])


def all_gather(
    tensor: Tensor, ranks: Sequence[int], channels: Channels, out: Tensor | None = None
) -> tuple[Tensor, int]:
    """((n, ...): the tensors of all `ranks`, bytes sent), round a ring. out: the contiguous tensor
    to put them in."""
    whole = (tensor.new_empty(len(ranks) * tensor.numel()) if out is None else out).view(
        len(ranks), *tensor.shape
    )
    whole[ranks.index(channels.rank)] = tensor
    rows = whole.view(len(ranks), -1)
    return whole, run_rounds(ring_all_gather(ranks, whole.nbytes), dict(enumerate(rows)), channels)


def reduce_scatter(tensor: Tensor, ranks: Sequence[int], channels: Channels) -> tuple[Tensor, int]:
    """(this rank's row of the sum of all `ranks`' tensors (n, ...), bytes sent), round a ring. A
    rank sends S (n-1)/n, half of what it sends in an all-reduce.

    The ring of simlab leaves part r + 1 on rank r, so row r is called part r + 1.
    """
    n = len(ranks)
    rows = tensor.clone(memory_format=torch.contiguous_format).view(n, -1)
    sent_bytes = run_rounds(
        ring_reduce_scatter(ranks, tensor.nbytes),
        {(r + 1) % n: rows[r] for r in range(n)},
        channels,
    )
    return rows[ranks.index(channels.rank)].view(tensor.shape[1:]), sent_bytes


def broadcast_from(tensor: Tensor, ranks: Sequence[int], channels: Channels) -> int:
    """`tensor`, contiguous, becomes that of the first of `ranks`, down a binomial tree. Returns the
    bytes that this rank sent."""
    return run_rounds(broadcast(ranks, tensor.nbytes), {0: tensor.view(-1)}, channels)


def all_to_all_rows(tensor: Tensor, ranks: Sequence[int], channels: Channels) -> tuple[Tensor, int]:
    """((n, ...): from each rank its row for this one, bytes sent), pairwise: in round k with the
    ranks k places away."""
    n, mine = len(ranks), ranks.index(channels.rank)
    tensor = tensor.contiguous()
    received = torch.empty_like(tensor)
    received[mine] = tensor[mine]
    source = {rank: received.view(n, -1)[place] for place, rank in enumerate(ranks)}
    parts = dict(enumerate(tensor.view(n, -1)))
    return received, run_rounds(
        all_to_all(ranks, tensor.nbytes), parts, channels, landing=lambda t: [source[t.source]]
    )
