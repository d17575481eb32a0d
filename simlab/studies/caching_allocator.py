"""It simulates PyTorch's caching allocator, the memory pool of a GPU: what tensors take of it, what
it has reserved from the device, and how often it had to ask.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.x, one stream, default settings):
sizes are rounded up to 512 bytes; up to 1 MiB comes out of segments of 2 MiB, less than 10 MiB out of
segments of 20 MiB, more out of a segment of its own, rounded up to 2 MiB. The smallest free block
that is large enough is taken, and is split if enough is left. A freed block is joined with its free
neighbours in its segment, and stays reserved. When the device has no room, segments that are free as
a whole are returned to it. With expandable segments
(`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`) each pool is one segment that grows by pages of
2 MiB.
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
        if self.expandable and self.pools[small]:
            (segment,) = self.pools[small]
            tail = segment[-1].size if segment[-1].free else 0
            self._reserve(-(-(size - tail) // PAGE) * PAGE)
            if not tail:
                segment.append(_Block(0, segment))
            segment[-1].size += -(-(size - tail) // PAGE) * PAGE
            return segment[-1]
        least = PAGE if small else -(-size // PAGE) * PAGE
        whole = MIDDLE_SEGMENT if not (small or self.expandable) and size < MIDDLE else least
        self._reserve(whole)
        new: list[_Block] = []
        new.append(_Block(whole, new))
        self.pools[small].append(new)
        return new[0]

    def _reserve(self, size: int) -> None:
        if self.reserved_bytes + size > self.capacity_bytes:
            self._release()
        if self.reserved_bytes + size > self.capacity_bytes:
            unused = self.reserved_bytes - self.allocated_bytes
            raise InputError(
                f"out of memory: {bytes_text(size)} asked for, "
                f"{bytes_text(self.allocated_bytes)} in tensors, "
                f"{bytes_text(unused)} reserved and unused"
            )
        self.reserved_bytes += size
        self.device_calls += 1
        self.peak_reserved = max(self.peak_reserved, self.reserved_bytes)

    def _release(self) -> None:
        """Return what is free as a whole to the device."""
        for pool in () if self.expandable else self.pools.values():
            for segment in [one for one in pool if len(one) == 1 and one[0].free]:
                pool.remove(segment)
                self.reserved_bytes -= segment[0].size


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
        sizes = model.layer_activations(1, tokens, flash=True).values()
        layers = [[pool.allocate(size) for size in sizes] for _ in range(model.layers)]
        gradient = pool.allocate(2 * tokens * model.hidden)
        for tensors in reversed(layers):
            before, gradient = gradient, pool.allocate(2 * tokens * model.hidden)
            for tensor in (*reversed(tensors), before):
                pool.free(tensor)
        pool.free(gradient)
        made, asked = pool.numbers - numbers, pool.device_calls - calls
        steps.append(PoolStep(tokens, pool.peak_allocated, pool.peak_reserved, made, asked))
    return steps
