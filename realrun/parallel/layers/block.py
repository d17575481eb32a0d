"""A transformer block under tensor, sequence and context parallelism, put together of their pieces
as in Megatron-LM."""

from torch import Tensor, nn
from torch.nn import functional

from realrun.comm.group import Group, part
from realrun.model.gpt import Block
from realrun.parallel.layers.context import ATTENTIONS
from realrun.parallel.layers.experts import ParallelExperts
from realrun.parallel.layers.sequence import SequenceColumnLinear, SequenceRowLinear
from realrun.parallel.layers.tensor import ColumnLinear, RowLinear
from simlab.errors import InputError, did_you_mean


def copied_norm(norm: nn.LayerNorm) -> nn.LayerNorm:
    """A `LayerNorm` with the same weights, which are its own."""
    copy = nn.LayerNorm(norm.normalized_shape).to(norm.weight)
    copy.load_state_dict(norm.state_dict())
    return copy


class ParallelBlock(nn.Module):
    """This rank's part of a `realrun.model.gpt.Block`. Heads and inner width are cut over `tp`, and
    the sequence over `cp`.

    Input and output are (batch, tokens of this cp rank, hidden), and are whole on all tp ranks.
    With sequence parallelism both have 1/tp of these tokens. Parameters have the names that they
    have in `Block`. Experts are shared over `ep`, if there is such a group; they are not cut over
    `tp`, whose ranks, with sequence parallelism, each route the tokens that they have.

    attention: 'ring', 'ulysses' or 'gathered', used where there is a cp group of more than one
    rank. layout: see `realrun.parallel.layers.context`. `InputError` for an unknown attention, and where
    heads or widths cannot be cut evenly.
    """

    def __init__(
        self,
        block: Block,
        tp: Group,
        cp: Group | None = None,
        *,
        ep: Group | None = None,
        sequence_parallel: bool = False,
        attention: str = "ring",
        layout: str = "zigzag",
    ) -> None:
        super().__init__()
        if attention not in ATTENTIONS:
            raise InputError(
                f"attention {attention!r}{did_you_mean(attention, ATTENTIONS)}: give one of {', '.join(ATTENTIONS)}"
            )
        self.heads = part(block.heads, tp, "heads")
        self.cp, self.attention, self.layout = cp, ATTENTIONS[attention], layout
        self.sequence_parallel = sequence_parallel
        column = SequenceColumnLinear if sequence_parallel else ColumnLinear
        row = SequenceRowLinear if sequence_parallel else RowLinear
        self.norm1, self.norm2 = copied_norm(block.norm1), copied_norm(block.norm2)
        self.qkv, self.out = column.of(block.qkv, tp, pieces=3), row.of(block.out, tp)
        self.experts: ParallelExperts | None = None
        if block.experts is None:
            self.up, self.down = column.of(block.up, tp), row.of(block.down, tp)
        else:
            self.experts = ParallelExperts.of(block.experts, ep, tp.size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self._mixed(self.qkv(self.norm1(x))))
        if self.experts is not None:
            return x + self.experts(self.norm2(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))

    def _mixed(self, qkv: Tensor) -> Tensor:
        """Attention of this rank's heads: from (batch, tokens, 3 hidden / tp) to (batch, tokens,
        hidden / tp)."""
        batch, tokens, _ = qkv.shape
        q, k, v = qkv.view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.cp is None or self.cp.size == 1:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = self.attention(q, k, v, self.cp, self.layout)
        return mixed.transpose(1, 2).reshape(batch, tokens, -1)

    def whole_on_tp(self) -> list[nn.Parameter]:
        """The parameters that every tp rank has whole: those of norms and routers, and row-parallel
        biases."""
        found = [*self.norm1.parameters(), *self.norm2.parameters(), self.out.bias]
        if self.experts is None:
            return [*found, self.down.bias]
        return [*found, *self.experts.router.parameters()]

    def partial_over_tp(self) -> list[nn.Parameter]:
        """The parameters whose gradients are of this rank's tokens only. They are summed over tp
        after a step's last backward (`realrun.parallel.layers.sequence.sum_gradients`). With sequence
        parallelism they are those that are whole on all ranks, else there are none."""
        return self.whole_on_tp() if self.sequence_parallel else []

    def own_experts(self) -> list[nn.Parameter]:
        """The parameters of this rank's experts."""
        return [] if self.experts is None else [*self.experts.experts.parameters()]
