"""It simulates PyTorch's caching allocator, the memory pool of a GPU: what tensors take of it, what
it has reserved from the device, and how often it had to ask.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.x, one stream, default settings):
sizes are rounded up to 512 bytes; up to 1 MiB comes out of segments of 2 MiB, less than 10 MiB out of
segments of 20 MiB, more out of a segment of its own, rounded up to 2 MiB. The smallest free block
that is large enough is taken, and is split if enough is left. A freed block is joined with its free
neighbours in its segment, and stays reserved. When the device has no room, segments that are free as
a whole are returned to it. With expandable segments
(`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`) each pool is one segment of addresses that grows by
pages of 2 MiB, and free pages are returned from its middle, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from simlab.errors import InputError, require_whole
from simlab.spec.model import Model
from simlab.units import bytes_text

ROUND, SMALL, PAGE = 512, 2**20, 2 * 2**20
MIDDLE, MIDDLE_SEGMENT = 10 * 2**20, 20 * 2**20


@dataclass(eq=False)
class _Block:
    """A stretch of a segment; blocks of a segment follow each other in its list."""

    size: int
    segment: list["_Block"]
    free: bool = True
    mapped: bool = True
    """False: only its addresses are there, its memory has been returned."""


class CachingAllocator:
    """The memory pool of one GPU.

    capacity_bytes: what the device has. `InputError` from `allocate` where it is not enough.
    expandable:     whether segments can grow.

    `allocated_bytes` is in tensors now and `reserved_bytes` taken from the device; `peak_allocated`
    and `peak_reserved` are the most of each so far, and `device_calls` counts how often the device
    was asked for memory (cudaMalloc, or a mapping of pages).
    """

    def __init__(self, capacity_bytes: float = inf, *, expandable: bool = False) -> None:
        self.capacity_bytes, self.expandable = capacity_bytes, expandable
        self.pools: dict[bool, list[list[_Block]]] = {True: [], False: []}
        self.live: dict[int, _Block] = {}
        self.numbers = self.device_calls = 0
        self.allocated_bytes = self.reserved_bytes = self.peak_allocated = self.peak_reserved = 0

    def allocate(self, size_bytes: float) -> int:
        """Take `size_bytes` for a tensor; the number by which `free` knows it."""
        size = max(1, -(-int(size_bytes) // ROUND)) * ROUND
        small = size <= SMALL
        block = self._best(small, size) or self._more(small, size)
        rest = block.size - size
        if rest >= (ROUND if small or self.expandable else SMALL + 1):
            at = block.segment.index(block)
            block.segment.insert(at + 1, _Block(rest, block.segment))
            block.size = size
        block.free = False
        self.allocated_bytes += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated_bytes)
        self.numbers += 1
        self.live[self.numbers] = block
        return self.numbers

    def free(self, number: int) -> None:
        """Give a tensor's memory back to the pool. `InputError` for one that is not live."""
        if number not in self.live:
            raise InputError(f"no live tensor {number}")
        block = self.live.pop(number)
        self.allocated_bytes -= block.size
        block.free = True
        segment, at = block.segment, block.segment.index(block)
        for left in (at, at - 1):  # the right neighbour first
            if 0 <= left < len(segment) - 1 and segment[left].free and segment[left + 1].free:
                segment[left].size += segment.pop(left + 1).size

    def _best(self, small: bool, size: int) -> _Block | None:
        blocks = (block for segment in self.pools[small] for block in segment)
        fitting = [block for block in blocks if block.free and block.size >= size]
        return min(fitting, key=lambda block: block.size, default=None)

    def _more(self, small: bool, size: int) -> _Block:
        """A free block of at least `size` bytes, from the device."""
        if self.reserved_bytes + self._wanted(small, size) > self.capacity_bytes:
            self._release()
        wanted = self._wanted(small, size)
        if self.reserved_bytes + wanted > self.capacity_bytes:
            raise self._out_of_memory(wanted)
        self.reserved_bytes += wanted
        self.device_calls += 1
        self.peak_reserved = max(self.peak_reserved, self.reserved_bytes)
        if not (self.expandable and self.pools[small]):
            self.pools[small].append([])
        segment = self.pools[small][-1]
        if not self._tail(segment):
            segment.append(_Block(0, segment))
        segment[-1].size += wanted
        return segment[-1]

    def _wanted(self, small: bool, size: int) -> int:
        """The bytes that the device is asked for, for a block of `size` bytes."""
        if self.expandable:
            tail = self._tail(self.pools[small][0]) if self.pools[small] else 0
            return -(-(size - tail) // PAGE) * PAGE
        return PAGE if small else MIDDLE_SEGMENT if size < MIDDLE else -(-size // PAGE) * PAGE

    @staticmethod
    def _tail(segment: list[_Block]) -> int:
        """The free bytes at the end of a segment."""
        return segment[-1].size if segment and segment[-1].free else 0

    def _out_of_memory(self, wanted: int) -> InputError:
        unused = self.reserved_bytes - self.allocated_bytes
        return InputError(
            f"out of memory: {bytes_text(wanted)} asked for, "
            f"{bytes_text(self.allocated_bytes)} in tensors, "
            f"{bytes_text(unused)} reserved and unused"
        )

    def _release(self) -> None:
        """Return to the device what is free: whole segments, or pages of those that can grow."""
        for pool in self.pools.values():
            if self.expandable:
                for segment in pool:
                    self._unmap(segment)
                continue
            for segment in [one for one in pool if len(one) == 1 and one[0].free]:
                pool.remove(segment)
                self.reserved_bytes -= segment[0].size

    def _unmap(self, segment: list[_Block]) -> None:
        """Return the free pages of `segment`; their addresses stay unused."""
        blocks, end = list(segment), 0
        segment.clear()
        for block in blocks:
            begin, end = end, end + block.size
            first, last = -(-begin // PAGE) * PAGE, end // PAGE * PAGE
            if not block.free or last <= first:
                segment.append(block)
                continue
            self.reserved_bytes -= last - first
            gap = _Block(last - first, segment, free=False, mapped=False)
            parts = _Block(first - begin, segment), gap, _Block(end - last, segment)
            segment += [part for part in parts if part.size]


class PoolStep(NamedTuple):
    """What a step did to the pool."""

    tokens: int
    allocated_bytes: int
    """The most in tensors so far, as torch.cuda.max_memory_allocated."""
    reserved_bytes: int
    """The most taken from the device so far, as torch.cuda.max_memory_reserved."""
    requests: int
    """Tensors that were made in this step."""
    device_calls: int
    """Of them, those for which the device was asked."""


def pool_steps(
    model: Model,
    lengths: Sequence[int],
    *,
    capacity_bytes: float = inf,
    expandable: bool = False,
) -> list[PoolStep]:
    """Steps of one sequence of `lengths[i]` tokens through `model`'s layers, in one pool.

    A forward makes each layer's tensors (`Model.layer_activations` with a fused attention kernel,
    in 16 bits); its backward frees them, last layer first, beside a gradient of the layer's output,
    which lives until the layer before has made its own. States are left out: they are allocated once
    and waste nothing. `InputError` without a length, or where the pool's device is too small.
    """
    if not lengths:
        raise InputError("no lengths: give the tokens of at least one step")
    pool = CachingAllocator(capacity_bytes, expandable=expandable)
    steps = []
    for tokens in lengths:
        require_whole("tokens", tokens)
        numbers, calls = pool.numbers, pool.device_calls
        sizes = {
            kind: model.of_kind(kind).layer_activations(1, tokens, flash=True).values()
            for kind in model.counts
        }
        layers = [[pool.allocate(size) for size in sizes[kind]] for kind in model.layer_kinds]
        gradient = pool.allocate(2 * tokens * model.hidden)
        for tensors in reversed(layers):
            before, gradient = gradient, pool.allocate(2 * tokens * model.hidden)
            for tensor in (*reversed(tensors), before):
                pool.free(tensor)
        pool.free(gradient)
        made, asked = pool.numbers - numbers, pool.device_calls - calls
        steps.append(PoolStep(tokens, pool.peak_allocated, pool.peak_reserved, made, asked))
    return steps
