"""The model that torch's own parallelism cuts: that of `realrun.model.gpt`, made of plain
layers."""

from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from realrun.model.gpt import Block, Stage
from realrun.model.layer import Layer, norms_of, products


class TorchBlock(Layer):
    """The layer of `block`, of plain products, with a tp-th of the heads. This backend refuses a model
    with experts before it gets here."""

    def __init__(self, block: Block, tp: int, recompute: str) -> None:
        super().__init__(block.model)
        self.heads, self.kv_heads = block.heads // tp, block.kv_heads // tp
        self.recompute, self.experts = recompute, None
        for name in norms_of(block.model):
            self.add_module(name, block.get_submodule(name))
        if block.model.mixer == "mamba":
            self.scan = block.scan
        cut = products(block, by_inputs=False) | products(block, by_inputs=True)
        for name, layer in cut.items():
            pieces = self.pieces.get(name, 1)
            order = cut_order(layer.out_features, tp, pieces) if pieces > 1 else None
            self.add_module(name, plain(layer, order))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Layer`. Selective recomputation computes this again (Korthikanti et al. 2022,
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
        self.is_first, self.is_last, self.model = stage.is_first, stage.is_last, stage.model
        if self.is_first:
            self.embed, self.position = stage.embed, stage.position
        self.blocks = nn.ModuleList(TorchBlock(block, tp, recompute) for block in stage.layers())
        if self.is_last:
            self.norm, self.head = stage.norm, plain(stage.head)
        self.tokens, self.autocast = tokens, autocast

    @property
    def units(self) -> list[nn.Module | list[nn.Module]]:
        """The modules, or lists of modules, that are gathered and reduced together."""
        first: list[nn.Module] = []
        if self.is_first:
            first = [self.embed] if self.position is None else [self.embed, self.position]
        last = [[self.norm, self.head]] if self.is_last else []
        return [*([first] if first else []), *self.blocks, *last]

    @property
    def pieces(self) -> dict[str, int]:
        """{parameter: how many matrices, one below the other, it consists of} where it is several."""
        return {
            f"blocks.{number}.{name}.{parameter}": pieces
            for number, block in enumerate(self.blocks)
            for name, pieces in cast(TorchBlock, block).pieces.items()
            if pieces > 1
            for parameter in block.get_submodule(name).state_dict()
        }

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, self.autocast) if self.autocast else nullcontext():
            if self.is_first:
                first, end = self.tokens or (0, x.shape[-1])
                x = self.embed(x)
                if self.position is not None:
                    x = x + self.position(torch.arange(first, end, device=x.device))
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


def cut_order(rows: int, tp: int, pieces: int) -> Tensor:
    """The order of the rows of so many matrices, one below the other, in which each of `tp` equal
    parts has its part of all of them."""
    return torch.arange(rows).view(pieces, tp, -1).transpose(0, 1).flatten()
