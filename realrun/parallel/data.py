"""Data parallelism: every rank has the whole model and its own part of the batch; gradients are averaged over the ranks.

The naive form reduces each gradient by itself when the backward is over. `DataParallel` does what DDP does (Li et al. 2020, "PyTorch
Distributed", VLDB 13(12), section 3.2): gradients travel in buckets, in about the order in which the backward makes them, while it
still runs. Both move the same bytes, 2(n-1)/n of the gradients per rank (as a ring): what changes is how many calls, and when.
"""

from contextlib import contextmanager

import torch

from simlab.errors import InputError
from simlab.units import MIB


def same_weights(module, group):
    """Give all ranks the parameters and buffers of the group's first rank: one broadcast each."""
    with torch.no_grad():
        pending = [group.broadcast(tensor) for tensor in [*module.parameters(), *module.buffers()]]
    for broadcast in pending:
        broadcast.wait()


def average_gradients(module, group):
    """The naive form: after the backward, one all-reduce for each gradient, one after the other."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            parameter.grad = group.all_reduce(gradient).wait() / group.size


class DataParallel:
    """Reduces `module`'s gradients in buckets of about `bucket_bytes` while the backward runs; `finish` waits for what is left.

    Buckets are made in reverse order of the parameters, each of at least one and of one data type. A bucket is issued when all of its
    gradients are there and all buckets before it are issued, so that every rank issues them in the same order. Gradients are copied into
    the bucket and back (DDP's `gradient_as_bucket_view` saves that).

    issued: [number of the bucket], in order, since the last `finish`: how many of them were on their way when the backward ended.

    Leaves out: DDP's rebuilding of the buckets in the order of the first backward, and its communication hooks.
    """

    def __init__(self, module, group, *, bucket_bytes=25 * MIB):
        if not bucket_bytes > 0:
            raise InputError(f"bucket_bytes = {bucket_bytes!r}: give a number above 0, such as {25 * MIB}")
        self.group = group
        self.buckets = _buckets([p for p in module.parameters() if p.requires_grad], bucket_bytes)
        self.issued, self._ready, self._flying, self._local = [], set(), [], False
        self._handles = [p.register_post_accumulate_grad_hook(self._accumulated) for bucket in self.buckets for p in bucket]

    @contextmanager
    def no_sync(self):
        """Backwards inside add to this rank's gradients and send nothing: for all microbatches of a step but the last."""
        before, self._local = self._local, True
        try:
            yield
        finally:
            self._local = before

    def finish(self):
        """Issue what is missing (a parameter without a gradient counts as zero), wait, and leave the means in `parameter.grad`."""
        for number in range(len(self.issued), len(self.buckets)):
            self._issue(number)
        for bucket, pending in zip(self.buckets, self._flying):
            flat = pending.wait()
            flat /= self.group.size
            for parameter, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
                parameter.grad = mean.view_as(parameter)
        self.issued, self._ready, self._flying = [], set(), []

    def close(self):
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()

    def _accumulated(self, parameter):
        if self._local:
            return
        if parameter in self._ready:
            raise InputError("a second backward before finish(): its gradients would not be sent; wrap all but the last in no_sync()")
        self._ready.add(parameter)
        while len(self.issued) < len(self.buckets) and self._ready.issuperset(self.buckets[len(self.issued)]):
            self._issue(len(self.issued))

    def _issue(self, number):
        flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in self.buckets[number]])
        self._flying.append(self.group.all_reduce(flat))
        self.issued.append(number)


def _buckets(parameters, bucket_bytes):
    """[[parameter]], the last parameters first: a bucket is closed when the next one would make it larger than `bucket_bytes`."""
    buckets, room = [], 0
    for parameter in reversed(parameters):
        if not buckets or parameter.nbytes > room or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(parameter)
        room -= parameter.nbytes
    return buckets
