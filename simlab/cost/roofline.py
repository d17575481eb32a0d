"""Kernel → seconds: what it computes against the GPU's speed at its shape, what it moves against
the memory's, and its launch."""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from math import ceil

from simlab.errors import InputError
from simlab.lowering.kernels import Attention, GroupedMatmul, Matmul, Memory
from simlab.lowering.kernels.kernel import Launched
from simlab.spec.hardware import Efficiency, Gpu

CHANNELS = 24
"""The multiprocessors that a collective of NCCL occupies, one for each of its channels. NCCL has at
most 32 (MAXCHANNELS in its headers), and reports 16 on eight H800s (NVIDIA/nccl#892) and 23 or more
on eight GPUs with NVLink SHARP (#1259). The larger number is taken: for which links and sizes a
collective has fewer is not known here."""

NEXT_BEST = {"fp8": "bf16", "bf16": "fp16", "fp16": "tf32", "tf32": "fp32"}
"""What a chip computes in that does not have the precision asked for."""


@cache
def efficiencies() -> dict[str, Efficiency]:
    """{name of a GPU: `Efficiency`}, of data/kernels.json."""
    data = json.loads((files("simlab.spec") / "data" / "kernels.json").read_text(encoding="utf-8"))
    return {
        name: Efficiency(**{k: v for k, v in entry.items() if k != "gpus"})
        for entry in data
        for name in entry["gpus"]
    }


def peak_flops(gpu: Gpu, precision: str) -> float:
    """Operations per second of matrix products in `precision`, or in the next best that `gpu` has;
    fp32 runs as tf32."""
    name = "tf32" if precision == "fp32" else precision
    while name not in gpu.peak_flops:
        if name not in NEXT_BEST:
            raise InputError(
                f"{gpu.name} has none of the precisions that {precision} could run in: {', '.join(gpu.peak_flops)}"
            )
        name = NEXT_BEST[name]
    return gpu.peak_flops[name]


def kernel_s(kernel: Launched, gpu: Gpu, precision: str = "bf16", *, beside: bool = False) -> float:
    """Seconds of one `Matmul`, `Attention` or `Memory` kernel on `gpu`.

    beside: whether a collective runs all the while, which leaves `free_sms` multiprocessors. A
    product's tiles then take from as many rounds as before to twice as many: it depends on how full
    the last one was. Attention and what is limited by memory take as much longer as there are fewer
    multiprocessors, an assumption. Leaves out: the part of the memory's bandwidth that the collective
    takes, which grows with the links; fewer channels between nodes, and for small collectives.
    """
    sms = free_sms(gpu) if beside else gpu.sms
    if isinstance(kernel, Matmul):
        return matmul_s(kernel, gpu, precision, sms)
    if isinstance(kernel, Attention):
        return attention_s(kernel, gpu, precision, sms)
    if isinstance(kernel, Memory):
        return memory_s(kernel.size_bytes, gpu, sms)
    raise InputError(f"{kernel!r} is no kernel of one GPU")


def free_sms(gpu: Gpu) -> int:
    """The multiprocessors that a collective leaves to kernels: all but `CHANNELS`, and at least three
    quarters. A CPU has one here and keeps it, for its communication runs in other threads."""
    return gpu.sms - min(CHANNELS, gpu.sms // 4)


def matmul_s(kernel: Matmul, gpu: Gpu, precision: str, sms: int) -> float:
    """Seconds of a matrix product.

    The output is cut into tiles, of which each multiprocessor computes one at a time: the time is
    that of ceil(tiles / multiprocessors) rounds at the efficiency of a full one ("wave
    quantization", NVIDIA, Matrix Multiplication Background User's Guide). Of the tile shapes the
    fastest is taken. No less than reading both operands takes; and then the result is written (a
    weight gradient added to one in fp32): the last thing that every tile does. In fp8 both operands
    are cast from 16 bits first. The products of a `GroupedMatmul` share the rounds: a
    multiprocessor takes its next tile from whichever product has one left, and each product reads
    its own operands and writes its own result. Leaves out: split-k, what the caches hold, clocks
    that fall under load other than by the measured efficiency. sms: the multiprocessors that compute
    it.
    """
    reached = efficiencies_of(gpu)
    peak = peak_flops(gpu, precision)
    products = kernel.products if isinstance(kernel, GroupedMatmul) else [kernel]
    best = min(
        _waves_s(products, rows, columns, peak * reached.matmul[kernel.role] * part / gpu.sms, sms)
        for rows, columns, part in reached.tiles
    )
    width = 4 if precision == "fp32" else 2
    operands = sum(its.batch * (its.m * its.k + its.k * its.n) for its in products)
    result = sum(its.batch * its.m * its.n for its in products)
    bandwidth = _bandwidth(gpu, reached) * sms / gpu.sms
    written_s = (8 if kernel.role == "weight" else width) * result / bandwidth
    cast_s = 3 * operands / bandwidth if precision == "fp8" else 0.0
    return max(best, width * operands / bandwidth) + written_s + cast_s + reached.kernel_s


def largest_value_s(kernel: Matmul, gpu: Gpu, *, beside: bool = False) -> float:
    """Seconds of finding the largest value of both operands of a product in fp8, which reads them
    once more, in 16 bits. beside: see `kernel_s`.

    torchao scales a tensor by its largest value, which must be known before the cast
    (`tensor_to_scale` and `hp_tensor_to_float8_dynamic` in torchao/float8). Transformer Engine's
    delayed scaling takes that of earlier steps, and finds the new one while it casts.
    """
    operands = kernel.batch * (kernel.m * kernel.k + kernel.k * kernel.n)
    fewer = gpu.sms / (free_sms(gpu) if beside else gpu.sms)
    reached = efficiencies_of(gpu)
    return 2 * operands / _bandwidth(gpu, reached) * fewer + 2 * reached.kernel_s


def _waves_s(
    products: Sequence[Matmul], rows: float, columns: float, flops_per_s: float, sms: int
) -> float:
    """Seconds of the rounds in which `sms` multiprocessors of `flops_per_s` compute the tiles of all
    `products`. The rounds are of the mean depth k, and no shorter than the deepest tile."""
    tiles = [
        its.batch
        * min(
            ceil(its.m / rows) * ceil(its.n / columns), ceil(its.m / columns) * ceil(its.n / rows)
        )
        for its in products
    ]
    mean_depth = sum(count * its.k for count, its in zip(tiles, products)) / sum(tiles)
    depth = max(ceil(sum(tiles) / sms) * mean_depth, max(its.k for its in products))
    return depth * 2 * rows * columns / flops_per_s


def attention_s(kernel: Attention, gpu: Gpu, precision: str, sms: int) -> float:
    """Seconds of fused causal attention: half the operations at its efficiency, and the longest
    block of queries at the end.

    With context parallelism, the half of the rank that has most of it. The last 128 queries see all
    keys, on one multiprocessor, while
    the others have nothing left: a term that matters with few heads. Where the mask leaves nothing
    (`share` 0) no kernel runs. In fp8 recipes attention stays in 16 bits. sms: the multiprocessors
    that compute it.
    """
    if not kernel.share:
        return 0.0
    reached = efficiencies_of(gpu)
    peak = peak_flops(gpu, "fp16" if precision in ("fp16", "fp32") else "bf16")
    forward, backward = reached.attention.get(kernel.generation, reached.attention["flash"])
    way, part = ("backward", backward) if kernel.backward else ("forward", forward)
    longest = (
        4
        * min(128, kernel.queries)
        * kernel.keys
        * kernel.head_size
        * (2.5 if kernel.backward else 1)
    )
    tail_s = reached.attention_tail[way] * longest / (peak / gpu.sms)
    fewer = gpu.sms / sms
    return kernel.share * kernel.flops / 2 / (part * peak) * fewer + tail_s + reached.kernel_s


def memory_s(size_bytes: float, gpu: Gpu, sms: int | None = None) -> float:
    """Seconds of a kernel that reads and writes `size_bytes` with `sms` multiprocessors; None:
    all."""
    reached = efficiencies_of(gpu)
    fewer = gpu.sms / (sms or gpu.sms)
    return size_bytes / _bandwidth(gpu, reached) * fewer + reached.kernel_s


def _bandwidth(gpu: Gpu, reached: Efficiency) -> float:
    return gpu.memory_bandwidth_bytes_per_s * reached.memory


def efficiencies_of(gpu: Gpu) -> Efficiency:
    """The `Efficiency` of a `Gpu`: its own, or the one under its name in data/kernels.json."""
    if gpu.efficiency is not None:
        return gpu.efficiency
    if gpu.name not in efficiencies():
        raise InputError(
            f"no kernel efficiencies for {gpu.name!r}; there are those of {', '.join(efficiencies())}"
        )
    return efficiencies()[gpu.name]
