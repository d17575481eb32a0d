"""Gradient clipping by the global norm, whatever ranks the gradients are spread over (Pascanu et al. 2013, arXiv 1211.5063).

The naive form, each rank clipping by the norm of what it holds, scales the parts of one gradient differently: its direction changes, and
with replicated weights the replicas drift apart. The squares must be added over the ranks that hold *different* gradients, and not
over those that hold the same, which would count them again (Megatron-LM's `clip_grads`; its test is "is not a tensor-parallel duplicate").
"""

import torch

from simlab.errors import InputError


def global_norm(parts):
    """The 2-norm of all gradients of the model, a scalar in fp64, the same on all ranks.

    parts: [(gradients, groups)]: tensors that this rank holds, and the `Group`s among whose ranks they differ. Groups
    whose ranks hold the same gradients (a norm's weight in a tensor-parallel group, anything in a plain data-parallel one) are not listed.
    All ranks give the same groups in the same order, and an empty list of gradients where they hold none.

    Derivation: a part's sum of squares is added over its groups one after the other, exact when they are dimensions of a mesh. One
    all-reduce of a number per part for each group.
    """
    groups = list({id(group): group for _, sharded in parts for group in sharded}.values())
    squares = torch.stack([_sum_of_squares(gradients) for gradients, _ in parts])
    for group in groups:
        total = squares.clone()
        group.all_reduce(total).wait()
        of_group = torch.tensor([any(group is one for one in sharded) for _, sharded in parts], device=squares.device)
        squares = torch.where(of_group, total, squares)
    return squares.sum().sqrt()


def clip(parts, limit):
    """Scale all gradients, in place, by limit / (norm + 1e-6) if that is below 1 (torch's rule); the norm before. See `global_norm`.

    A norm that is not finite leaves nothing usable behind: skip the step, see `precision.LossScaler`.
    """
    if not limit > 0:
        raise InputError(f"clipping at {limit!r}: give a norm above 0, such as 1.0")
    norm = global_norm(parts)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradients, _ in parts:
        for gradient in gradients:
            if gradient is not None:
                gradient *= factor.to(gradient.dtype)
    return norm


def _sum_of_squares(gradients):
    """A scalar in fp64, zero for none: of one type on all ranks, whatever they hold."""
    total = torch.zeros((), dtype=torch.float64, device=next((g.device for g in gradients if g is not None), None))
    for gradient in gradients:
        if gradient is not None:
            total += gradient.detach().double().square().sum()
    return total
