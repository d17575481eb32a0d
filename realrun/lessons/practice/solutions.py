"""What a learner could write for each exercise that processes judge. The text of these functions is
shown as the solution, and runs on the ranks as a learner's does."""

from contextlib import nullcontext

import torch
from torch.nn import functional as F


def mean(gradient, samples, all_reduce):  # type: ignore[no-untyped-def]
    """The sum over all samples, by the number of all samples."""
    total = all_reduce(gradient * samples)
    return total / all_reduce(torch.tensor(float(samples)))


def step(model, batches, optimizer, loss_of):  # type: ignore[no-untyped-def]
    """All but the last inside no_sync; each loss counts 1/m."""
    for i, (x, y) in enumerate(batches):
        last = i == len(batches) - 1
        with nullcontext() if last else model.no_sync():
            (loss_of(model(x), y) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def mlp(x, a, b, all_reduce):  # type: ignore[no-untyped-def]
    """Before the column layer: sum in backward. After the row layer: sum in forward."""

    class Before(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x.view_as(x)

        @staticmethod
        def backward(ctx, dx):  # type: ignore[no-untyped-def]
            return all_reduce(dx)

    class After(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):  # type: ignore[no-untyped-def]
            return all_reduce(y)

        @staticmethod
        def backward(ctx, dy):  # type: ignore[no-untyped-def]
            return dy

    return After.apply(F.gelu(Before.apply(x) @ a) @ b)


def row(x, weight, bias, all_reduce):  # type: ignore[no-untyped-def]
    """The bias once, after the sum."""
    return all_reduce(x @ weight.t()) + bias


def losses(logits, targets, first, all_reduce):  # type: ignore[no-untyped-def]
    """A maximum, a sum of exponentials and the target's logit: three numbers a token."""
    most = all_reduce(logits.max(1).values, "max")
    total = all_reduce((logits - most.unsqueeze(1)).exp().sum(1))
    local = targets - first
    here = (local >= 0) & (local < logits.shape[1])
    picked = logits.gather(1, local.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    target = all_reduce(torch.where(here, picked - most, 0.0))
    return total.log() - target


def norm(parts, copies, all_reduce):  # type: ignore[no-untyped-def]
    """Squares: those of parts summed over the ranks, those of copies once."""
    squares = all_reduce(sum((part**2).sum() for part in parts))
    return (squares + sum((copy**2).sum() for copy in copies)) ** 0.5


def skip(infinite, all_reduce):  # type: ignore[no-untyped-def]
    """The flag's maximum over tp, and of that over pp."""
    flag = all_reduce(infinite, "max", "tp")
    return all_reduce(flag, "max", "pp") > 0


def backward(k, v, gradients, pass_on):  # type: ignore[no-untyped-def]
    """dk and dv travel with their k and v, n times: then they are home."""
    n = torch.distributed.get_world_size()
    dq, dk, dv = 0, torch.zeros_like(k), torch.zeros_like(v)
    for _ in range(n):
        more_q, more_k, more_v = gradients(k, v)
        dq, dk, dv = dq + more_q, dk + more_k, dv + more_v
        k, v, dk, dv = pass_on(k, v, dk, dv)
    return dq, dk, dv
