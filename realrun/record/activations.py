"""What autograd really holds for the backward, counted while it holds it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from realrun.model.gpt import Block

Key = tuple[int, int]
"""(stage, microbatch)"""


class SavedActivations:
    """It counts the tensors that autograd saves, per (stage, microbatch), and forgets them when
    autograd does.

    Parameters and the step's `data` are not counted: they exist anyway, or are freed and gathered
    again. Tensors that share a storage are counted once. parameters: tensors; of several in one
    storage one is enough.

    bytes: of what is held now. peak_bytes: the most that was held at a time.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = {_storage_of(parameter) for parameter in parameters}
        self._known = self._parameters
        self._holders: dict[int, int] = {}  # {storage: number of saved tensors in it}
        self._tensors: dict[Key, int] = {}  # {(stage, microbatch): number of saved tensors}
        self.bytes = self.peak_bytes = 0

    def leave_out(self, data: Iterable[Tensor]) -> None:
        """From now on `data`, which exist anyway, are not counted besides parameters."""
        self._known = self._parameters.union(map(_storage_of, data))

    @property
    def live(self) -> int:
        """The number of (stage, microbatch) pairs of which something is held."""
        return len(self._tensors)

    @property
    def held(self) -> dict[Key, int]:
        """{(stage, microbatch): number of tensors held of it}."""
        return self._tensors

    @contextmanager
    def saving(self, key: Key) -> Iterator[None]:
        """What autograd saves inside belongs to `key` = (stage, microbatch)."""
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: self._pack(tensor, key), _unpack
        ):
            yield

    def hold(self, tensor: Tensor, key: Key) -> Any:
        """An object with the attribute `tensor`, which is counted for `key` until the object is
        gone."""
        return self._pack(tensor, key)

    def _pack(self, tensor: Tensor, key: Key) -> Any:
        storage = _storage_of(tensor)
        if storage in self._known:
            return tensor
        self._tensors[key] = self._tensors.get(key, 0) + 1
        holders = self._holders[storage] = self._holders.get(storage, 0) + 1
        nbytes = tensor.untyped_storage().nbytes()
        if holders == 1:
            self.bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        return _Saved(self, tensor, key, storage, nbytes)

    def release(self, key: Key, storage: int, nbytes: int) -> None:
        """One saved tensor is gone."""
        self._tensors[key] -= 1
        if not self._tensors[key]:
            del self._tensors[key]
        self._holders[storage] -= 1
        if not self._holders[storage]:
            del self._holders[storage]
            self.bytes -= nbytes


class _Saved:
    """What autograd holds in place of a tensor. When it ends, the tensor does."""

    __slots__ = ("_ledger", "_where", "tensor")

    def __init__(self, ledger: SavedActivations, tensor: Tensor, *where: Any) -> None:
        self._ledger, self.tensor, self._where = ledger, tensor, where

    def __del__(self) -> None:
        self._ledger.release(*self._where)


def _storage_of(tensor: Tensor) -> int:
    """Which storage a tensor is in, as long as it is held. An address would not tell: it changes when
    a storage is freed and gathered again."""
    return tensor.untyped_storage()._cdata


def _unpack(saved: Any) -> Tensor:
    return saved.tensor if isinstance(saved, _Saved) else saved


def block_activations(hidden: int, heads: int, *, batch: int, seq: int) -> int:
    """The bytes that autograd really holds after the forward of one fp32 transformer block on
    `batch` sequences of `seq` tokens, with the block's input."""
    block = Block(hidden, heads)
    saved = SavedActivations(block.parameters())
    with saved.saving((0, 0)):
        output = block(torch.randn(batch, seq, hidden, requires_grad=True))
    held = saved.bytes
    del output  # it holds the graph until here
    return held
