"""Tensor parallelism: each rank has its part of every matrix (Shoeybi et al. 2019, Megatron-LM,
arXiv 1909.08053, section 3).

A column-parallel matrix is followed by a row-parallel one: Y = gelu(X A) B with A cut by columns
and B by rows. X is whole on all ranks, what is between the matrices stays cut, and only the end is
summed. So a pair of matrices costs one all-reduce of (tokens, hidden) in the forward, Megatron's g,
and one in the backward, its conjugate f. The naive form, `realrun.parallel.naive.tensor`, gathers
after every matrix.

Weights are stored as torch stores them: (outputs, inputs). So what the formula calls "by columns"
cuts dim 0 of the tensor, and "by rows" cuts dim 1. Left out: dropout that differs over ranks,
a fused all-reduce and norm.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from realrun.comm.group import Group, part
from realrun.model.split import SplitLinear

Function = Callable[[Tensor], Tensor]


def conjugates(x: Tensor, forwards: Function, backwards: Function) -> Tensor:
    """`forwards(x)`, whose backward is `backwards` of the output's gradient."""
    return _Conjugates.apply(x, forwards, backwards)


def copy_to(x: Tensor, group: Group) -> Tensor:
    """Megatron's f: `x` as it is; its backward is an all-reduce. It is for what is whole on all
    ranks and enters a part of a matrix."""
    return conjugates(x, lambda x: x.view_as(x), lambda dy: group.all_reduce(dy.clone()).wait())


def reduce_from(x: Tensor, group: Group) -> Tensor:
    """Megatron's g: the sum of all ranks' `x`. Its backward does nothing, because the sum's
    gradient is the gradient of each term."""
    if group.size == 1:
        return x
    return conjugates(x, lambda x: group.all_reduce(x.clone()).wait(), lambda dy: dy)


def gather_from(x: Tensor, group: Group, dim: int = -1) -> Tensor:
    """All ranks' `x` along `dim`; its backward takes this rank's part. That is right where what
    follows is computed alike on every rank."""
    return conjugates(x, lambda x: group.all_gather(x, dim).wait(), lambda dy: group.own(dy, dim))


class _Conjugates(torch.autograd.Function):
    """One function forward, another one backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forwards: Function, backwards: Function) -> Tensor:
        ctx.backwards = backwards
        return forwards(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.backwards(dy.contiguous()), None, None


class OutputCutLinear(SplitLinear):
    """A linear layer of which each rank has the rows of `weight` that make its part of the outputs.
    Its subclasses differ in what they do with inputs and outputs. `InputError` where the outputs
    cannot be cut evenly."""

    pieces = 1
    """How many matrices, one below the other, the weight consists of; see `of`."""

    def __init__(self, inputs: int, outputs: int, group: Group, *, bias: bool = True) -> None:
        super().__init__(inputs, part(outputs, group, "outputs"), bias=bias)
        self.group, self.communicates = group, group.size > 1

    @classmethod
    def of(cls, whole: nn.Linear, group: Group, *, pieces: int = 1) -> Self:
        """This rank's part of the `nn.Linear` `whole`. pieces: the number of matrices, one below
        the other, that it consists of. Each of them is cut: with 3, queries, keys and values, each
        rank gets all three of its heads."""
        layer = cls(whole.in_features, whole.out_features, group, bias=whole.bias is not None).to(
            whole.weight
        )
        layer.pieces = pieces
        with torch.no_grad():
            layer.weight.copy_(own_rows(whole.weight, group, pieces))
            if whole.bias is not None:
                layer.bias.copy_(own_rows(whole.bias, group, pieces))
        return layer


class ColumnLinear(OutputCutLinear):
    """X W^T + b with W cut by outputs, which are not gathered. The input (..., inputs) is whole on
    all ranks, and the output (..., outputs / n) is this rank's.

    In the backward, the input's gradient is summed over the ranks (f) while the weight's gradient
    is computed.
    """

    def complete(self, dx: Tensor) -> Callable[[], Tensor]:
        """Begin the sum over the ranks."""
        return self.group.all_reduce(dx).wait


class RowLinear(SplitLinear):
    """X W^T + b with W cut by inputs. The input (..., inputs / n) is this rank's, and the output
    (..., outputs) is whole on all ranks: it is the sum of all ranks' products (g), to which the
    bias is added once. The bias is the same on all ranks."""

    def __init__(self, inputs: int, outputs: int, group: Group, *, bias: bool = True) -> None:
        super().__init__(part(inputs, group, "inputs"), outputs, bias=bias)
        self.group = group

    @property
    def product_bias(self) -> Tensor | None:
        """See `SplitLinear`: a sum over ranks comes before the bias."""
        return self.bias if self.group.size == 1 else None

    @classmethod
    def of(cls, whole: nn.Linear, group: Group) -> Self:
        """This rank's part of the `nn.Linear` `whole`."""
        layer = cls(whole.in_features, whole.out_features, group, bias=whole.bias is not None).to(
            whole.weight
        )
        with torch.no_grad():
            layer.weight.copy_(group.own(whole.weight, 1))
            if whole.bias is not None:
                layer.bias.copy_(whole.bias)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.group.size == 1:
            return y
        y = self.summed(y)
        return y if self.bias is None else y + self.bias

    def summed(self, y: Tensor) -> Tensor:
        """The sum of all ranks' `y`."""
        return reduce_from(y, self.group)


class VocabEmbedding(nn.Module):
    """Each rank has the rows of its part of the vocabulary. Tokens (...) become (..., hidden),
    which are zero for tokens of other ranks, and are summed over the ranks (g)."""

    def __init__(self, vocabulary: int, hidden: int, group: Group) -> None:
        super().__init__()
        rows = part(vocabulary, group, "vocabulary (pad it)")
        self.weight = nn.Parameter(torch.empty(rows, hidden))
        self.group, self.first = group, group.place * rows
        nn.init.normal_(self.weight)

    @classmethod
    def of(cls, whole: nn.Embedding, group: Group) -> Self:
        """This rank's part of the `nn.Embedding` `whole`."""
        layer = cls(whole.num_embeddings, whole.embedding_dim, group).to(whole.weight)
        with torch.no_grad():
            layer.weight.copy_(group.own(whole.weight, 0))
        return layer

    def forward(self, tokens: Tensor) -> Tensor:
        return reduce_from(self.own_rows(tokens), self.group)

    def own_rows(self, tokens: Tensor) -> Tensor:
        """The embeddings (..., hidden) of the tokens of this rank's part of the vocabulary, and
        zero for other tokens."""
        if self.group.size == 1:
            return functional.embedding(tokens, self.weight)
        row, elsewhere = _local(tokens, self.first, self.weight.shape[0])
        return functional.embedding(row, self.weight).masked_fill(elsewhere.unsqueeze(-1), 0)


def vocab_cross_entropy(logits: Tensor, targets: Tensor, group: Group) -> Tensor:
    """The loss of each token in nats, (...). logits (..., vocabulary / n) are this rank's; targets
    (...), int64, are the same on all ranks.

    The loss log sum_v exp(z_v - max) - (z_target - max) needs three numbers for each token from the
    other ranks: the maximum, by an all-reduce, and then the sum and the target's logit, which one
    rank has, together in an all-reduce of sums. The backward needs none: it is softmax - one-hot of
    the own part. 16-bit logits are taken in fp32. (Megatron-LM,
    core/tensor_parallel/cross_entropy.py.) Left out: label smoothing, ignored tokens.
    """
    return _VocabCrossEntropy.apply(logits, targets, group)


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group) -> Tensor:
        z = logits.to(torch.promote_types(logits.dtype, torch.float32))
        size = z.shape[-1]
        index, elsewhere = _local(targets, group.place * size, size)
        z = z - group.all_reduce(z.amax(-1), "max").wait().unsqueeze(-1)
        target = z.gather(-1, index.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0)
        exponentials = z.exp_()
        sums, target = group.all_reduce(torch.stack([exponentials.sum(-1), target])).wait()
        ctx.save_for_backward(exponentials.div_(sums.unsqueeze(-1)), index, elsewhere)
        ctx.dtype = logits.dtype
        return sums.log() - target

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        softmax, index, elsewhere = ctx.saved_tensors
        dlogits = softmax * dloss.unsqueeze(-1)
        dlogits.scatter_add_(
            -1, index.unsqueeze(-1), -dloss.masked_fill(elsewhere, 0).unsqueeze(-1)
        )
        return dlogits.to(ctx.dtype), None, None


def own_rows(tensor: Tensor, group: Group, pieces: int = 1) -> Tensor:
    """This rank's part of each of `pieces` equal parts of `tensor` along dim 0, one after the
    other."""
    return torch.cat([group.own(piece, 0) for piece in tensor.chunk(pieces, 0)])


def _local(tokens: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """(the row of each token in this rank's part, or 0 where it is elsewhere; whether it is
    elsewhere)."""
    elsewhere = (tokens < first) | (tokens >= first + rows)
    return (tokens - first).masked_fill(elsewhere, 0), elsewhere
