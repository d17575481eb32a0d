"""Experiments on 16-bit training: an overflow that only one rank sees."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from realrun.comm.group import Group
from realrun.comm.mesh import Mesh
from realrun.lessons.demonstrations.data_parallel import spread
from realrun.model.gpt import Block
from realrun.parallel.layers.block import ParallelBlock
from realrun.parallel.precision import LossScaler, MasterWeights


def overflowed(
    mesh: Mesh,
    over: Sequence[str],
    precision: str = "fp16",
    scale: float | None = 2.0**18,
    steps: int = 12,
) -> dict[str, Any]:
    """Train blocks, a pipeline stage each, cut over tp, in 16 bits: whether this rank updated its
    weights in each step, its loss scale at the end, and how far the copies of what its tp ranks
    hold whole (norms, biases) are apart.

    over: the groups over which a found infinity is reduced. scale: the first one; None: no scaling.
    The last unit of the first stage's MLP is large, so that the gradient of its weights is the
    first to overflow. It is on one rank only.
    """
    torch.manual_seed(0)
    blocks = [Block(64, 8) for _ in mesh["pp"].ranks]
    blocks[0].up.bias.data[-1] = 40.0
    block = ParallelBlock(blocks[mesh["pp"].place], mesh["tp"])
    weights = MasterWeights(block, precision, lambda masters: torch.optim.Adam(masters, lr=1e-3))
    scaler = None if scale is None else LossScaler([mesh[name] for name in over], scale=scale)
    updated: list[bool] = []
    for _ in range(steps):
        x = torch.randn(4, 16, 64, dtype=block.up.weight.dtype)
        through_stages(mesh["pp"], block, x, scaler.scale if scaler else 1.0)
        updated.append(weights.step(scaler=scaler))
    whole = [p.detach().float() for p in block.whole_on_tp()]
    return {
        "updated": updated,
        "scale": scaler and scaler.scale,
        "apart": spread(whole, mesh["tp"]),
    }


def through_stages(pp: Group, block: nn.Module, x: Tensor, scale: float) -> None:
    """One forward and backward of this rank's stage, which waits for the one message of each. The
    loss is the mean square of the last output."""
    before, after = pp.ranks[pp.place - 1], pp.ranks[(pp.place + 1) % pp.size]
    if pp.place:
        dist.recv(x, before)
    y = block(x.requires_grad_())
    if pp.place == pp.size - 1:
        (y.float().square().mean() * scale).backward()
    else:
        dist.send(y.detach(), after)
        gradient = torch.empty_like(y)
        dist.recv(gradient, after)
        y.backward(gradient)
    if pp.place and x.grad is not None:
        dist.send(x.grad, before)
