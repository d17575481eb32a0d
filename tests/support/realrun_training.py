"""What the tests of data parallelism share: one small GPT, its training in one process, and what is
sent, by torch and by our ledger."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from realrun.comm.group import Group
from realrun.model.gpt import Stage, loss
from realrun.model.text import batch

RANKS, STEPS, MICROBATCHES = 4, 20, 2  # microbatches of each rank in a step
SIZES = {"layers": 2, "hidden": 16, "heads": 2, "seq": 8}
SENT = {
    "allreduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "broadcast_": "broadcast",
}


def gpt(dtype=torch.float64, sizes=SIZES):
    """The whole model; the same weights on every rank."""
    return Stage(sizes, 0, 1).to(dtype)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=3e-3, fused=True)


def samples(step, rank=None, microbatches=MICROBATCHES):
    """[(tokens, targets)] of the microbatches of `rank` in a step; of None: all ranks' at once, as
    one batch."""
    tokens, targets = batch(step, RANKS * microbatches, 2, SIZES["seq"])
    if rank is None:
        return [(tokens.flatten(0, 1), targets.flatten(0, 1))]
    return list(zip(tokens, targets))[rank * microbatches : (rank + 1) * microbatches]


def backwards(model, samples, scale=1.0):
    """The mean loss of `samples`, of which each has had its backward."""
    total = 0.0
    for tokens, targets in samples:
        part = loss(model(tokens), targets) / len(samples)
        (part * scale).backward()
        total += part.item()
    return total


def train(model, step, rank=None, steps=STEPS, **options):
    """[mean loss of each step]; `step()` is called when the backwards of a step are done."""
    losses = []
    for number in range(steps):
        losses.append(backwards(model, samples(number, rank, **options)))
        step()
    return losses


def train_alone(sizes=SIZES, optimizer=adam):
    """(losses, model) of the same training in one process."""
    model = gpt(sizes=sizes)
    optimizer = optimizer(model.parameters())

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return train(model, step), model


def mean_over_ranks(values):
    """The mean of each of `values` over all ranks."""
    import torch.distributed as dist

    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return (total / dist.get_world_size()).tolist()


def distance(ours, theirs):
    """The largest relative difference ‖a - b‖ / ‖b‖ between tensors of the same place."""
    return max(
        ((a - b).norm() / b.norm().clamp(min=1e-12)).item()
        for a, b in zip(ours, theirs, strict=True)
    )


def everyone(rank):
    """The group of all ranks."""
    return Group("dp", range(RANKS), rank)


def counted(group):
    """What the group's ledger says, each {kind: number}: calls, bytes of whole buffers, bytes that
    this rank sent."""
    calls, buffers, sent = Counter(), Counter(), Counter()
    for one in group.traffic:
        calls[one.kind] += 1
        buffers[one.kind] += one.size_bytes
        sent[one.kind] += one.sent_bytes
    return calls, buffers, sent


class Seen(TorchDispatchMode):
    """Inside: [(kind, bytes of the whole buffer)] of the collectives that torch's dispatcher sees,
    ours and torch's own alike."""

    def __init__(self):
        super().__init__()
        self.collectives = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kind = SENT.get(function._schema.name.removeprefix("c10d::"))
        if kind:
            tensors = [argument for argument in args if isinstance(argument, torch.Tensor)] or args[
                0
            ]
            self.collectives.append((kind, max(tensor.nbytes for tensor in tensors)))
        return function(*args, **(kwargs or {}))

    @property
    def bytes(self):
        """{kind: bytes of whole buffers}"""
        return {
            kind: sum(size for one, size in self.collectives if one == kind)
            for kind, _ in self.collectives
        }
