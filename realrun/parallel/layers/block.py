"""A transformer block under tensor, sequence and context parallelism, put together of their pieces
as in Megatron-LM."""

from copy import deepcopy

from torch import Tensor, nn

from realrun.comm.group import Group, part
from realrun.model.gpt import Block
from realrun.model.layer import NORMS_OF_HEADS, Layer, norms_of, products
from realrun.parallel.layers.context import ATTENTIONS, positions
from realrun.parallel.layers.experts import ParallelExperts
from realrun.parallel.layers.sequence import SequenceColumnLinear, SequenceRowLinear
from realrun.parallel.layers.tensor import ColumnLinear, RowLinear
from simlab.errors import InputError, did_you_mean


class ParallelBlock(Layer):
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
        super().__init__(block.model)
        if attention not in ATTENTIONS:
            raise InputError(
                f"attention {attention!r}{did_you_mean(attention, ATTENTIONS)}: give one of {', '.join(ATTENTIONS)}"
            )
        self.heads = part(block.heads, tp, "heads")
        self.kv_heads = part(block.kv_heads, tp, "heads of keys and values")
        self.cp, self.attention, self.layout = cp, ATTENTIONS[attention], layout
        self.sequence_parallel = sequence_parallel
        column = SequenceColumnLinear if sequence_parallel else ColumnLinear
        row = SequenceRowLinear if sequence_parallel else RowLinear
        self.norms = list(norms_of(block.model))
        for name in self.norms:
            self.add_module(name, deepcopy(block.get_submodule(name)))
        for name, whole in products(block, by_inputs=False).items():
            pieces = self.pieces.get(name, 1)
            self.add_module(name, column.of(whole, tp, pieces=pieces))
        for name, whole in products(block, by_inputs=True).items():
            self.add_module(name, row.of(whole, tp))
        if block.model.mixer == "mamba":  # which is not cut
            self.scan = deepcopy(block.scan)
        self.experts: ParallelExperts | None = None
        if block.experts is not None:
            self.experts = ParallelExperts.of(block.experts, ep, tp.size)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Layer`: of this rank's heads, over the tokens of all cp ranks."""
        if self.cp is None or self.cp.size == 1:
            return super().attend(q, k, v)
        return self.attention(q, k, v, self.cp, self.layout)

    def places(self, tokens: int) -> Tensor:
        """See `Layer`."""
        if self.cp is None or self.cp.size == 1:
            return super().places(tokens)
        return positions(tokens, self.cp, self.layout)

    def whole_on_tp(self) -> list[nn.Parameter]:
        """The parameters that every tp rank has whole: those of norms and routers, and row-parallel
        biases."""
        norms = [self.get_submodule(name) for name in self.norms]
        found = [parameter for norm in norms for parameter in norm.parameters()]
        rows = products(self, by_inputs=True).values()
        router = [] if self.experts is None else [*self.experts.router.parameters()]
        return [*found, *(row.bias for row in rows if row.bias is not None), *router]

    def partial_over_tp(self) -> list[nn.Parameter]:
        """The parameters whose gradients are of a part of what the tp ranks have, which are summed over tp
        after a step's last backward (`realrun.parallel.layers.sequence.sum_gradients`): norms of heads,
        of which each rank has its own, and, with sequence parallelism, all that are whole on all
        ranks, for each meets its own tokens."""
        if self.sequence_parallel:
            return self.whole_on_tp()
        heads = [name for name in self.norms if name in NORMS_OF_HEADS]
        return [p for name in heads for p in self.get_submodule(name).parameters()]

    def own_experts(self) -> list[nn.Parameter]:
        """The parameters of this rank's experts."""
        return [] if self.experts is None else [*self.experts.experts.parameters()]
