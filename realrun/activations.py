"""What autograd really holds for the backward, counted while it holds it."""

from contextlib import contextmanager

import torch

from realrun.model import Block


class SavedActivations:
    """Counts the tensors that autograd saves, per (stage, microbatch), and forgets them when autograd does.

    Parameters and the step's `data` are not counted (they live anyway, or are freed and gathered again); tensors that share storage are
    counted once. parameters: tensors; of several in one storage one is enough.
    """

    def __init__(self, parameters):
        self._parameters = [parameter.untyped_storage() for parameter in parameters]  # whose addresses change if they come and go
        self.data = ()  # tensors
        self._holders = {}  # storage address: number of saved tensors in it
        self._tensors = {}  # (stage, microbatch): number of saved tensors
        self.bytes = self.peak_bytes = 0

    @property
    def live(self):
        """Number of (stage, microbatch) pairs of which something is held."""
        return len(self._tensors)

    @property
    def held(self):
        """{(stage, microbatch): number of tensors held of it}"""
        return self._tensors

    @contextmanager
    def saving(self, key):
        """What autograd saves inside belongs to `key` = (stage, microbatch)."""
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: self._pack(tensor, key), _unpack):
            yield

    def hold(self, tensor, key):
        """An object with the attribute `tensor`, counted for `key` until it is gone."""
        return self._pack(tensor, key)

    def _pack(self, tensor, key):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if any(address == other.data_ptr() for other in self._parameters) or any(
            address == data.untyped_storage().data_ptr() for data in self.data
        ):
            return tensor
        self._tensors[key] = self._tensors.get(key, 0) + 1
        self._holders[address] = self._holders.get(address, 0) + 1
        if self._holders[address] == 1:
            self.bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        return _Saved(self, tensor, key, address, storage.nbytes())

    def release(self, key, address, nbytes):
        """One saved tensor is gone."""
        self._tensors[key] -= 1
        if not self._tensors[key]:
            del self._tensors[key]
        self._holders[address] -= 1
        if not self._holders[address]:
            del self._holders[address]
            self.bytes -= nbytes


class _Saved:
    """What autograd holds in place of a tensor; its end is the tensor's end."""

    __slots__ = ("_ledger", "_where", "tensor")

    def __init__(self, ledger, tensor, *where):
        self._ledger, self.tensor, self._where = ledger, tensor, where

    def __del__(self):
        self._ledger.release(*self._where)


def _unpack(saved):
    return saved.tensor if isinstance(saved, _Saved) else saved


def block_activations(hidden, heads, *, batch, seq):
    """Bytes that autograd really holds after the forward of one fp32 transformer block on `batch` sequences, its input included."""
    block = Block(hidden, heads)
    saved = SavedActivations(block.parameters())
    with saved.saving((0, 0)):
        output = block(torch.randn(batch, seq, hidden, requires_grad=True))
    held = saved.bytes
    del output
    return held
