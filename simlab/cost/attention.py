"""Fused attention → seconds: by the size of its heads, and by the tiles that a window touches."""

from math import ceil

from simlab.lowering.kernels import Attention
from simlab.spec.hardware import Efficiency

TILE = 128
"""The queries and the keys of a tile of scores (`m_block_size` and `n_block_size` in Dao-AILab/flash-attention,
flash_attn/cute/flash_fwd.py)."""

USUAL_ROWS = 48
"""The blocks of queries of a causal sequence of 6,144 tokens, in the middle of the 4,096 and 8,192 at which an
`Efficiency` of attention was measured. Its time has what each block needs once in it."""


def attention_s(
    kernel: Attention, reached: Efficiency, peak_flops: float, gpu_sms: int, sms: int
) -> float:
    """Seconds of fused causal attention: half the operations at its efficiency, and the longest
    block of queries at the end.

    With context parallelism, the half of the rank that has most of it. The last 128 queries see all
    keys, on one multiprocessor, while the others have nothing left: a term that matters with few heads.
    Where the mask leaves nothing (`share` 0) no kernel runs. In 8 bits cuDNN's backward computes all tiles
    of a causal mask, whatever the window. peak_flops: of the GPU, in the kernel's bits, per second; sms:
    those of its `gpu_sms` multiprocessors that compute it.
    """
    if not kernel.share:
        return 0.0
    way = "backward" if kernel.backward else "forward"
    part, sm_flops = fraction(kernel, reached), peak_flops / gpu_sms
    longest = (
        4
        * min(TILE, kernel.queries)
        * kernel.keys
        * kernel.head_size
        * (2.5 if kernel.backward else 1)
    )
    tail_s = reached.attention_tail[way] * longest / sm_flops
    computed_s = kernel.share * kernel.flops / 2 / (part * peak_flops)
    if kernel.within:
        causal_s = computed_s * kernel.within / (kernel.share * kernel.keys)
        windows_s = _windows_s(kernel, reached, part * sm_flops) / gpu_sms
        skips = kernel.generation != "flash-fp8" or not kernel.backward
        computed_s = min(causal_s, windows_s) if skips else causal_s
    return computed_s * gpu_sms / sms + tail_s + reached.kernel_s


def fraction(kernel: Attention, reached: Efficiency) -> float:
    """The fraction of the peak that a causal `kernel` reaches: what is known of heads of 128 and
    perhaps of 64 and of 192, and what lies between. A score needs the same exponential whatever the
    head's size."""
    known = reached.attention
    name = kernel.generation if kernel.generation in known else "flash"
    sizes = {64: f"{name}, heads of 64", 128: name, 192: f"{name}, heads of 192"}
    parts = [(size, known[its][kernel.backward]) for size, its in sizes.items() if its in known]
    below = max((its for its in parts if its[0] <= kernel.head_size), default=parts[0])
    above = min((its for its in parts if its[0] >= kernel.head_size), default=parts[-1])
    if below[0] == above[0]:
        return below[1]
    way = (kernel.head_size - below[0]) / (above[0] - below[0])
    return below[1] + way * (above[1] - below[1])


def _windows_s(kernel: Attention, reached: Efficiency, flops_per_s: float) -> float:
    """Seconds on one multiprocessor of `flops_per_s` of attention whose windows slide.

    A block of 128 queries computes each tile of 128 keys that its windows touch, and masks what is
    outside: ceil((w - 1) / 128) + 1 tiles, fewer at the sequence's begin. Once it fetches its operands and
    writes its result, which takes `Efficiency.attention_block_s`. In a backward the blocks are of keys.
    """
    way = "backward" if kernel.backward else "forward"
    block_s = reached.attention_block_s.get(way, 0.0)
    blocks = kernel.batch * kernel.heads * kernel.queries / TILE
    mean_tile_s = kernel.flops / blocks / (kernel.keys / TILE) / flops_per_s
    tile_s = max(0.0, (mean_tile_s * USUAL_ROWS / 2 - block_s) / ((USUAL_ROWS + 1) / 2))
    tiles = (ceil((kernel.keys - 1) / TILE) + 1) * kernel.share / 2
    return blocks * (tiles * tile_s + block_s)
