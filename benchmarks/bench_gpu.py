"""The kernels of the cost model, one by one, on the GPU of this machine.

`python -m benchmarks.bench_gpu FILE.json [PART ...]` on a machine with a CUDA device; without parts,
all of them in three minutes. Each row is a kernel that torch runs, timed alone or beside another one,
and simlab's `Kernel` of it. `benchmarks/kernels_on_a_gpu.py` reads the file and predicts every row.

What a kernel loses beside a collective is measured with a kernel that occupies as many
multiprocessors, because one GPU has nobody to communicate with.
"""

import json
import sys
import time
from collections import defaultdict
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.occupier import Occupier
from realrun.measure.machine.node import description
from realrun.measure.stopwatch import Stopwatch
from simlab.lowering.kernels import Attention, GroupedMatmul, Matmul, Memory
from simlab.units import MIB

LAYERS = {
    "7B": (4096, 11008, True),
    "13B": (5120, 13824, True),
    "70B": (8192, 28672, True),
    "GPT-3": (12288, 49152, False),
}
"""{model: (hidden, width of the MLP, whether it is gated)}"""
TOKENS = (2048, 4096, 8192)
BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
LLAMA_LAYERS = [(5120, 13824, 40, 2048), (2560, 6912, 20, 2048), (4096, 14336, 32, 2048)]
"""(hidden, width of the MLP, heads, seq) of the layers that run as a whole."""
EXPERTS = [
    *((2048, 1536, 128, 128), (2048, 1536, 16, 1024), (4096, 3072, 16, 1024)),
    *((7168, 4096, 32, 128), (7168, 4096, 8, 1024), (7168, 4096, 32, 1024)),
    *((4096, 28672, 8, 1024), (4096, 28672, 2, 4096)),
]
"""(hidden, width, experts, tokens of each)"""
BESIDE = [
    *((2048, 4096, 1536), (2048, 4096, 4096), (4096, 4096, 4096), (4096, 5120, 3840)),
    *((4096, 8192, 2560), (4096, 8192, 7168), (4096, 3584, 8192), (8192, 8192, 8192)),
    *((8192, 4096, 11008), (2048, 12288, 4608)),
]
"""(tokens, width in, width out) of the products that meet another kernel"""
SUSTAINED_S = 10
OCCUPIERS = {
    "24, none": (24, None),
    "24, .94 TB/s": (24, 3000),
    "16, .97 TB/s": (16, 1000),
    "16, none": (16, None),
    "8, none": (8, None),
}
"""{multiprocessors, what moves: (multiprocessors, ns between two copies of all threads)}"""


# what runs: generators of (name, simlab's kernel, function)
# --------------------------------------------------------------------------------------------------


def shapes():
    """(name, tokens, width in, width out) of a layer's products, of a tensor-parallel rank."""
    for name, (hidden, ffn, gated) in LAYERS.items():
        for tp in (1, 2, 4, 8):
            for tokens in TOKENS if tp in (1, 4) else TOKENS[1:2]:
                place = f"{name}, tp {tp}, {tokens} tokens"
                yield f"{place}: qkv", tokens, hidden, 3 * hidden // tp
                yield f"{place}: up", tokens, hidden, (1 + gated) * ffn // tp
                yield f"{place}: down", tokens, ffn // tp, hidden


def random(*shape, dtype=BF16):
    """A tensor whose bits are as random as activations' are: zeros take less power."""
    return torch.randn(*shape, device="cuda", dtype=BF16).to(dtype)


def linear(name, tokens, width_in, width_out):
    """The three products of a linear layer."""
    x, w, dy = random(tokens, width_in), random(width_out, width_in), random(tokens, width_out)
    yield name, Matmul("forward", tokens, width_out, width_in), lambda: x @ w.T
    yield name, Matmul("input", tokens, width_in, width_out, role="input"), lambda: dy @ w
    made = Matmul("weight", width_out, width_in, tokens, role="weight", fresh=True)
    yield name, made, lambda: dy.T @ x


def weight(name, tokens, width_in, width_out):
    """A weight gradient that is added to one in fp32 by the product itself. torch's copies the one
    that was there first, and adds to the copy."""
    x, dy = random(tokens, width_in), random(tokens, width_out)
    there = torch.zeros(width_out, width_in, device="cuda")
    added = Matmul("added", width_out, width_in, tokens, role="weight")
    yield name, added, lambda: torch.addmm(there, dy.T, x, out_dtype=FP32)


def in_eight_bits(name, tokens, width_in, width_out):
    """A product of operands that are in fp8 already, with a scale of each tensor or of each row."""
    kernel = Matmul("fp8", tokens, width_out, width_in)
    x, w = random(tokens, width_in, dtype=FP8), random(width_out, width_in, dtype=FP8)
    whole = torch.ones((), device="cuda")
    rows, columns = (torch.ones(n, device="cuda") for n in (tokens, width_out))
    scaled = partial(torch._scaled_mm, x, w.T, out_dtype=BF16)
    yield f"{name}, by tensor", kernel, partial(scaled, whole, whole, use_fast_accum=True)
    by_row = partial(scaled, rows[:, None], columns[None, :], use_fast_accum=False)
    yield f"{name}, by row", kernel, by_row


def experts(hidden, width, count, tokens):
    """The three products of `count` experts, each of so many tokens, in one kernel each."""
    total, each = count * tokens, (tokens,) * count
    x, w, dy = random(total, hidden), random(count, width, hidden), random(total, width)
    ends = torch.arange(1, count + 1, device="cuda", dtype=torch.int32) * tokens
    product = partial(functional.grouped_mm, offs=ends)
    name = f"{count} experts of {hidden} x {width}, {tokens} tokens each"
    forward = GroupedMatmul("forward", total, width, hidden, tokens=each)
    yield name, forward, lambda: product(x, w.transpose(1, 2))
    of_input = GroupedMatmul("input", total, hidden, width, role="input", tokens=each)
    yield name, of_input, lambda: product(dy, w)
    made = GroupedMatmul("weight", width, hidden, total, role="weight", tokens=each, fresh=True)
    yield name, made, lambda: product(dy.T, x)


def attention(batch, heads, seq, head_size=128):
    """FlashAttention-2, forward and backward, as torch has it."""
    q, k, v = (random(batch, heads, seq, head_size).requires_grad_() for _ in range(3))
    forward = partial(functional.scaled_dot_product_attention, q, k, v, is_causal=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = forward()
    grad = torch.randn_like(out)
    sizes = batch, heads, seq, seq, head_size

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            forward()

    name = f"{batch} x {heads} heads of {seq} tokens"
    yield name, Attention("forward", *sizes, generation="flash-2"), flash
    backward = partial(torch.autograd.grad, out, (q, k, v), grad, retain_graph=True)
    yield name, Attention("backward", *sizes, backward=True, generation="flash-2"), backward


def moving(size):
    """Kernels that the memory bounds, of tensors of `size` bytes in bf16."""
    x = random(max(1, size // 2 // 4096), 4096)
    y, gain, wide = torch.empty_like(x), random(4096), torch.randn(x.shape, device="cuda")
    name = f"{size // MIB} MiB"
    for what, passes, work in [
        ("copy", 2, partial(y.copy_, x)),
        ("add", 3, partial(torch.add, x, y, out=y)),
        ("rms norm", 2, partial(functional.rms_norm, x, (4096,), gain)),
        ("layer norm", 2, partial(functional.layer_norm, x, (4096,))),
        ("silu", 2, partial(functional.silu, x)),
        ("gelu", 2, partial(functional.gelu, x)),
        ("added to fp32", 5, partial(wide.add_, x)),
    ]:
        yield f"{what}, {name}", Memory(what, passes * x.nbytes), work


def cross_entropy(tokens, vocab):
    """The loss and its gradient by torch's own ops: the bytes are those of the cast (6), the loss in
    fp32 (8) and its gradients (16 and 6), a logit."""
    logits, targets = (
        random(tokens, vocab).requires_grad_(),
        torch.randint(vocab, (tokens,), device="cuda"),
    )

    def both():
        functional.cross_entropy(logits.float(), targets).backward()
        logits.grad = None

    yield f"{tokens} x {vocab}", Memory("loss", 36 * tokens * vocab), both


def updates():
    """A step of AdamW by torch, as one kernel (28 bytes a parameter) and op by op (80), and the norm
    and the clipping of gradients (12)."""
    parameters = [nn.Parameter(torch.randn(4096, 4096, device="cuda")) for _ in range(24)]
    count = sum(its.numel() for its in parameters)
    for its in parameters:
        its.grad = torch.randn_like(its)
    for name, size, options in (("fused", 28, {"fused": True}), ("lists", 80, {"foreach": True})):
        step = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1, **options).step
        yield f"AdamW, {name}", Memory(name, size * count), step
    clip = partial(nn.utils.clip_grad_norm_, parameters, 1.0)
    yield "norm and clipping", Memory("clipping", 12 * count), clip


# parts: generators of rows
# --------------------------------------------------------------------------------------------------


def products(watch):
    """Products in 16 bits, in their three layouts."""
    return timed(watch, (linear(*shape) for shape in shapes()))


def weights(watch):
    """Weight gradients that are added in fp32."""
    return timed(watch, (weight(*shape) for shape in shapes()))


def fp8(watch):
    """Products in 8 bits."""
    return timed(watch, (in_eight_bits(*shape) for shape in shapes()))


def grouped(watch):
    """Products of experts."""
    return timed(watch, (experts(*each) for each in EXPERTS))


def attentions(watch):
    """Fused attention."""
    sizes = [(1, 32, 2048), (4, 32, 2048), (1, 8, 8192), (1, 32, 8192), (1, 8, 32768)]
    return timed(watch, (attention(*each) for each in sizes))


def memory(watch):
    """What the memory bounds, from sizes that a cache holds to a GiB."""
    return timed(watch, (moving(2**power * MIB) for power in range(11)))


def rest(watch):
    """Losses and updates."""
    sizes = [(2048, 32000), (8192, 32000), (8192, 128256)]
    return timed(watch, (*(cross_entropy(*each) for each in sizes), updates()))


def timed(watch, groups):
    """Rows of kernels alone."""
    for works in groups:
        for name, kernel, work in works:
            yield {"name": name, **described(kernel), "seconds": watch.seconds(work)}


def beside(watch):
    """Rows of kernels alone and beside one that occupies."""
    for what, (sms, pause_ns) in OCCUPIERS.items():
        occupier = Occupier(sms, pause_ns)
        for name, kernel, work in met():
            alone_s = watch.seconds(work)
            row = {"name": name, "beside": what, **described(kernel), "alone_s": alone_s}
            yield row | {"seconds": occupier.beside_s(work, alone_s)}
        yield {"name": "occupier", "beside": what, "bytes_per_s": occupier.bytes_per_s()}


def met():
    """Products of few rounds and of many, attention, additions."""
    for tokens, width_in, width_out in BESIDE:
        name = f"{tokens} tokens, {width_in} to {width_out}"
        yield from linear(name, tokens, width_in, width_out)
    for batch, heads, seq in [(1, 8, 4096), (1, 32, 4096), (4, 16, 2048)]:
        yield from attention(batch, heads, seq)
    for size in (64 * MIB, 512 * MIB):
        yield from (each for each in moving(size) if each[1].name == "add")


def described(kernel):
    """What a row says of its kernel: its kind, and the fields that are not as in any other."""
    default = {field.name: field.default for field in fields(kernel)}
    said = {name: value for name, value in asdict(kernel).items() if value != default[name]}
    return {"kind": type(kernel).__name__, "kernel": said}


class Layer(nn.Module):
    """A layer of Llama of torch's own ops: the norms, attention and the products are a kernel each."""

    def __init__(self, hidden, ffn, heads):
        super().__init__()
        own = {"bias": False, "device": "cuda", "dtype": BF16}
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(hidden, device="cuda", dtype=BF16) for _ in range(2))
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, **own), nn.Linear(hidden, hidden, **own)
        self.up, self.down = nn.Linear(hidden, 2 * ffn, **own), nn.Linear(ffn, hidden, **own)

    def forward(self, x):
        batch, seq, hidden = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, seq, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, hidden))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def microbatches(watch):
    """Seconds a sequence and layer by kinds of kernels, of microbatches of 1, 2, 4 and 8 sequences:
    four layers forward and then backward, as in a stage, in turns on a GPU that is warm. No gradient
    is added to one that is there."""
    for _ in sustained(watch, 5):
        pass
    for hidden, ffn, heads, seq in LLAMA_LAYERS:
        stage = nn.Sequential(*[Layer(hidden, ffn, heads) for _ in range(4)])
        found = defaultdict(list)
        for turn in range(4):
            for batch in (1, 2, 4, 8):
                for kind, seconds in profiled(stage, random(batch, seq, hidden)).items():
                    if turn:  # the first one loads kernels
                        found[batch, kind].append(seconds / 4 / batch)
        for (batch, kind), seconds in found.items():
            sizes = {"hidden": hidden, "ffn": ffn, "heads": heads, "seq": seq, "batch": batch}
            name = f"{kind}, {batch} sequences"
            yield {"name": name, "kind": kind, "sizes": sizes, "seconds": sorted(seconds)[1]}


def profiled(stage, x):
    """{kind of kernel: seconds of one forward and backward}"""
    from torch.profiler import ProfilerActivity, profile

    repeats = 16 // len(x)
    x.requires_grad_()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(repeats):
            stage(x).sum().backward()
            stage.zero_grad()
        torch.cuda.synchronize()
    times = defaultdict(float)
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[kind_of(event.name)] += event.time_range.elapsed_us() / 1e6 / repeats
    return times


def kind_of(name):
    """Which of three kinds a CUDA kernel of this name is."""
    if any(part in name for part in ("gemm", "nvjet", "cutlass_80", "splitK", "cublas")):
        return "products"
    return "attention" if any(part in name.lower() for part in ("flash", "cudnn")) else "memory"


def calls(watch):
    """What an op and a call of NCCL take the host."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(1024, device="cuda")
    for name, work in {
        "an op in place": partial(x.add_, 1),
        "all-reduce": partial(dist.all_reduce, x),
        "all-reduce, then waited for": lambda: dist.all_reduce(x, async_op=True).wait(),
        "all-gather": partial(dist.all_gather_into_tensor, x, x),
        "reduce-scatter": partial(dist.reduce_scatter_tensor, x, x),
    }.items():
        seconds = watch.host_seconds(lambda work=work: [work() for _ in range(20)]) / 20
        yield {"name": name, "kind": "call", "seconds": seconds}
    dist.destroy_process_group()


def sustained(watch, last_s=SUSTAINED_S):
    """The same product for seconds: what the clock does when the chip is warm."""
    x, w, kernel = random(8192, 8192), random(8192, 8192), Matmul("forward", 8192, 8192, 8192)
    begin_s = time.monotonic()
    while (passed_s := time.monotonic() - begin_s) < last_s:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(300):
            x @ w.T
        end.record()
        torch.cuda.synchronize()
        row = {"name": f"after {passed_s:.1f} s", **described(kernel)}
        row |= {"clock_mhz": torch.cuda.clock_rate(), "watts": torch.cuda.power_draw() / 1e3}
        yield row | {"seconds": start.elapsed_time(end) / 300e3}


PARTS = {part.__name__: part for part in (products, weights, fp8, grouped, attentions, beside)}
PARTS |= {part.__name__: part for part in (memory, rest, microbatches, calls, sustained)}


def text(found):
    """`found` as JSON with a line for each row, numbers to four digits."""
    lines = []
    for name, part in found["parts"].items():
        rows = [
            json.dumps(
                {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
            )
            for row in part["rows"]
        ]
        head = f'"{name}": {{"machine": {json.dumps(part["machine"])}, "rows": [\n'
        lines.append(head + ",\n".join(rows) + "\n]}")
    return '{"parts": {\n' + ",\n".join(lines) + "\n}}\n"


def main(out, *names):
    """Run the parts and write their rows to the file `out`, which keeps other parts that it has."""
    file = Path(out)
    found = json.loads(file.read_text()) if file.exists() else {"parts": {}}
    device = torch.device("cuda", 0)
    watch = Stopwatch(device, 0.05)
    for name in names or PARTS:
        begin_s = time.monotonic()
        about = description(device, 1)
        found["parts"][name] = {"machine": about, "rows": list(PARTS[name](watch))}
        file.write_text(text(found))
        print(f"{name}: {time.monotonic() - begin_s:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(PARTS):
        sys.exit(f"usage: python -m benchmarks.bench_gpu FILE.json [{' '.join(PARTS)}]")
    sys.exit(main(*sys.argv[1:]))
