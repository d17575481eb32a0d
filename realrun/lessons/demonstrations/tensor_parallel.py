"""Experiments on tensor parallelism: a layer, a block and a vocabulary cut over ranks, and clipping by
the norm of all parts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from realrun.comm.group import Group
from realrun.comm.mesh import Mesh
from realrun.lessons.demonstrations.data_parallel import spread
from realrun.model.gpt import Block
from realrun.parallel.clipping import clip
from realrun.parallel.layers.block import ParallelBlock
from realrun.parallel.layers.tensor import (
    ColumnLinear,
    RowLinear,
    VocabEmbedding,
    own_rows,
    reduce_from,
    vocab_cross_entropy,
)
from realrun.parallel.naive.tensor import GatheredLinear, gathered_cross_entropy


def split_mlp(mesh: Mesh, form: str) -> dict[str, Any]:
    """Two linear layers cut over tp, as `FORMS` has it: how far they are from the whole layers, and
    what travels in each pass."""
    group = mesh["tp"]
    torch.manual_seed(0)
    up, down = nn.Linear(32, 128).double(), nn.Linear(128, 32).double()
    x, dy = torch.randn(6, 32).double().requires_grad_(), torch.randn(6, 32).double()
    y = down(functional.gelu(up(x)))
    dx, dw = torch.autograd.grad(y, [x, up.weight], dy)
    wanted = y, dx, own_rows(dw, group)

    first, second, own = FORMS[form](up, down, group)
    x = x.detach().requires_grad_()
    y = second(functional.gelu(first(x)))
    forward = [(sent.kind, sent.sent_bytes) for sent in mesh.traffic]
    y.backward(dy)
    backward = [(sent.kind, sent.sent_bytes) for sent in mesh.traffic[len(forward) :]]
    got = y, x.grad, own.grad
    errors = [((a - b).norm() / b.norm()).item() for a, b in zip(got, wanted)]
    return {
        "errors": dict(zip(("output", "input gradient", "weight gradient"), errors)),
        "forward": forward,
        "backward": backward,
    }


def common_answer(up: nn.Linear, down: nn.Linear, group: Group) -> "Layers":
    """Each rank multiplies by its part, and that is all."""
    a, b = part_of(up.weight, group, 0), part_of(down.weight, group, 1)
    return lambda x: x @ a.t() + part_of(up.bias, group, 0), lambda x: x @ b.t() + down.bias, a


def row_reduced(up: nn.Linear, down: nn.Linear, group: Group) -> "Layers":
    """The row layer sums its partial outputs. The column layer is as in the common answer."""
    first, _, a = common_answer(up, down, group)
    return first, RowLinear.of(down, group), a


def bias_everywhere(up: nn.Linear, down: nn.Linear, group: Group) -> "Layers":
    """Each rank adds the row layer's bias before the sum."""
    first, b = ColumnLinear.of(up, group), part_of(down.weight, group, 1)
    return first, lambda x: reduce_from(x @ b.t() + down.bias, group), first.weight


def column_then_row(up: nn.Linear, down: nn.Linear, group: Group) -> "Layers":
    """As Megatron-LM does."""
    first = ColumnLinear.of(up, group)
    return first, RowLinear.of(down, group), first.weight


def gathered(up: nn.Linear, down: nn.Linear, group: Group) -> "Layers":
    """Both layers are cut by columns, and each output is gathered at once."""
    first = GatheredLinear.of(up, group)
    return first, GatheredLinear.of(down, group), first.weight


def part_of(tensor: Tensor, group: Group, dim: int) -> nn.Parameter:
    """This rank's part of a weight, as a parameter of its own."""
    return nn.Parameter(group.own(tensor.detach(), dim).clone())


Layers = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]
FORMS: dict[str, Callable[[nn.Linear, nn.Linear, Group], Layers]] = {
    "common answer": common_answer,
    "row layer reduces": row_reduced,
    "bias on every rank": bias_everywhere,
    "column, then row": column_then_row,
    "gathered": gathered,
}


def split_heads(mesh: Mesh) -> list[float]:
    """A transformer block with its heads and its MLP cut over tp: how far its output and its input
    gradient are from the whole block's."""
    torch.manual_seed(0)
    block = Block(64, 8).double()
    mine = ParallelBlock(block, mesh["tp"])
    x, dy = torch.randn(2, 16, 64).double(), torch.randn(2, 16, 64).double()
    results = []
    for layer in (mine, block):
        own = x.clone().requires_grad_()
        y = layer(own)
        results.append((y, torch.autograd.grad(y, own, dy)[0]))
    return [((a - b).norm() / b.norm()).item() for a, b in zip(*results)]


def vocabulary(mesh: Mesh, size: int, tokens: int = 64) -> dict[str, Any]:
    """An embedding of `size` rows, and the loss of as many logits, cut over tp: their errors
    against the whole, and the bytes sent for the loss."""
    group, padded = mesh["tp"], -(-size // mesh["tp"].size) * mesh["tp"].size
    torch.manual_seed(0)
    table = nn.Embedding(padded, 32).double()
    ids, dy = torch.randint(size, (tokens,)), torch.randn(tokens, 32).double()
    whole, mine = table(ids), VocabEmbedding.of(table, group)
    got = mine(ids)
    (wanted,) = torch.autograd.grad(whole, table.weight, dy)
    (gradient,) = torch.autograd.grad(got, mine.weight, dy)
    errors = {
        "output": (got - whole).norm() / whole.norm(),
        "gradient": (gradient - group.own(wanted, 0)).norm() / wanted.norm(),
    }

    logits = torch.randn(tokens, padded).double()
    logits[:, size:] = float("-inf")  # no token is a row of the padding
    losses: dict[str, Tensor] = {}
    sent: dict[str, float] = {}
    for name, function in {
        "reduced": vocab_cross_entropy,
        "gathered": gathered_cross_entropy,
    }.items():
        mesh.traffic.clear()
        losses[name] = function(group.own(logits, 1), ids, group)
        sent[name] = sum(entry.sent_bytes for entry in mesh.traffic)
    right = functional.cross_entropy(logits, ids, reduction="none")
    errors |= {f"loss, {name}": (its - right).norm() / right.norm() for name, its in losses.items()}
    return {
        "errors": {name: error.item() for name, error in errors.items()},
        "sent_bytes": sent,
        "rows": padded // group.size,
    }


def clipped(mesh: Mesh, rule: str, steps: int = 10, limit: float = 0.05) -> dict[str, Any]:
    """Train a block cut over tp, clipping by the norm that `rule` says: this rank's factor in the
    first step, and after each step how far the replicas of what all ranks hold whole (norms,
    biases) are apart."""
    group = mesh["tp"]
    torch.manual_seed(0)
    block = ParallelBlock(Block(64, 8), group)
    whole = block.whole_on_tp()
    cut = [p for p in block.parameters() if not any(p is one for one in whole)]
    optimizer = torch.optim.SGD(block.parameters(), lr=0.5)
    apart: list[float] = []
    factor: float | None = None
    for _ in range(steps):
        block(torch.randn(4, 16, 64)).square().mean().backward()
        if rule == "of what it holds":
            norm = nn.utils.clip_grad_norm_(block.parameters(), limit)
        else:
            norm = clip([([p.grad for p in cut], [group]), ([p.grad for p in whole], [])], limit)
        factor = factor or min(1.0, limit / norm.item())
        optimizer.step()
        optimizer.zero_grad()
        apart.append(spread(whole, group))
    return {"factor": factor, "apart": apart}
