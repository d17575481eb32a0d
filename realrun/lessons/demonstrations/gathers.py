"""A step of ZeRO-3 in which a list says when a layer's parameters are gathered and freed."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from realrun.comm.mesh import Mesh


def gathered_and_freed(mesh: Mesh, steps: Sequence[str], width: int = 64) -> dict[str, Any]:
    """This rank does what `steps` says, such as "gather 0" and "forward 0", with tanh layers and
    samples of its own: how often it gathered, what it sent in all parameters' bytes, how many layers
    were whole at most, and how far its gradients are from the whole batch's, relative."""
    group, layers = mesh["dp"], 1 + max(int(step.split()[1]) for step in steps)
    torch.manual_seed(0)
    weights = torch.randn(layers, width, width).double() / width**0.5
    samples = torch.randn(group.size, 4, width).double()
    shards = [group.own(weight, 0).clone() for weight in weights]
    values, upper = [samples[mesh.rank]], torch.empty(0)
    whole: dict[int, Tensor] = {}
    gradients: dict[int, Tensor] = {}
    gathers = peak = 0
    for what, at in (step.split() for step in steps):
        k = int(at)
        if what == "gather":
            whole[k] = group.all_gather(shards[k], 0).wait()
            gathers, peak = gathers + 1, max(peak, len(whole))
        elif what == "forward":
            values.append(torch.tanh(values[-1] @ whole[k]))
            upper = 2 * values[-1] / samples.numel()  # of the mean of squares
        elif what == "backward":
            lower = upper * (1 - values[k + 1] ** 2)
            gradients[k], upper = values[k].T @ lower, lower @ whole[k].T
        elif what == "scatter":
            gradients[k] = group.reduce_scatter(gradients[k], 0).wait()
        else:
            whole.pop(k, None)
    sent = sum(its.sent_bytes for its in mesh.traffic) / weights.nbytes
    error = _apart([group.own(g, 0) for g in _of_whole_batch(weights, samples)], gradients)
    return {"gathers": gathers, "sent": sent, "peak": peak, "error": error}


def _of_whole_batch(weights: Tensor, samples: Tensor) -> Tensor:
    """The gradients that one process gets from all samples."""
    weights.requires_grad_()
    values = samples
    for weight in weights:
        values = torch.tanh(values @ weight)
    (found,) = torch.autograd.grad(values.square().mean(), weights)
    return found


def _apart(expected: Sequence[Tensor], found: dict[int, Tensor]) -> float:
    return max(((found[k] - g).norm() / g.norm()).item() for k, g in enumerate(expected))
