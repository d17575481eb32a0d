"""Sequence parallelism: norms and residuals, which lie outside the matrices, are cut by tokens
(Korthikanti et al. 2022, arXiv 2205.05198).

Megatron's f and g, each an all-reduce in one direction, become a pair of conjugates: an all-gather
of the tokens before a column-parallel matrix and a reduce-scatter after a row-parallel one, and the
other way round in the backward. An all-reduce is just these two, so the links carry as much as
before, and activations outside the matrices take 1/n of the memory. Activations are (batch,
sequence, hidden), of which dim 1 is cut, rank by rank.

gloo's reduce_scatter is an all-reduce and a copy. So over gloo this form costs more, and its time
must not be read as that of a reduce-scatter. `realrun.comm.rounds_group.RoundsGroup` sends what a
reduce-scatter should.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from realrun.comm.group import Group
from realrun.parallel.layers.tensor import OutputCutLinear, RowLinear, conjugates

SEQUENCE = 1


def scatter_sequence(x: Tensor, group: Group) -> Tensor:
    """This rank's tokens of the sum of all ranks' `x`, by a reduce-scatter. Its backward is an
    all-gather."""
    return conjugates(
        x,
        lambda x: group.reduce_scatter(x, SEQUENCE).wait(),
        lambda dy: group.all_gather(dy, SEQUENCE).wait(),
    )


class SequenceColumnLinear(OutputCutLinear):
    """A column-parallel layer from (batch, sequence / n, inputs) to (batch, sequence, outputs / n).
    Only this rank's tokens are kept: the backward gathers them again while the input's gradient is
    computed, and scatters that gradient while the weight's is computed."""

    def forward(self, x: Tensor) -> Tensor:
        return _GatheredProduct.apply(x, self.weight, self.bias, self)


class _GatheredProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: SequenceColumnLinear
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return functional.linear(layer.group.all_gather(x, SEQUENCE).wait(), weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        group = ctx.layer.group
        gathering = group.all_gather(x, SEQUENCE)
        dx = dy @ weight
        whole = gathering.wait()
        scattering = group.reduce_scatter(dx, SEQUENCE)
        # left for later, it keeps the whole input until then
        gradients = ctx.layer.own_gradients(whole, dy)
        return scattering.wait(), *gradients, None


class SequenceRowLinear(RowLinear):
    """A row-parallel layer from (batch, sequence, inputs / n) to (batch, sequence / n, outputs).
    The bias is added to this rank's tokens only, see `sum_gradients`."""

    def summed(self, y: Tensor) -> Tensor:
        """This rank's tokens of the sum of all ranks' `y`."""
        return scatter_sequence(y, self.group)


def sum_gradients(parameters: Iterable[nn.Parameter], group: Group) -> None:
    """Add up the gradients of `parameters` over the group. They are those parameters that are the
    same on all its ranks but were used for this rank's tokens only: norms and row-parallel biases
    under sequence parallelism, and all parameters under context parallelism. It takes one
    all-reduce, once a step."""
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    if group.size == 1 or not parameters:
        return
    gradients = [
        torch.zeros_like(p, dtype=p.grad_dtype) if p.grad is None else p.grad for p in parameters
    ]
    flat = group.all_reduce(torch.cat([gradient.flatten() for gradient in gradients])).wait()
    for parameter, summed in zip(parameters, flat.split([p.numel() for p in parameters])):
        parameter.grad = summed.view_as(parameter).clone()
