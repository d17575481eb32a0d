"""Sequence parallelism: what lies outside the matrices, norms and residuals, is cut by tokens (Korthikanti et al. 2022, arXiv 2205.05198).

Megatron's f and g, each an all-reduce one way, become a pair of conjugates: all-gather of the tokens before a column-parallel matrix,
reduce-scatter after a row-parallel one, and backward the other way round. An all-reduce is just these two, so the links carry as much
as before, and activations outside the matrices take 1/n. Activations are (batch, sequence, hidden); dim 1 is cut, rank by rank.

gloo's reduce_scatter is an all-reduce and a copy: over gloo this form costs more, not as much, and its time must not be read as a
reduce-scatter's. `realrun.parallel.collectives.RoundsGroup` sends what a reduce-scatter should.
"""

import torch
from torch.nn import functional

from realrun.parallel.tensor import GatheredLinear, RowLinear, VocabEmbedding, conjugates
from realrun.split import SplitLinear

SEQUENCE = 1


def gather_sequence(x, group):
    """All ranks' tokens: all-gather; backward, reduce-scatter: each rank's later computing adds to the gradient of every token."""
    return conjugates(x, lambda x: group.all_gather(x, SEQUENCE).wait(), lambda dy: group.reduce_scatter(dy, SEQUENCE).wait())


def scatter_sequence(x, group):
    """This rank's tokens of the sum of all ranks' `x`: reduce-scatter; backward, all-gather."""
    return conjugates(x, lambda x: group.reduce_scatter(x, SEQUENCE).wait(), lambda dy: group.all_gather(dy, SEQUENCE).wait())


def split_sequence(x, group):
    """This rank's tokens of `x`, which is whole on all ranks; backward, all-gather."""
    return conjugates(x, lambda x: group.own(x, SEQUENCE).clone(), lambda dy: group.all_gather(dy, SEQUENCE).wait())


class KeptColumnLinear(GatheredLinear):
    """The naive form: gather, then multiply; autograd keeps the gathered input for the weight's gradient, n times what came in."""

    def forward(self, x):
        return SplitLinear.forward(self, gather_sequence(x, self.group))


class SequenceColumnLinear(GatheredLinear):
    """(batch, sequence / n, inputs) → (batch, sequence, outputs / n). Only this rank's tokens are kept: backward gathers again while the
    input's gradient is computed, and scatters that while the weight's is."""

    def forward(self, x):
        return _GatheredProduct.apply(x, self.weight, self.bias, self)


class _GatheredProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, layer):
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return functional.linear(layer.group.all_gather(x, SEQUENCE).wait(), weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        group = ctx.layer.group
        gathering = group.all_gather(x, SEQUENCE)
        dx = dy @ weight
        whole = gathering.wait()
        scattering = group.reduce_scatter(dx, SEQUENCE)
        gradients = ctx.layer.own_gradients(whole, dy)  # left for later, it keeps the whole input until then
        return scattering.wait(), *gradients, None


class SequenceRowLinear(RowLinear):
    """(batch, sequence, inputs / n) → (batch, sequence / n, outputs). The bias meets this rank's tokens only: see `sum_gradients`."""

    def summed(self, y):
        """This rank's tokens of the sum of all ranks' `y`."""
        return scatter_sequence(y, self.group)


class SequenceVocabEmbedding(VocabEmbedding):
    """tokens (batch, sequence), the same on all ranks → (batch, sequence / n, hidden)."""

    def summed(self, y):
        """This rank's tokens of the sum of all ranks' `y`."""
        return scatter_sequence(y, self.group)


def sum_gradients(parameters, group):
    """Add up over the group the gradients of parameters that are the same on all its ranks but met this rank's tokens only: those of norms
    and of row-parallel biases under sequence parallelism, all of them under context parallelism. One all-reduce, once a step."""
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    if group.size == 1 or not parameters:
        return
    gradients = [torch.zeros_like(p, dtype=p.grad_dtype) if p.grad is None else p.grad for p in parameters]
    flat = group.all_reduce(torch.cat([gradient.flatten() for gradient in gradients])).wait()
    for parameter, summed in zip(parameters, flat.split([p.numel() for p in parameters])):
        parameter.grad = summed.view_as(parameter).clone()
