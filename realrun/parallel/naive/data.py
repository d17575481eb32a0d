"""Data parallelism: every rank has the whole model and its own part of the batch, and gradients are
averaged over the ranks.

The naive form reduces each gradient by itself when the backward is over. `DataParallel` does what
DDP does (Li et al. 2020, "PyTorch Distributed", VLDB 13(12), section 3.2): gradients travel in
buckets while the backward still runs, in about the order in which it makes them. Both move the same
bytes, 2(n-1)/n of the gradients per rank (as a ring). They differ in how many calls there are, and
when.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from realrun.comm.group import Group, Pending
from simlab.errors import InputError
from simlab.units import MIB


def average_gradients(module: nn.Module, group: Group) -> None:
    """The naive form: after the backward, one all-reduce for each gradient, one after the other."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            parameter.grad = group.all_reduce(gradient).wait() / group.size


class DataParallel:
    """It reduces the gradients of `module` in buckets of about `bucket_bytes` while the backward
    runs. `finish` waits for the rest. `InputError` where bucket_bytes is not above 0.

    Buckets are made in reverse order of the parameters. Each has at least one parameter, and one
    data type. A bucket is issued when all of its gradients are there and all buckets before it are
    issued, so that every rank issues them in the same order. Gradients are copied into the bucket
    and back, which DDP's `gradient_as_bucket_view` saves.

    issued: numbers of the buckets that were issued since the last `finish`, in order. Before
    `finish`, they are those that were on their way when the backward ended.

    Leaves out: DDP's rebuilding of the buckets in the order of the first backward, and its
    communication hooks.
    """

    def __init__(self, module: nn.Module, group: Group, *, bucket_bytes: float = 25 * MIB) -> None:
        if not bucket_bytes > 0:
            raise InputError(
                f"bucket_bytes = {bucket_bytes!r}: give a number above 0, such as {25 * MIB}"
            )
        self.group = group
        self.buckets = _buckets([p for p in module.parameters() if p.requires_grad], bucket_bytes)
        self.issued: list[int] = []
        self._ready: set[nn.Parameter] = set()
        self._flying: list[Pending] = []
        self._local = False
        self._handles = [
            p.register_post_accumulate_grad_hook(self._accumulated)
            for bucket in self.buckets
            for p in bucket
        ]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside add to this rank's gradients and send nothing. It is for all
        microbatches of a step but the last."""
        before, self._local = self._local, True
        try:
            yield
        finally:
            self._local = before

    def finish(self) -> None:
        """Issue the buckets that are missing, wait for all of them, and leave the means in
        `parameter.grad`. A parameter without a gradient counts as zero."""
        for number in range(len(self.issued), len(self.buckets)):
            self._issue(number)
        for bucket, pending in zip(self.buckets, self._flying):
            flat = pending.wait()
            flat /= self.group.size
            for parameter, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
                parameter.grad = mean.view_as(parameter)
        self.issued, self._ready, self._flying = [], set(), []

    def close(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()

    def _accumulated(self, parameter: nn.Parameter) -> None:
        if self._local:
            return
        if parameter in self._ready:
            raise InputError(
                "a second backward before finish(): its gradients would not be sent; wrap all but the last in no_sync()"
            )
        self._ready.add(parameter)
        while len(self.issued) < len(self.buckets) and self._ready.issuperset(
            self.buckets[len(self.issued)]
        ):
            self._issue(len(self.issued))

    def _issue(self, number: int) -> None:
        flat = torch.cat(
            [
                (p.grad if p.grad is not None else torch.zeros_like(p)).flatten()
                for p in self.buckets[number]
            ]
        )
        self._flying.append(self.group.all_reduce(flat))
        self.issued.append(number)


def _buckets(parameters: list[nn.Parameter], bucket_bytes: float) -> list[list[nn.Parameter]]:
    """[[parameter]], with the last parameters first. A bucket is closed when the next parameter
    would make it larger than `bucket_bytes`."""
    buckets: list[list[nn.Parameter]] = []
    room = 0.0
    for parameter in reversed(parameters):
        if not buckets or parameter.nbytes > room or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(parameter)
        room -= parameter.nbytes
    return buckets
