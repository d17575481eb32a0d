"""Exercises on tensor parallelism: the backward of a column and a row layer, the row layer's bias,
and a loss over a cut vocabulary."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from realrun.comm.group import Group
from realrun.comm.mesh import Mesh
from realrun.lessons.practice.written import Facts, closest, written


class _Sums:
    """A group's all-reduce as learners call it: a tensor → the sum, or the maximum, over the ranks.
    It is counted, and autograd does not see through it."""

    def __init__(self, group: Group) -> None:
        self.group, self.calls, self.numbers = group, 0, 0

    def __call__(self, x: Tensor, op: str = "sum") -> Tensor:
        self.calls, self.numbers = self.calls + 1, self.numbers + x.numel()
        return self.group.all_reduce(x.detach().clone(), op).wait()


def column_row(mesh: Mesh, text: str, width: int) -> Facts:
    """The learner's `mlp(x, a, b, all_reduce)`, where rank r holds columns `a` of the first matrix
    and rows `b` of the second: its output and its gradients against the whole MLP's.

    x: (5, width) float64, with requires_grad. all_reduce is a plain function, without a backward.
    """
    group = mesh["tp"]
    torch.manual_seed(0)
    x = torch.randn(5, width).double().requires_grad_()
    a, b = (torch.randn(*size).double() for size in ((width, 4 * width), (4 * width, width)))
    dy = torch.randn(5, width).double()
    whole_a = a.clone().requires_grad_()
    y = functional.gelu(x @ whole_a) @ b
    dx, da = torch.autograd.grad(y, [x, whole_a], dy)
    own_a, own_b = group.own(a, 1).clone().requires_grad_(), group.own(b, 0).clone()
    partial = functional.gelu(x @ own_a) @ own_b
    part_dx = torch.autograd.grad(partial, x, dy)[0]

    mine, sums = x.detach().clone().requires_grad_(), _Sums(group)
    found = written(text)(mine, own_a, own_b, sums)
    if not isinstance(found, Tensor):
        return {"output": "nothing", "input_gradient": "nothing", "weight_gradient": "nothing"}
    if found.requires_grad:
        found.backward(dy)
    weight = group.own(da, 1)
    return {
        "output": closest(found, y, {"partial_output": partial.detach()}),
        "input_gradient": closest(mine.grad, dx, {"partial_gradient": part_dx}),
        "weight_gradient": closest(own_a.grad, weight, {"summed_twice": group.size * weight}),
    }


def row_layer(mesh: Mesh, text: str, inputs: int) -> Facts:
    """The learner's `row(x, weight, bias, all_reduce)`: rank r has its part of the inputs, x (5,
    inputs / ranks), its columns of the weight (outputs, inputs / ranks), and the whole bias."""
    group = mesh["tp"]
    torch.manual_seed(0)
    x, weight = torch.randn(5, inputs).double(), torch.randn(6, inputs).double()
    bias, sums = torch.randn(6).double(), _Sums(group)
    found = written(text)(group.own(x, 1), group.own(weight, 1), bias.clone(), sums)
    product = x @ weight.t()
    partial = group.own(x, 1) @ group.own(weight, 1).t()
    mistakes = {
        "bias_each": product + group.size * bias,
        "no_bias": product,
        "no_sum": partial + bias,
    }
    return {"output": closest(found, product + bias, mistakes), "sums": sums.calls}


def vocabulary_loss(mesh: Mesh, text: str, rows: int, scale: float) -> Facts:
    """The learner's `losses(logits, targets, first, all_reduce)`: the loss of each of 16 tokens,
    where rank r holds `rows` columns of the logits (16, rows) from `first` on."""
    group = mesh["tp"]
    torch.manual_seed(0)
    logits = scale * torch.randn(16, rows * group.size).double()
    targets, sums = torch.randint(rows * group.size, (16,)), _Sums(group)
    own, first = group.own(logits, 1), group.place * rows
    found = written(text)(own.clone(), targets.clone(), first, sums)
    right = functional.cross_entropy(logits, targets, reduction="none")
    local = (targets - first).clamp(0, rows - 1)
    picked = own.gather(1, local.unsqueeze(1)).squeeze(1)
    everyone = _Sums(group)
    unmasked = logits.logsumexp(1) - everyone(picked)
    most = logits.max(1).values  # which an unmasked sum of what is below it holds once per rank
    mistakes = {
        "own_part": own.logsumexp(1) - picked,
        "unmasked": unmasked,
        "unmasked_below_most": unmasked + (group.size - 1) * most,
        "own_maximum": _with_own_maximum(own, picked, (targets - first == local), everyone),
    }
    infinite = isinstance(found, Tensor) and not bool(torch.isfinite(found).all())
    return {
        "loss": "overflow" if infinite else closest(found, right, mistakes),
        "numbers": round(sums.numbers / 16, 2),
    }


def _with_own_maximum(
    own: Tensor, picked: Tensor, here: Tensor, total: Callable[..., Tensor]
) -> Tensor:
    """What comes out where every rank takes out the maximum of its own part only."""
    most = own.max(1).values
    exponentials = total((own - most.unsqueeze(1)).exp().sum(1))
    return exponentials.log() - total(torch.where(here, picked - most, 0.0))
