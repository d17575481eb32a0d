"""A byte-level GPT, cut into pipeline stages."""

import torch
from torch import nn
from torch.nn import functional

from realrun.split import SplitLinear

VOCAB = 256  # bytes
EMBEDDING_SEED, HEAD_SEED, LAYER_SEED = 10_000, 10_001, 20_000


class Block(nn.Module):
    """A pre-norm transformer block (Radford et al. 2019, GPT-2): (batch, seq, hidden) → the same."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = SplitLinear(hidden, 3 * hidden), SplitLinear(hidden, hidden)
        self.up, self.down = SplitLinear(hidden, 4 * hidden), SplitLinear(4 * hidden, hidden)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x))
        batch, seq, _ = qkv.shape
        q, k, v = qkv.view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, seq, -1))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))

    def attend(self, q, k, v):
        """Causal attention of each head: (batch, heads, seq, hidden / heads) of queries, keys and values → the same."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Stage(nn.Module):
    """A contiguous part of the GPT, with the same first weights however many stages there are. The first stage embeds bytes, the last one
    ends in logits.

    First stage: int64 (batch, seq) in; others: (batch, seq, hidden) in. Last stage: logits (batch, seq, 256) out;
    others: (batch, seq, hidden) out.
    """

    def __init__(self, sizes, stage, stages):
        super().__init__()
        hidden = sizes["hidden"]
        first, last = layer_range(sizes["layers"], stage, stages)
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        if self.is_first:
            torch.manual_seed(EMBEDDING_SEED)
            self.embed = nn.Embedding(VOCAB, hidden)
            self.position = nn.Embedding(sizes["seq"], hidden)
        self.blocks = nn.Sequential(*[seeded_block(layer, hidden, sizes["heads"]) for layer in range(first, last)])
        if self.is_last:
            torch.manual_seed(HEAD_SEED)
            self.norm = nn.LayerNorm(hidden)
            self.head = SplitLinear(hidden, VOCAB, bias=False)

    def forward(self, x):
        if self.is_first:
            x = self.embed(x) + self.position.weight[: x.shape[1]]
        x = self.blocks(x)
        return self.head(self.norm(x)) if self.is_last else x


def seeded_block(layer, hidden, heads):
    """The `Block` of layer number `layer`: with the same weights in any process."""
    torch.manual_seed(LAYER_SEED + layer)
    return Block(hidden, heads)


def layer_range(layers, stage, stages):
    """(first, one past last) layer of `stage`: contiguous, sizes differing by at most one, the longer ones first."""
    size, longer = divmod(layers, stages)
    first = stage * size + min(stage, longer)
    return first, first + size + (stage < longer)


def loss(logits, targets):
    """Mean cross-entropy in nats per byte; of logits in 16 bits, too, in fp32."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
