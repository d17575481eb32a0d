"""Exercises on data parallelism: the mean of unequal parts, and a step with accumulation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from realrun.comm.mesh import Mesh
from realrun.lessons.demonstrations.data_parallel import count_and_reduce, spread
from realrun.lessons.practice.written import Facts, closest, written


def weighted_mean(mesh: Mesh, text: str, sizes: Sequence[int]) -> Facts:
    """The learner's `mean(gradient, samples, all_reduce)` for ranks with `sizes` samples: whose
    gradient it gives.

    gradient: (17,) float64, the mean over this rank's samples. all_reduce: a tensor → the sum over
    the ranks.
    """
    group = mesh["dp"]
    torch.manual_seed(0)
    gradients = torch.randn(sum(sizes), 17, dtype=torch.float64)  # of every sample
    parts = torch.split(gradients, list(sizes))
    own = parts[mesh.rank].mean(0)

    def all_reduce(x: Tensor) -> Tensor:
        return group.all_reduce(torch.as_tensor(x, dtype=torch.float64).clone()).wait()

    found = written(text)(own.clone(), sizes[mesh.rank], all_reduce)
    means = torch.stack([part.mean(0) for part in parts])
    weighed = torch.stack([part.sum(0) for part in parts]).sum(0)
    mistakes = {
        "plain_mean": means.mean(0),
        "not_divided": weighed,
        "by_ranks": weighed / len(sizes),
        "own": own,
    }
    return {"result": closest(found, gradients.mean(0), mistakes)}


def accumulation(mesh: Mesh, text: str, m: int) -> Facts:
    """The learner's `step(model, batches, optimizer, loss_of)`, with torch's DDP and m batches for
    each rank: what it reduces, and whether the ranks still hold the model that one process holds.
    """
    group = mesh["dp"]
    data = torch.Generator().manual_seed(1)
    batches = [
        [(torch.randn(4, 8, generator=data).double(), torch.randn(4, 1, generator=data).double())
         for _ in range(m)]
        for _ in mesh["dp"].ranks
    ]  # fmt: skip
    alone, model = _model(), _model()
    parallel = DistributedDataParallel(model, process_group=group.process_group)
    sent: list[int] = []
    parallel.register_comm_hook(sent, count_and_reduce)
    outside: list[bool] = []
    parallel.register_forward_pre_hook(
        lambda *_: outside.append(parallel.require_backward_grad_sync)
    )
    summed: list[bool] = []
    first = next(model.parameters())
    first.register_hook(lambda _: summed.append(parallel.require_backward_grad_sync))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    written(text)(parallel, batches[mesh.rank], optimizer, functional.mse_loss)

    everything = [pair for its in batches for pair in its]
    x, y = (torch.cat(parts) for parts in zip(*everything))
    functional.mse_loss(alone(x), y).backward()
    torch.optim.SGD(alone.parameters(), lr=0.1).step()
    far = max((a - b).abs().max().item() for a, b in zip(model.parameters(), alone.parameters()))
    whole = sum(p.nbytes for p in model.parameters())
    return {
        "reductions": round(sum(sent) / whole, 2),
        "last_forward_reduces": bool(outside and outside[-1]),
        "last_backward_reduces": bool(summed and summed[-1]),
        "ranks_alike": spread(model.parameters(), group) < 1e-12,
        "as_one_process": far < 1e-12,
    }


def _model() -> nn.Module:
    torch.manual_seed(0)
    layers: Any = (nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return nn.Sequential(*layers).double()
