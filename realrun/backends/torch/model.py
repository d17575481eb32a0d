"""The model that torch's own parallelism cuts: that of `realrun.model.gpt`, made of plain
layers."""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from realrun.model.gpt import Block, Stage


class TorchBlock(Block):
    """A `Block` of plain layers, with a tp-th of the heads."""

    def __init__(self, block: Block, tp: int, recompute: str) -> None:
        nn.Module.__init__(self)  # the layers are those of `block`
        self.heads, self.recompute = block.heads // tp, recompute
        self.experts = None  # this backend refuses a model with experts before it gets here
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.qkv = plain(block.qkv, qkv_order(block.qkv.out_features, tp))
        self.out, self.up, self.down = (plain(layer) for layer in (block.out, block.up, block.down))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Block`. Selective recomputation computes this again (Korthikanti et al. 2022,
        section 5)."""
        if self.recompute == "selective":
            return checkpoint(super().attend, q, k, v, use_reentrant=False)
        return super().attend(q, k, v)

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute == "full":
            return checkpoint(super().forward, x, use_reentrant=False)
        return super().forward(x)


class TorchStage(nn.Module):
    """`realrun.model.gpt.Stage`, of `TorchBlock`s: from tokens (batch, seq) or hidden states to
    hidden states or logits (batch, seq, 256).

    tokens: with sequence parallelism, the (first, one past last) tokens of the sequence that this
    rank's hidden states are of. autocast: a 16-bit dtype in which products are computed; None: the
    dtype that the weights have.
    """

    def __init__(
        self,
        stage: Stage,
        tp: int = 1,
        *,
        recompute: str = "none",
        tokens: tuple[int, int] | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.is_first, self.is_last = stage.is_first, stage.is_last
        if self.is_first:
            self.embed, self.position = stage.embed, stage.position
        self.blocks = nn.ModuleList(TorchBlock(block, tp, recompute) for block in stage.layers())
        if self.is_last:
            self.norm, self.head = stage.norm, plain(stage.head)
        self.tokens, self.autocast = tokens, autocast

    @property
    def units(self) -> list[nn.Module | list[nn.Module]]:
        """The modules, or lists of modules, that are gathered and reduced together."""
        first = [[self.embed, self.position]] if self.is_first else []
        last = [[self.norm, self.head]] if self.is_last else []
        return [*first, *self.blocks, *last]

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, self.autocast) if self.autocast else nullcontext():
            if self.is_first:
                first, end = self.tokens or (0, x.shape[-1])
                x = self.embed(x) + self.position(torch.arange(first, end, device=x.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)) if self.is_last else x


def local(tensor: Tensor) -> Tensor:
    """This rank's part of `tensor`."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of `tensor`, gathered where each rank has a part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def plain(layer: nn.Linear, rows: Tensor | None = None) -> nn.Linear:
    """An `nn.Linear` with the weights of `layer`, whose rows are in the order `rows`."""
    made = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None).to(
        layer.weight
    )
    order = slice(None) if rows is None else rows
    with torch.no_grad():
        for ours, theirs in zip(made.parameters(), layer.parameters()):
            ours.copy_(theirs[order])
    return made


def qkv_order(rows: int, tp: int) -> Tensor:
    """The order of the rows of the product for queries, keys and values in which each of `tp` equal
    parts has all three of its heads."""
    return torch.arange(rows).view(3, tp, -1).transpose(0, 1).flatten()
