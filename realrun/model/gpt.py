"""A byte-level GPT, cut into pipeline stages."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from realrun.model.experts import Experts
from realrun.model.split import SplitLinear
from simlab.spec.stage_layers import layers_of_stages

VOCAB = 256  # bytes
Sizes = dict[str, int]
"""The sizes of a model: layers, hidden, heads and seq, and for a training microbatch_size. With
experts also their number `experts` in each layer, `experts_per_token`, `capacity`, the most
tokens of a microbatch that one of them takes, and `routed_parts` and `routed_zigzag`, into which parts
a sequence is cut for that (`realrun.model.experts.Experts`)."""
EMBEDDING_SEED, HEAD_SEED, LAYER_SEED = 10_000, 10_001, 20_000


class Block(nn.Module):
    """A pre-norm transformer block (Radford et al. 2019, GPT-2). Its input and its output are
    (batch, seq, hidden)."""

    qkv: nn.Linear
    out: nn.Linear
    up: nn.Linear
    down: nn.Linear
    experts: Experts | None
    """What stands in place of `up` and `down` in a model with experts."""

    def __init__(self, hidden: int, heads: int, experts: Experts | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = SplitLinear(hidden, 3 * hidden), SplitLinear(hidden, hidden)
        self.experts = experts
        if experts is None:
            self.up, self.down = SplitLinear(hidden, 4 * hidden), SplitLinear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x))
        batch, seq, _ = qkv.shape
        q, k, v = qkv.view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, seq, -1))
        return x + self.mlp(self.norm2(x))

    def mlp(self, x: Tensor) -> Tensor:
        """The second half of the block, of one MLP or of experts. (batch, seq, hidden) each."""
        if self.experts is not None:
            return self.experts(x)
        return self.down(functional.gelu(self.up(x)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of each head. Queries, keys and values are (batch, heads, seq, hidden /
        heads), and so is the result."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Stage(nn.Module):
    """A contiguous part of the GPT. Its first weights are the same however many stages there are.

    The first stage embeds bytes: its input is int64 (batch, seq). Any other stage's input is
    (batch, seq, hidden). The last stage's output is the logits, (batch, seq, 256); any other
    stage's is (batch, seq, hidden).

    sizes: of the whole model, see `Sizes`. stage_layers: the number of layers of
    each stage; None: as `layer_range` divides them. A first stage without layers only embeds, and a
    last one without layers only computes logits. `InputError` where stage_layers does not fit the
    model.
    """

    def __init__(
        self, sizes: Sizes, stage: int, stages: int, stage_layers: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.hidden = hidden = sizes["hidden"]
        first, last = layer_range(sizes["layers"], stage, stages, stage_layers)
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        if self.is_first:
            torch.manual_seed(EMBEDDING_SEED)
            self.embed = nn.Embedding(VOCAB, hidden)
            self.position = nn.Embedding(sizes["seq"], hidden)
        self.blocks = nn.Sequential(*[seeded_block(layer, sizes) for layer in range(first, last)])
        if self.is_last:
            torch.manual_seed(HEAD_SEED)
            self.norm = nn.LayerNorm(hidden)
            self.head = SplitLinear(hidden, VOCAB, bias=False)

    def layers(self) -> list[Block]:
        """The blocks of this stage, in their order."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def forward(self, x: Tensor) -> Tensor:
        if self.is_first:
            x = self.embed(x) + self.position.weight[: x.shape[1]]
        x = self.blocks(x)
        return self.head(self.norm(x)) if self.is_last else x


def seeded_block(layer: int, sizes: Sizes) -> Block:
    """The `Block` of layer number `layer`, which has the same weights in any process."""
    torch.manual_seed(LAYER_SEED + layer)
    hidden, experts = sizes["hidden"], None
    if sizes.get("experts"):
        chosen, capacity = sizes["experts_per_token"], sizes["capacity"]
        parts = sizes.get("routed_parts", 1), sizes.get("routed_zigzag", 1)
        experts = Experts(hidden, sizes["experts"], chosen, capacity, *parts)
    return Block(hidden, sizes["heads"], experts)


def layer_range(
    layers: int, stage: int, stages: int, stage_layers: Sequence[int] | None = None
) -> tuple[int, int]:
    """(first, one past last) layer of `stage`. The stages are contiguous parts of all `layers`.

    stage_layers: the number of layers of each stage. None stands for the rule 'uneven' of
    `simlab.spec.stage_layers.layers_of_stages`. Raises `InputError` if the numbers do not add up.
    """
    counts = layers_of_stages("uneven" if stage_layers is None else stage_layers, layers, stages)
    return sum(counts[:stage]), sum(counts[: stage + 1])


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in nats per byte, a scalar. Logits (..., 256) in 16 bits are taken in
    fp32; targets are int64 (...)."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
