"""Kernel → seconds: what it computes against the GPU's speed at its shape, what it moves against
the memory's, and its launch."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, log

from simlab.cost.attention import attention_s
from simlab.errors import InputError
from simlab.layer.operation import OperationKind
from simlab.lowering.kernels import Attention, GroupedMatmul, Matmul, Memory
from simlab.lowering.kernels.kernel import Launched
from simlab.spec.cluster import Cluster, gpus
from simlab.spec.hardware import Efficiency, Gpu, efficiencies

CHANNELS = 24
"""The multiprocessors that a collective of NCCL occupies, one for each of its channels. NCCL has at
most 32 (MAXCHANNELS in its headers), and reports 16 on eight H800s (NVIDIA/nccl#892) and 23 or more
on eight GPUs with NVLink SHARP (#1259). The larger number is taken: for which links and sizes a
collective has fewer is not known here."""

RESULTS_A_ROUND = 2 * 256 * 128
"""The numbers of a product's result that a multiprocessor computes in a round where a collective runs
beside it: two of the largest tiles. It explains what 30 products of 1 to 11 rounds lost on an H100
beside a kernel that occupied 24 multiprocessors, within 7% in the mean (`benchmarks/bench_gpu.py`,
part beside; with one tile it would be 9%). Other GPUs are taken to do the same."""

NEXT_BEST = {
    **dict.fromkeys(("fp8-rowwise", "fp8-current", "fp8-mx"), "fp8"),
    "fp8": "bf16",
    "bf16": "fp16",
    "fp16": "tf32",
    "tf32": "fp32",
}
"""What a chip computes in that does not have the precision asked for."""


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


def kernel_s(
    kernel: Launched, gpu: Gpu, precision: str = "bf16", *, beside_bytes_per_s: float | None = None
) -> float:
    """Seconds of one `Matmul`, `Attention` or `Memory` kernel on `gpu`.

    beside_bytes_per_s: what a collective that runs all the while moves in this GPU's memory; None:
    no collective runs. It leaves `free_sms` multiprocessors: for a product see `rounds_beside`, and
    attention takes as much longer as there are fewer. What is limited by memory keeps what the
    collective leaves of the bandwidth, and needs no more than `free_sms` for it.

    Held against kernels on an H100 beside one that occupied 24 of 132 multiprocessors
    (`benchmarks/bench_gpu.py`, part beside): additions took no longer where it moved nothing, and 1.24
    times as long where it moved .94 TB/s (here 1.11, for the catalogue's kernels reach .8 of the
    bandwidth and these .9); attention 1.12 and 1.17 times (here 1.18). Leaves out: what of a product's
    time is the memory's (beside .94 TB/s products took 10% longer than beside none); fewer channels
    between nodes, and for small collectives.
    """
    if (
        isinstance(kernel, GroupedMatmul)
        and kernel.apart
        and not efficiencies_of(gpu).shares_rounds
    ):
        return sum(
            count * kernel_s(its, gpu, precision, beside_bytes_per_s=beside_bytes_per_s)
            for its, count in Counter(kernel.products).items()
        )
    if isinstance(kernel, Matmul):
        alone_s = matmul_s(kernel, gpu, precision)
        return alone_s if beside_bytes_per_s is None else alone_s * rounds_beside(kernel, gpu)
    if isinstance(kernel, Attention):
        reached = efficiencies_of(gpu)
        own = "fp16" if precision in ("fp16", "fp32") else "bf16"
        if kernel.generation == "flash-fp8" and "flash-fp8" in reached.attention:
            own = "fp8"  # in other plans of 8 bits attention stays in 16
        sms = gpu.sms if beside_bytes_per_s is None else free_sms(gpu)
        return attention_s(kernel, reached, peak_flops(gpu, own), gpu.sms, sms)
    if isinstance(kernel, Memory):
        return memory_s(kernel.size_bytes, gpu, beside_bytes_per_s or 0.0)
    raise InputError(f"{kernel!r} is no kernel of one GPU")


def free_sms(gpu: Gpu) -> int:
    """The multiprocessors that a collective leaves to kernels: all but `CHANNELS`, and at least three
    quarters. A CPU has one here and keeps it, for its communication runs in other threads."""
    return gpu.sms - min(CHANNELS, gpu.sms // 4)


def rounds_beside(kernel: Matmul, gpu: Gpu) -> float:
    """How many times as long a product takes beside a collective.

    A library chooses tiles that fill whole rounds of all multiprocessors, R of them. `free_sms` then
    need ceil(R sms / free) for the same tiles: a product of one round takes two, one of many sms /
    free times as long. The tiles are those of the empty GPU, for the library does not know of the
    collective.
    """
    results = sum(its.batch * its.m * its.n for its in products_of(kernel))
    rounds = ceil(results / (RESULTS_A_ROUND * gpu.sms))
    return ceil(rounds * gpu.sms / free_sms(gpu)) / rounds


def products_of(kernel: Matmul) -> list[Matmul]:
    """The products that one launch computes: of each expert, or the one that it is."""
    return kernel.products if isinstance(kernel, GroupedMatmul) else [kernel]


FAST_SUMS = ("fp8-rowwise",)
"""The precisions whose gradients, too, are summed up by the tensor cores alone. On a Hopper these sum up
products in 8 bits faster than exactly, and every few are added in fp32 where that matters (cuBLAS,
`CUBLASLT_MATMUL_DESC_FAST_ACCUM`). Transformer Engine splits the sums so for both gradients and not in the
forward (`_2X_ACC_DGRAD` and `_2X_ACC_WGRAD` in pytorch/module/base.py, `fp8_gemm_dgrad` and
`fp8_gemm_wgrad` in common/recipe), torchao likewise with a scale for each tensor and never with one for
each row (`Float8LinearConfig` in float8/config.py)."""


OPERAND_BYTES = {"fp8": 1, "fp4": 1 / 2}
"""The bytes of a number that a product reads where it was cast. Scales are left out."""


def matmul_s(kernel: Matmul, gpu: Gpu, precision: str) -> float:
    """Seconds of a matrix product alone.

    The output is cut into tiles, of which each multiprocessor computes one at a time: the time is
    that of ceil(tiles / multiprocessors) rounds at the efficiency of a full one ("wave
    quantization", NVIDIA, Matrix Multiplication Background User's Guide). Of the tile shapes the
    fastest is taken. No less than reading both operands takes; and then the result is written (a
    weight gradient added to one in fp32, or in 16 bits): the last thing that every tile does. In fp8 and fp4 the operands
    have 8 and 4 bits already; `casts_s` says what that took. The products of a `GroupedMatmul` share the
    rounds: a multiprocessor takes its next tile from whichever product has one left, and each
    product reads its own operands and writes its own result. Leaves out: split-k, what the caches
    hold, clocks that fall under load other than by the measured efficiency.
    """
    reached = efficiencies_of(gpu)
    width = 4 if precision == "fp32" else 2
    fraction, operand_bytes = reached.matmul[kernel.role], OPERAND_BYTES.get(precision[:3], width)
    if precision == "fp4":
        fraction = reached.matmul.get(f"{kernel.role} in 4 bits", fraction)
    elif operand_bytes == 1 and "fp8" in gpu.peak_flops:
        role = f"{kernel.role} in 8 bits"
        scaled = "in blocks" if precision == "fp8-mx" else "split"
        fraction = reached.matmul.get(role, fraction)
        if precision not in FAST_SUMS:
            fraction = reached.matmul.get(f"{role}, {scaled}", fraction)
    flops_per_s = peak_flops(gpu, precision) * fraction / gpu.sms
    products = products_of(kernel)
    best = min(
        _waves_s(products, rows, columns, part * flops_per_s, gpu.sms)
        for rows, columns, part in reached.tiles
    )
    operands = sum(its.batch * (its.m * its.k + its.k * its.n) for its in products)
    result = sum(its.batch * its.m * its.n for its in products)
    bandwidth = _bandwidth(gpu, reached)
    is_added = kernel.role == "weight" and not kernel.fresh
    written_s = (2 * kernel.sum_bytes if is_added else width) * result / bandwidth
    read_s = operand_bytes * operands / bandwidth
    return max(best, read_s) + written_s + reached.kernel_s


AFTER_NORM = (OperationKind.QKV, OperationKind.IN_PROJECTION, OperationKind.UP)
"""The products whose input a norm has made, in Megatron-LM by one module with it
(`TELayerNormColumnParallelLinear` in core/models/gpt/gpt_layer_specs.py); experts have a norm apart."""


CAST_BYTES = {"fp8": (4, 1), "fp8-current": (6, 6), "fp8-mx": (6, 0), "fp4": (8, 8)}
"""{precision: what Transformer Engine moves for each number that it casts, and for one that comes from
a norm in the same module over what that norm moves in 16 bits}. A cast reads 2 bytes and writes the
number as it is and transposed, 1 + 1; current scaling reads 2 more before, for the largest value. A
cast of MXFP8 takes 1.47 times as long as one of delayed scaling: four products of a layer, with and
without casts, on a B300 (@d0067d0d docs/examples/gemm_profiling/gemm_profiling.rst: 2.847 - 2.365 against
2.486 - 2.158 ms). Delayed scaling's norm writes 8 bits (2 + 1), which are then transposed (1 + 1), for
the 2 + 2 of a norm in 16; MXFP8's writes both forms; with current scaling cuDNN's norm writes 16 bits
(`Impl` in its pytorch/csrc/extensions/normalization.cpp). A cast to NVFP4 takes 2.07 times as long as one of
delayed scaling (the same table: 1.932 - 1.254 ms), for it finds the largest value, turns what the weight's
gradient reads (random Hadamard transforms), and rounds gradients at random, which is not told apart here;
that a norm casts for it is not known."""


def casts_s(
    kernel: Matmul,
    gpu: Gpu,
    precision: str = "fp8",
    *,
    kept_for: int = 0,
    gathered: bool = False,
    made: bool = False,
    beside_bytes_per_s: float | None = None,
) -> float:
    """Seconds of casting the operands of a product from 16 bits to 8. beside_bytes_per_s: see
    `kernel_s`.

    kept_for: the microbatches that share one cast of the weights in Transformer Engine; 0 where
    torchao casts. gathered: whether the weights are parameters in 8 bits, which are transposed only.
    made: whether the left operand was made in 8 bits.

    Transformer Engine casts the input in the forward, for the product and for the weight's gradient,
    and the gradient of the result in the backward, for both gradients, in `CAST_BYTES`
    (`quantizer.set_usage` in its pytorch/module/linear.py and `grad_output_preprocess` in base.py). A
    norm in the same module may write its result in 8 bits (`with_quantized_norm` in
    layernorm_linear.py). The weights are cast by the first microbatch of a step
    (`is_first_microbatch`, `quantize_weight`).

    torchao casts both operands before each of the three products, in 5 bytes a number: it reads them
    once to find the largest value (`tensor_to_scale` and `hp_tensor_to_float8_dynamic` in
    torchao/float8) and once to cast. With a scale for each row the same is counted: torch.compile
    finds a row's largest value in the kernel that casts, but each operand is cast by rows for one
    product and by columns for another.

    Leaves out: that a full recomputation needs no transposed form the first time; per-tensor scales on
    Blackwell, which transpose nothing.
    """
    products, reached = products_of(kernel), efficiencies_of(gpu)
    left = sum(its.batch * its.m * its.k for its in products)
    right = sum(its.batch * its.k * its.n for its in products)
    moved, launches = 5.0 * (left + right), 2
    if kept_for:
        if kernel.role == "weight":
            return 0.0
        fused = kernel.operation in AFTER_NORM and not isinstance(kernel, GroupedMatmul)
        is_forward = kernel.role == "forward"
        apart, after_norm = CAST_BYTES[precision]
        moved = 0.0 if made else (after_norm if fused and is_forward else apart) * left
        moved += (2 if gathered else apart) * right / kept_for * is_forward
        launches = 0 if made else 1
    bandwidth = _bandwidth(gpu, reached, beside_bytes_per_s or 0.0)
    return moved / bandwidth + launches * reached.kernel_s


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


def memory_s(size_bytes: float, gpu: Gpu, taken: float = 0.0) -> float:
    """Seconds of a kernel that reads and writes `size_bytes`. taken: what else moves meanwhile,
    bytes/s."""
    reached = efficiencies_of(gpu)
    return size_bytes / _bandwidth(gpu, reached, taken) + reached.kernel_s


def _bandwidth(gpu: Gpu, reached: Efficiency, taken: float = 0.0) -> float:
    """Bytes/s of a kernel that is limited by memory: what it reaches alone, or what is left of the
    bandwidth where something else takes a part, of which no collective takes more than half. A
    CPU's bandwidth is that of one process, from which nothing is taken here."""
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    if not taken or gpu.is_core:
        return reached.memory * bandwidth
    return min(reached.memory * bandwidth, bandwidth - min(taken, bandwidth / 2))


def efficiencies_of(gpu: Gpu) -> Efficiency:
    """The `Efficiency` of a `Gpu`: its own, the one under a name in data/kernels.json, or that of the
    nearest GPU."""
    if isinstance(gpu.efficiency, Efficiency):
        return gpu.efficiency
    name = gpu.efficiency or gpu.name
    if name in efficiencies():
        return efficiencies()[name]
    return efficiencies_of(gpus()[nearest(gpu)])


@cache
def nearest(gpu: Gpu, among: frozenset[str] | None = None) -> str:
    """The name of the GPU of the catalogue, measured or said to reach what another does, that is taken for
    one of which no efficiencies are known. among: the names that it may have; None: all.

    It is that whose multiprocessors compute nearly as much per second in 16 bits, which tells the
    architecture: 1.6 TFLOP/s in a V100, 2.9 in an A100, 7.5 in an H100 and 15 in a B200. Of several
    of one architecture it is that with the nearest ratio of FLOP/s to bytes/s, then that with as much memory. This ratio alone does not
    tell them apart: 295 in an H100, 281 in a B200, and 201 and 206 in an A100 of 40 GB and an H200.
    """

    def apart(other: Gpu, figure: Callable[[Gpu], float]) -> float:
        return abs(log(figure(gpu) / figure(other)))

    def distance(name: str) -> tuple[float, float, float]:
        return (
            apart(gpus()[name], lambda its: peak_flops(its, "bf16") / its.sms),
            apart(
                gpus()[name], lambda its: peak_flops(its, "bf16") / its.memory_bandwidth_bytes_per_s
            ),
            apart(gpus()[name], lambda its: its.memory_bytes),
        )

    known = (
        name
        for name, its in gpus().items()
        if (name in efficiencies() or its.efficiency) and (among is None or name in among)
    )
    return min(known, key=distance)


def assumptions(cluster: Cluster) -> list[str]:
    """[sentence about each kind of GPU of which no efficiencies are known: neither its own nor given ones]"""

    def is_taken(gpu: Gpu) -> bool:
        given = gpu.efficiency is not None and gpus().get(gpu.name) != gpu
        return not given and gpu.name not in efficiencies()

    unknown = dict.fromkeys(part.gpu for part in cluster.parts if is_taken(part.gpu))
    return [
        f"no kernels of {gpu.name} were measured: they are taken to reach the fractions of its peaks that "
        + (
            f"those of {gpu.efficiency} reach (`cluster check` says why)"
            if gpu.efficiency
            else f"those of {nearest(gpu)} reach, which is the nearest; its efficiency can be given"
        )
        for gpu in unknown
    ]
