"""Gradient clipping by the global norm, whatever ranks the gradients are spread over (Pascanu et
al. 2013, arXiv 1211.5063).

In the naive form each rank clips by the norm of what it holds. It scales the parts of one gradient
differently, so the gradient's direction changes, and the replicas of replicated weights drift
apart. The squares must be added over the ranks that hold *different* gradients. They must not be
added over ranks that hold the same gradients, which would count them again. (Megatron-LM's
`clip_grads` asks whether a parameter "is not a tensor-parallel duplicate".)
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor

from realrun.comm.group import Group
from simlab.errors import InputError

Parts = Sequence[tuple[Sequence[Tensor | None], Sequence[Group]]]
"""[(gradients, groups among whose ranks they differ)], see `global_norm`."""


def global_norm(parts: Parts, counted: int = 1) -> Tensor:
    """The 2-norm of all gradients of the model, a scalar in fp64 that is the same on all ranks.

    parts: tuples of (gradients, groups): tensors that this rank holds, and the `Group`s among whose
    ranks they differ. Groups whose ranks hold the same gradients are not listed: a tensor-parallel
    group for the weight of a norm, or a plain data-parallel group for any weight. All ranks give
    the same groups in the same order, and an empty list of gradients where they hold none. counted: how
    often each gradient is among them, as where each stage is on two ranks of a pipeline.

    Derivation: the sum of squares of a part is added over its groups one after the other, which is
    exact when the groups are dimensions of a mesh. Each group takes one all-reduce of one number
    per part.
    """
    groups = list({id(group): group for _, sharded in parts for group in sharded}.values())
    squares = torch.stack([_sum_of_squares(gradients) for gradients, _ in parts])
    for group in groups:
        total = squares.clone()
        group.all_reduce(total).wait()
        of_group = torch.tensor(
            [any(group is one for one in sharded) for _, sharded in parts], device=squares.device
        )
        squares = torch.where(of_group, total, squares)
    return (squares.sum() / counted).sqrt()


def clip(
    parts: Parts, limit: float, copies: Iterable[Tensor | None] = (), counted: int = 1
) -> Tensor:
    """Scale all gradients, in place, by limit / (norm + 1e-6) if that is below 1, which is torch's
    rule. Returns the norm before.

    parts, counted: see `global_norm`. copies: gradients that are scaled, too, but that another rank has
    among its parts. `InputError` where `limit` is not above 0.

    A norm that is not finite leaves nothing usable behind: skip the step, see
    `precision.LossScaler`.
    """
    if not limit > 0:
        raise InputError(f"clipping at {limit!r}: give a norm above 0, such as 1.0")
    norm = global_norm(parts, counted)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    if scaled := _there(chain(*(gradients for gradients, _ in parts), copies)):
        torch._foreach_mul_(scaled, factor.to(scaled[0].dtype))
    return norm


def _sum_of_squares(gradients: Iterable[Tensor | None]) -> Tensor:
    """A scalar in fp64, which is zero where there are no gradients. Its type is the same on all
    ranks, whatever they hold."""
    there = _there(gradients)
    if not there:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack(torch._foreach_norm(there, 2, torch.float64)).square().sum()


def _there(gradients: Iterable[Tensor | None]) -> list[Tensor]:
    """Those that there are."""
    return [gradient for gradient in gradients if gradient is not None]
