"""Tensor parallelism: each rank has its part of every matrix (Shoeybi et al. 2019, Megatron-LM, arXiv 1909.08053, section 3).

A column-parallel matrix is followed by a row-parallel one: Y = gelu(X A) B with A cut by columns, B by rows. X is whole on all ranks,
what is between stays cut, and only the end is summed. So a pair of matrices costs one all-reduce of (tokens, hidden) forward, Megatron's
g, and one backward, its conjugate f. The naive form gathers after every matrix.

Weights are stored as torch does: (outputs, inputs). So "by columns" of the formula cuts dim 0 of the tensor, "by rows" dim 1.
Left out: dropout that differs over ranks, expert parallelism, a fused all-reduce and norm.
"""

import torch
from torch import nn
from torch.nn import functional

from realrun.parallel.group import part
from realrun.split import SplitLinear


def copy_to(x, group):
    """f: `x` as it is; backward, all-reduce. For what is whole on all ranks and goes into a part of a matrix."""
    return _Conjugates.apply(x, lambda x: x.view_as(x), lambda dy: group.all_reduce(dy.clone()).wait())


def reduce_from(x, group):
    """g: the sum of all ranks' `x`; backward, nothing: the sum's gradient is each term's."""
    return _Conjugates.apply(x, lambda x: group.all_reduce(x.clone()).wait(), lambda dy: dy)


def gather_from(x, group, dim=-1):
    """All ranks' `x` along `dim`; backward, this rank's part: right where what follows is computed alike on every rank."""
    return _Conjugates.apply(x, lambda x: group.all_gather(x, dim).wait(), lambda dy: group.own(dy, dim))


class _Conjugates(torch.autograd.Function):
    """One function forward, another one backward."""

    @staticmethod
    def forward(ctx, x, forwards, backwards):
        ctx.backwards = backwards
        return forwards(x)

    @staticmethod
    def backward(ctx, dy):
        return ctx.backwards(dy.contiguous()), None, None


conjugates = _Conjugates.apply


# the naive form: gather everything ------------------------------------------------------------------------


class GatheredLinear(SplitLinear):
    """X W^T + b with W cut by outputs, gathered at once: each matrix costs an all-gather of its outputs forward, and backward an
    all-reduce of its input's gradient. inputs (..., inputs) and outputs (..., outputs) are whole on all ranks."""

    def __init__(self, inputs, outputs, group, *, bias=True):
        super().__init__(inputs, part(outputs, group, "outputs"), bias=bias)
        self.group = group

    @classmethod
    def of(cls, whole, group, *, pieces=1):
        """This rank's part of the `nn.Linear` `whole`. pieces: it is so many matrices, one below the other, each of which is cut
        (3: queries, keys and values, so that each rank gets all three of its heads)."""
        layer = cls(whole.in_features, whole.out_features, group, bias=whole.bias is not None).to(whole.weight)
        layer.pieces = pieces
        with torch.no_grad():
            layer.weight.copy_(own_rows(whole.weight, group, pieces))
            if whole.bias is not None:
                layer.bias.copy_(own_rows(whole.bias, group, pieces))
        return layer

    def forward(self, x):
        return gather_from(super().forward(copy_to(x, self.group)), self.group)


def gathered_embedding(tokens, weight, group):
    """Rows of a table of which each rank has a part, `weight` (vocabulary / n, hidden), gathered whole: all of it, for a few rows."""
    return functional.embedding(tokens, gather_from(weight, group, dim=0))


def gathered_cross_entropy(logits, targets, group):
    """The loss of each token, (...), from the logits (..., vocabulary / n) gathered whole: often the largest tensor of all."""
    whole = gather_from(logits, group)
    return functional.cross_entropy(whole.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


# the good form --------------------------------------------------------------------------------------------


class ColumnLinear(GatheredLinear):
    """X W^T + b with W cut by outputs, not gathered: (..., inputs), whole on all ranks → (..., outputs / n), this rank's.

    Backward, the input's gradient is summed over the ranks (f) while the weight's is computed.
    """

    def forward(self, x):
        return SplitLinear.forward(self, x)

    def complete(self, dx):
        """The sum over the ranks."""
        return self.group.all_reduce(dx).wait


class RowLinear(SplitLinear):
    """X W^T + b with W cut by inputs: (..., inputs / n), this rank's → (..., outputs), whole on all ranks: the sum of all ranks' products
    (g), to which the bias, the same on all ranks, is added once."""

    product_bias = None

    def __init__(self, inputs, outputs, group, *, bias=True):
        super().__init__(part(inputs, group, "inputs"), outputs, bias=bias)
        self.group = group

    @classmethod
    def of(cls, whole, group):
        """This rank's part of the `nn.Linear` `whole`."""
        layer = cls(whole.in_features, whole.out_features, group, bias=whole.bias is not None).to(whole.weight)
        with torch.no_grad():
            layer.weight.copy_(group.own(whole.weight, 1))
            if whole.bias is not None:
                layer.bias.copy_(whole.bias)
        return layer

    def forward(self, x):
        y = self.summed(super().forward(x))
        return y if self.bias is None else y + self.bias

    def summed(self, y):
        """The sum of all ranks' `y`."""
        return reduce_from(y, self.group)


class VocabEmbedding(nn.Module):
    """Each rank has the rows of its part of the vocabulary: tokens (...) → (..., hidden), zero for tokens of other ranks, summed (g)."""

    def __init__(self, vocabulary, hidden, group):
        super().__init__()
        rows = part(vocabulary, group, "vocabulary (pad it)")
        self.weight = nn.Parameter(torch.empty(rows, hidden))
        self.group, self.first = group, group.place * rows
        nn.init.normal_(self.weight)

    @classmethod
    def of(cls, whole, group):
        """This rank's part of the `nn.Embedding` `whole`."""
        layer = cls(whole.num_embeddings, whole.embedding_dim, group).to(whole.weight)
        with torch.no_grad():
            layer.weight.copy_(group.own(whole.weight, 0))
        return layer

    def forward(self, tokens):
        return self.summed(self.own_rows(tokens))

    def own_rows(self, tokens):
        """The embeddings of the tokens of this rank's part of the vocabulary, zero for others."""
        row, elsewhere = _local(tokens, self.first, self.weight.shape[0])
        return functional.embedding(row, self.weight).masked_fill(elsewhere.unsqueeze(-1), 0)

    def summed(self, y):
        """The sum of all ranks' `y`."""
        return reduce_from(y, self.group)


def vocab_cross_entropy(logits, targets, group):
    """The loss of each token in nats, (...): logits (..., vocabulary / n), this rank's; targets (...), int64, the same on all ranks.

    log sum_v exp(z_v - max) - (z_target - max) needs three numbers a token from the other ranks: the maximum (an all-reduce), then
    the sum and the target's logit, which one rank has (together in an all-reduce of sums). Backward needs none: softmax - one-hot of the
    own part. In fp32 for 16-bit logits. (Megatron-LM, core/tensor_parallel/cross_entropy.py.) Left out: label smoothing, ignored tokens.
    """
    return _VocabCrossEntropy.apply(logits, targets, group)


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, group):
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
    def backward(ctx, dloss):
        softmax, index, elsewhere = ctx.saved_tensors
        dlogits = softmax * dloss.unsqueeze(-1)
        dlogits.scatter_add_(-1, index.unsqueeze(-1), -dloss.masked_fill(elsewhere, 0).unsqueeze(-1))
        return dlogits.to(ctx.dtype), None, None


def own_rows(tensor, group, pieces=1):
    """This rank's part of each of `pieces` equal parts of `tensor` along dim 0, one after the other."""
    return torch.cat([group.own(piece, 0) for piece in tensor.chunk(pieces, 0)])


def _local(tokens, first, rows):
    """(index in this rank's rows, 0 for those elsewhere; whether it is elsewhere)."""
    elsewhere = (tokens < first) | (tokens >= first + rows)
    return (tokens - first).masked_fill(elsewhere, 0), elsewhere
