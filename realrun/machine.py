"""What this machine's processor or GPU does alone, timed: matrix products, attention, what the memory bounds, the host's time per op.

Every figure is measured at the sizes that a `Sample` says; none comes from a data sheet. Left out: batched products (unfused attention),
fp8, what several processes on one memory take from each other, and clocks that fall when all of a node works for minutes.
"""

import os
import platform
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from realrun.clock import now
from realrun.model import Block
from simlab.units import MIB

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("bf16", "fp16", "tf32", "fp32")}
"""{kind of device: precisions}; the first is the one that everything but the largest product is measured in."""
TINY = (8, 2, 4)  # hidden, heads, seq: a layer that takes no time to compute


class Sample(NamedTuple):
    """One measurement."""

    kind: str
    """'matmul forward', 'attention backward', 'memory norm', 'all_reduce', 'p2p', 'host', 'layer forward', ..."""
    sizes: dict
    """The numbers that, with the kind, say what was done."""
    seconds: float
    """The lower quartile of many rounds."""
    fitted: bool
    """Whether the fit may use it; the others are kept apart to hold the fit against."""


class Grid(NamedTuple):
    """Sizes to measure at."""

    products: tuple
    """(tokens, hidden) of a layer whose qkv (hidden to 3 hidden) and down (4 hidden to hidden) run."""
    attentions: tuple
    """(batch, heads, seq, head size)"""
    memory_bytes: tuple
    """Of the tensor that is read."""
    layers: tuple
    """(batch, seq, hidden, heads)"""


GRIDS = {
    "cpu": {
        True: Grid(((256, 256), (1024, 256), (256, 768), (1024, 768)), ((1, 4, 256, 64), (4, 4, 128, 64), (1, 12, 512, 64)),
                   (4 * MIB, 8 * MIB, 24 * MIB), ()),
        False: Grid(((512, 512), (384, 640)), ((2, 8, 256, 64), (1, 8, 384, 64)), (6 * MIB, 16 * MIB, 64 * MIB), ((2, 256, 512, 8),)),
    },
    "cuda": {
        True: Grid(((2048, 2048), (8192, 2048), (2048, 4096), (8192, 4096), (4096, 8192)),
                   ((1, 32, 2048, 128), (4, 16, 1024, 64), (1, 32, 8192, 128)), (64 * MIB, 256 * MIB, 1024 * MIB), ()),
        False: Grid(((4096, 3072), (4096, 5120)), ((2, 32, 4096, 128), (8, 16, 1024, 128)), (128 * MIB, 512 * MIB), ((2, 4096, 4096, 32),)),
    },
}  # fmt: skip
"""{kind of device: {fitted: Grid}}"""


def kernel_samples(watch, *, check=False, say=lambda text: None):
    """[`Sample`] of everything that one device does alone; with `check` also at the sizes that are kept apart."""
    device, precisions = watch.device, PRECISIONS[watch.device.type]
    samples = [Sample("launch", {}, watch.seconds(_tiny_add(device)), True)]
    say("timing the largest product in each precision")
    samples += [_peak_sample(watch, precision) for precision in precisions]
    for fitted in (True, False) if check else (True,):
        grid, dtype = GRIDS[device.type][fitted], DTYPES[precisions[0]]
        which = "" if fitted else ", at the sizes kept apart"
        say(f"timing matrix products, attention and the memory in {precisions[0]}{which}")
        for work in (matmuls, attentions, memory_kernels):
            samples += [Sample(kind, sizes, watch.seconds(run), fitted) for kind, sizes, run in work(grid, device, dtype)]
        samples += host_samples(watch, fitted)
        samples += [Sample(kind, sizes, watch.seconds(run), fitted) for kind, sizes, run in layers(grid, device, dtype)]
    return samples


def _tiny_add(device):
    x = torch.zeros(1, device=device)
    return lambda: x.add_(1)


def _peak_sample(watch, precision):
    tokens, hidden = max(GRIDS[watch.device.type][True].products)
    x, w = (torch.randn(shape, device=watch.device).to(DTYPES[precision]) for shape in ((tokens, hidden), (4 * hidden, hidden)))
    with tf32_products(precision == "tf32"):
        return Sample(f"peak {precision}", {"m": tokens, "n": 4 * hidden, "k": hidden}, watch.seconds(lambda: x @ w.T), True)


@contextmanager
def tf32_products(allowed):
    """Whether CUDA may compute float32 products in tf32, inside."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# each yields (kind, sizes, function): one at a time, so that one's tensors are gone when the next one's are made ----------


def matmuls(grid, device, dtype):
    """The products of a linear layer: x W^T forward, dY W for the input's gradient, dY^T x for the weight's, as torch lays them out.

    In fp32 the last is added to a gradient that is there, as in training; in 16 bits torch has no product that adds to one of 32.
    """
    for tokens, hidden in grid.products:
        for width_in, width_out in ((hidden, 3 * hidden), (4 * hidden, hidden)):
            x, w, dy = (
                torch.randn(shape, device=device).to(dtype) for shape in ((tokens, width_in), (width_out, width_in), (tokens, width_out))
            )
            yield "matmul forward", {"m": tokens, "n": width_out, "k": width_in}, lambda x=x, w=w: x @ w.T
            yield "matmul input", {"m": tokens, "n": width_in, "k": width_out}, lambda dy=dy, w=w: dy @ w
            yield "matmul weight", {"m": width_out, "n": width_in, "k": tokens}, _weight_gradient(x, dy)


def _weight_gradient(x, dy):
    if x.dtype != torch.float32:
        return lambda: dy.T @ x
    there = torch.zeros(dy.shape[1], x.shape[1], device=x.device)
    return lambda: there.addmm_(dy.T, x)


def attentions(grid, device, dtype):
    """torch's fused causal attention, forward and backward."""
    for batch, heads, seq, head_size in grid.attentions:
        q, k, v = (torch.randn(batch, heads, seq, head_size, device=device).to(dtype).requires_grad_() for _ in range(3))
        sizes = {"batch": batch, "heads": heads, "queries": seq, "keys": seq, "head_size": head_size}
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        grad = torch.randn_like(out)
        yield "attention forward", sizes, lambda q=q, k=k, v=v: functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        yield (
            "attention backward", sizes,
            lambda out=out, inputs=(q, k, v), grad=grad: torch.autograd.grad(out, inputs, grad, retain_graph=True),
        )  # fmt: skip


def memory_kernels(grid, device, dtype):
    """Kernels that the memory bounds. size_bytes: read and written, as `simlab.cost.kernels` counts them."""
    for size in grid.memory_bytes:
        x = torch.randn(size // dtype.itemsize // 1024, 1024, device=device).to(dtype)
        y = torch.empty_like(x)
        yield "memory copy", {"size_bytes": 2 * x.nbytes}, lambda x=x, y=y: y.copy_(x)
        yield "memory add", {"size_bytes": 3 * x.nbytes}, lambda x=x, y=y: x + y
        yield "memory norm", {"size_bytes": 2 * x.nbytes}, lambda x=x: functional.layer_norm(x, (1024,))
        yield "memory gelu", {"size_bytes": 2 * x.nbytes}, lambda x=x: functional.gelu(x)
        yield "memory softmax", {"size_bytes": 2 * x.nbytes}, lambda x=x: x.softmax(-1)


def layers(grid, device, dtype):
    """A whole transformer block, forward and backward: never fitted, for the simulator puts it together from the rest."""
    for batch, seq, hidden, heads in grid.layers:
        block = Block(hidden, heads).to(device, dtype)
        x = torch.randn(batch, seq, hidden, device=device).to(dtype).requires_grad_()
        sizes = {"batch": batch, "seq": seq, "hidden": hidden, "heads": heads}
        y = block(x)
        grad, inputs = torch.randn_like(y), (x, *block.parameters())
        yield "layer forward", sizes, lambda block=block, x=x: block(x)
        yield (
            "layer backward", sizes,
            lambda y=y, inputs=inputs, grad=grad: torch.autograd.grad(y, inputs, grad, retain_graph=True),
        )  # fmt: skip


# the host -------------------------------------------------------------------------------------------------


def host_samples(watch, fitted):
    """What the host takes for a layer too small to compute anything: one `Block`; kept apart, three of them in a row."""
    hidden, heads, seq = TINY
    depth = 1 if fitted else 3
    block = torch.nn.Sequential(*[Block(hidden, heads) for _ in range(depth)])
    x = torch.randn(1, seq, hidden, requires_grad=True)
    ops = dispatched_ops(lambda: _forward_backward(block, x))
    block, x = block.to(watch.device), x.detach().to(watch.device).requires_grad_()
    return [Sample("host", {"ops": ops, "blocks": depth}, watch.host_seconds(lambda: _forward_backward(block, x)), fitted)]


def _forward_backward(block, x):
    y = block(x)
    return torch.autograd.grad(y, (x, *block.parameters()), torch.ones_like(y))


def dispatched_ops(work):
    """How many ops torch's dispatcher sees in `work()`, views included."""

    class Count(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            self.ops += 1
            return op(*args, **(kwargs or {}))

    with Count() as count:
        work()
    return count.ops


# the node -------------------------------------------------------------------------------------------------


def host_copy_bytes_per_s(watch, size=64 * MIB):
    """Between a GPU and its host's memory (pinned), or within the memory where there is no GPU."""
    cuda = watch.device.type == "cuda"
    source = torch.ones(size, dtype=torch.uint8, pin_memory=cuda)
    target = torch.empty(size, dtype=torch.uint8, device=watch.device)
    return size / watch.seconds(lambda: target.copy_(source, non_blocking=True))


def drive_bytes_per_s(folder, size=32 * MIB):
    """What writing a file in `folder` reaches, until the system says that it is on the drive (fsync)."""
    path, data = Path(folder) / f".measure-{os.getpid()}", os.urandom(size)
    try:
        start_s = now()
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return size / (now() - start_s)
    finally:
        path.unlink(missing_ok=True)


def memory_sizes(device, ranks):
    """(bytes that a rank can allocate, bytes of the host's memory); on the CPU the ranks share what the host has."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host // ranks), host


def description(device, ranks):
    """What was measured: device, versions, threads, when."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else cpu_name(), "device_kind": device.type, "ranks": ranks,
        "precision": PRECISIONS[device.type][0], "threads": torch.get_num_threads(), "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None, "backend": "nccl" if cuda else "gloo",
        "sms": torch.cuda.get_device_properties(device).multi_processor_count if cuda else 1,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip


def cpu_name():
    """The processor as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return f"{platform.processor() or 'cpu'} ({platform.machine()})"
