"""A transformer block under tensor, sequence and context parallelism: the pieces put together as Megatron-LM does."""

from torch import nn
from torch.nn import functional

from realrun.parallel.context import ATTENTIONS
from realrun.parallel.group import part
from realrun.parallel.sequence import SequenceColumnLinear, SequenceRowLinear
from realrun.parallel.tensor import ColumnLinear, RowLinear
from simlab.errors import InputError, did_you_mean


class ParallelBlock(nn.Module):
    """This rank's part of a `realrun.model.Block`: heads and inner width are cut over `tp`, the sequence over `cp`.

    x (batch, tokens of this cp rank, hidden) → the same, whole on all tp ranks; with sequence parallelism both have 1/tp of these tokens.
    Parameters have the names that they have in `Block`.

    attention: 'ring', 'ulysses' or 'gathered', where there is a cp group of more than one rank; layout: see `realrun.parallel.context`.
    """

    def __init__(self, block, tp, cp=None, *, sequence_parallel=False, attention="ring", layout="zigzag"):
        super().__init__()
        if attention not in ATTENTIONS:
            raise InputError(f"attention {attention!r}{did_you_mean(attention, ATTENTIONS)}: give one of {', '.join(ATTENTIONS)}")
        self.heads = part(block.heads, tp, "heads")
        self.cp, self.attention, self.layout, self.sequence_parallel = cp, ATTENTIONS[attention], layout, sequence_parallel
        column, row = (SequenceColumnLinear, SequenceRowLinear) if sequence_parallel else (ColumnLinear, RowLinear)
        self.norm1, self.norm2 = (nn.LayerNorm(norm.normalized_shape).to(norm.weight) for norm in (block.norm1, block.norm2))
        self.norm1.load_state_dict(block.norm1.state_dict())
        self.norm2.load_state_dict(block.norm2.state_dict())
        self.qkv, self.out = column.of(block.qkv, tp, pieces=3), row.of(block.out, tp)
        self.up, self.down = column.of(block.up, tp), row.of(block.down, tp)

    def forward(self, x):
        x = x + self.out(self._mixed(self.qkv(self.norm1(x))))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))

    def _mixed(self, qkv):
        """Attention of this rank's heads: (batch, tokens, 3 hidden / tp) → (batch, tokens, hidden / tp)."""
        batch, tokens, _ = qkv.shape
        q, k, v = qkv.view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.cp is None or self.cp.size == 1:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = self.attention(q, k, v, self.cp, self.layout)
        return mixed.transpose(1, 2).reshape(batch, tokens, -1)

    def whole_on_tp(self):
        """[parameters that every tp rank has whole]: norms and row-parallel biases."""
        return [*self.norm1.parameters(), *self.norm2.parameters(), self.out.bias, self.down.bias]

    def partial_over_tp(self):
        """[parameters whose gradients are of this rank's tokens only, and so are to be summed over tp after a step's last backward
        (`realrun.parallel.sequence.sum_gradients`)]: with sequence parallelism those that are whole on all ranks."""
        return self.whole_on_tp() if self.sequence_parallel else []
