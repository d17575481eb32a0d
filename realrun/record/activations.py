"""What autograd really holds for the backward, counted while it holds it."""

import gc
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from realrun.model.gpt import Block

Key = tuple[int, int]
"""(stage, microbatch)"""


class SavedActivations:
    """It counts the tensors that autograd saves, per (stage, microbatch), and forgets them when
    autograd does: autograd holds, with each tensor, what stands for its storage and for its (stage,
    microbatch), so that the last holder's end is theirs.

    Parameters and the step's `data` are not counted: they exist anyway, or are freed and gathered
    again. Tensors that share a storage are counted once. parameters: tensors; of several in one
    storage one is enough.

    bytes: of what is held now. peak_bytes: the most that was held at a time.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        # they are kept, as is the data: which storage is whose would not tell once one of them is gone
        self._parameters = list(parameters)
        self.leave_out([])
        self._storages: dict[int, weakref.ref[_Storage]] = {}
        self._owners: dict[Key, weakref.ref[_Owner]] = {}
        self.bytes = self.peak_bytes = 0

    def leave_out(self, data: Iterable[Tensor]) -> None:
        """From now on `data`, which exist anyway, are not counted besides parameters."""
        self._data = list(data)
        self._known = {_storage_of(tensor) for tensor in (*self._parameters, *self._data)}

    @property
    def live(self) -> int:
        """The number of (stage, microbatch) pairs of which something is held."""
        return len(self._owners)

    @property
    def held(self) -> dict[Key, int]:
        """{(stage, microbatch): number of tensors held of it}."""
        return {
            key: sum(isinstance(one, tuple) for one in gc.get_referrers(owner()))
            for key, owner in self._owners.items()
        }

    def saving(self, key: Key) -> AbstractContextManager[None]:
        """What autograd saves inside belongs to `key` = (stage, microbatch)."""
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: self.hold(tensor, key), itemgetter(0)
        )

    def hold(self, tensor: Tensor, key: Key) -> tuple[Any, ...]:
        """(`tensor`, ...), which is counted for `key` until that tuple is gone."""
        storage = tensor.untyped_storage()
        where = storage._cdata
        if where in self._known:
            return (tensor,)
        held, owner = self._storages.get(where), self._owners.get(key)
        return (
            tensor,
            _Storage(self, where, storage.nbytes()) if held is None else held(),
            _Owner(self, key) if owner is None else owner(),
        )


class _Owner:
    """A (stage, microbatch), as long as a tensor is held of it."""

    __slots__ = ("__weakref__", "_key", "_ledger")

    def __init__(self, ledger: SavedActivations, key: Key) -> None:
        self._ledger, self._key = ledger, key
        ledger._owners[key] = weakref.ref(self)

    def __del__(self) -> None:
        del self._ledger._owners[self._key]


class _Storage:
    """A storage whose bytes are counted as long as a tensor in it is held."""

    __slots__ = ("__weakref__", "_ledger", "_nbytes", "_where")

    def __init__(self, ledger: SavedActivations, where: int, nbytes: int) -> None:
        self._ledger, self._where, self._nbytes = ledger, where, nbytes
        ledger._storages[where] = weakref.ref(self)
        ledger.bytes += nbytes
        ledger.peak_bytes = max(ledger.peak_bytes, ledger.bytes)

    def __del__(self) -> None:
        self._ledger.bytes -= self._nbytes
        del self._ledger._storages[self._where]


def _storage_of(tensor: Tensor) -> int:
    """Which storage a tensor is in, as long as it is held. An address would not tell: it changes when
    a storage is freed and gathered again."""
    return tensor.untyped_storage()._cdata


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
