"""Experiments on data parallelism: means of gradients, accumulation, buckets, and threads beside
processes."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from realrun.comm.group import Group
from realrun.comm.mesh import Mesh
from realrun.parallel.naive.data import DataParallel, average_gradients


def averaged(
    mesh: Mesh, sizes: Sequence[int], weighted: bool = False, batch_norm: bool = False
) -> float:
    """How far the mean of the ranks' gradients is from the gradient of the whole batch, relative.
    sizes: the samples of each rank."""
    group, first, total = mesh["dp"], sum(sizes[: mesh.rank]), sum(sizes)
    torch.manual_seed(0)
    x, y = torch.randn(total, 8).double(), torch.randn(total, 1).double()
    norm = nn.BatchNorm1d(16) if batch_norm else nn.Identity()
    model = nn.Sequential(nn.Linear(8, 16), norm, nn.Tanh(), nn.Linear(16, 1)).double()

    def gradient(part: slice) -> Tensor:
        loss = functional.mse_loss(model(x[part]), y[part])  # a mean over these samples
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    own, whole = gradient(slice(first, first + sizes[mesh.rank])), gradient(slice(None))
    if weighted:
        own *= group.size * sizes[mesh.rank] / total
    mean = group.all_reduce(own).wait() / group.size
    return ((mean - whole).norm() / whole.norm()).item()


def accumulated(mesh: Mesh, loop: str, steps: int = 12, m: int = 4) -> dict[str, Any]:
    """{"apart": how far apart the ranks' weights are after each step, "reduced_bytes": the bytes
    that this rank reduced in a step}, by torch's DDP.

    loop: which of a step's m backwards are inside no_sync; see `ways`.
    """
    ways: dict[str, Callable[[int], tuple[bool, bool]]] = {
        "never": lambda i: (False, False),  # (is the forward inside no_sync, is the backward)
        "all but the last": lambda i: (i < m - 1, i < m - 1),
        "all": lambda i: (True, True),
        "last backward outside": lambda i: (True, i < m - 1),
    }
    local = ways[loop]
    torch.manual_seed(0)  # the same weights on all ranks
    plain = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    model = DistributedDataParallel(plain, process_group=mesh["dp"].process_group)
    sent: list[int] = []
    apart: list[float] = []
    model.register_comm_hook(sent, count_and_reduce)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1 + mesh.rank)  # other data on each
    for _ in range(steps):
        for i in range(m):
            x = torch.randn(8, 16, generator=data)
            forward_local, backward_local = local(i)
            with model.no_sync() if forward_local else nullcontext():
                loss = functional.mse_loss(model(x), x.prod(1, keepdim=True).sign()) / m
            with model.no_sync() if backward_local else nullcontext():
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        apart.append(spread(model.parameters(), mesh["dp"]))
    return {"apart": apart, "reduced_bytes": sum(sent) / steps}


def count_and_reduce(sent: list[int], bucket: dist.GradBucket) -> Future[Tensor]:
    """DDP's own reduction of a bucket, counted."""
    sent.append(bucket.buffer().nbytes)
    everyone: Any = None  # all ranks
    return allreduce_hook(everyone, bucket)


def spread(parameters: Iterable[Tensor], group: Group) -> float:
    """The largest distance of a rank's weights from the mean of all ranks' weights, relative to
    that mean."""
    own = torch.cat([p.detach().flatten() for p in parameters])
    mean = group.all_reduce(own.clone()).wait() / group.size
    far = group.all_reduce((own - mean).norm() / mean.norm(), "max").wait()
    return far.item()


def buckets(
    mesh: Mesh, bucket_bytes: float | None, layers: int = 8, width: int = 256
) -> dict[str, float]:
    """{"calls", "early": how many of them were begun before the backward ended, "sent_bytes"}.
    bucket_bytes None: each gradient by itself, at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    parallel = (
        None if bucket_bytes is None else DataParallel(model, mesh["dp"], bucket_bytes=bucket_bytes)
    )
    model(torch.randn(16, width)).square().mean().backward()
    early = len(parallel.issued) if parallel else 0
    if parallel:
        parallel.finish()
    else:
        average_gradients(model, mesh["dp"])
    return {
        "calls": len(mesh.traffic),
        "early": early,
        "sent_bytes": sum(entry.sent_bytes for entry in mesh.traffic),
    }


def held_gradients(mesh: Mesh, zero: int, layers: int = 8, width: int = 64) -> list[float]:
    """The gradients that this rank holds after each layer's backward, in those of all layers, and
    last at the end of the step. ZeRO-1 scatters them when all are there, ZeRO-2 each at once."""
    group = mesh["dp"]
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])
    whole = sum(p.nbytes for p in model.parameters())
    parts: list[Tensor] = []
    held: list[float] = []

    def scatter(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parts.append(group.reduce_scatter(parameter.grad, 0).wait())
        parameter.grad = None

    def ready(parameter: Tensor) -> None:
        whole_ones = [p.grad for p in model.parameters() if p.grad is not None]
        held.append(sum(x.nbytes for x in (*whole_ones, *parts)) / whole)
        if zero == 2:
            scatter(parameter)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(ready)
    model(torch.randn(4, width)).square().mean().backward()
    if zero == 1:
        for parameter in model.parameters():
            scatter(parameter)
    return [*held, sum(part.nbytes for part in parts) / whole]


def offloaded(mesh: Mesh, offload: bool, steps: int = 4, size: int = 1024) -> dict[str, Any]:
    """ZeRO-2 with the optimizer's states in the host's memory, or beside the weights: the bytes that
    go down and up for each parameter of this rank's shard, and the weights at the end.

    "Down" is from the device to the host. Without a GPU both are the same memory: the copies are
    made, they only cost less.
    """
    group, device = mesh["dp"], torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    weights = torch.randn(size, device=device).to(torch.bfloat16)  # whole, on every rank
    master = group.own(weights, 0).float().to("cpu" if offload else device)
    adam = torch.optim.Adam([master], lr=0.1)
    moved = {"down": 0, "up": 0}

    def move(x: Tensor, way: str) -> Tensor:
        if not offload:
            return x
        moved[way] += x.nbytes
        return x.to("cpu" if way == "down" else device, copy=True)

    for step in range(steps):
        gradient = (weights.float() - mesh.rank - step).to(torch.bfloat16)  # of this rank's samples
        shard = group.reduce_scatter(gradient / group.size, 0).wait()
        master.grad = move(shard, "down").float()
        adam.step()
        weights = group.all_gather(move(master.to(torch.bfloat16), "up"), 0).wait()
    own = steps * size / group.size
    each = {way: count / own for way, count in moved.items()}
    return each | {"weights": weights.float().tolist()[:8]}


def worked(mesh: Mesh, kind: str, amount: Any, tries: int) -> float:
    """Seconds until all ranks have done `python_work` or `device_work`, begun together: the best of
    so many tries."""
    taken = []
    for _ in range(tries):
        mesh["dp"].all_reduce(torch.zeros(1)).wait()
        start_s = time.perf_counter()
        WORK[kind](amount)
        mesh["dp"].all_reduce(torch.zeros(1)).wait()
        taken.append(time.perf_counter() - start_s)
    return min(taken)


def python_work(count: int) -> int:
    """Plain Python, which holds the interpreter's lock."""
    total = 0
    for i in range(count):
        total += i * i
    return total


def device_work(seconds: float) -> None:
    """A stand-in for kernels on a device: the interpreter only waits, without its lock."""
    time.sleep(seconds)


WORK: dict[str, Callable[[Any], Any]] = {"python": python_work, "device": device_work}
