"""Times of what this machine's processors or its GPU do without messages: matrix products, attention, kernels
that the memory bounds, and the host's time per op.

Every figure is measured at the sizes that a `Sample` says, and none comes from a data sheet. On a CPU
all processes are timed at once, because they share caches, the memory and the clock's limits as the
ranks of a training do. Left out: batched products (unfused attention), fp8, and clocks that fall
when all of a node works for minutes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from realrun.measure.machine.sample import Kind, Sample
from realrun.measure.stopwatch import Stopwatch
from realrun.model.gpt import Block
from simlab.units import MIB

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("bf16", "fp16", "tf32", "fp32")}
"""{kind of device: precisions}; the first is the one that everything but the largest product is
measured in."""


TINY = (8, 2, 4)  # hidden, heads, seq: a layer that takes no time to compute


class Grid(NamedTuple):
    """Sizes to measure at."""

    products: tuple[tuple[int, int], ...]
    """(tokens, hidden) of a layer whose qkv (hidden to 3 hidden) and down (4 hidden to hidden)
    run."""
    attentions: tuple[tuple[int, int, int, int], ...]
    """(batch, heads, seq, head size)"""
    memory_bytes: tuple[int, ...]
    """Of the tensor that is read."""
    layers: tuple[tuple[int, int, int, int], ...]
    """(batch, seq, hidden, heads)"""


Work = tuple[Kind, str, dict[str, int], Callable[[], Any]]
"""(kind, variant, sizes, function). Works are made one at a time, so that the tensors of one are
gone when those of the next are made."""

GRIDS = {
    "cpu": {
        True: Grid(
            ((256, 256), (1024, 256), (256, 768), (1024, 768)),
            ((1, 4, 256, 64), (4, 4, 128, 64), (1, 12, 512, 64)),
            (4 * MIB, 8 * MIB, 24 * MIB),
            (),
        ),
        False: Grid(
            ((512, 512), (384, 640)),
            ((2, 8, 256, 64), (1, 8, 384, 64)),
            (6 * MIB, 16 * MIB, 64 * MIB),
            ((2, 256, 512, 8),),
        ),
    },
    "cuda": {
        True: Grid(
            ((2048, 2048), (8192, 2048), (2048, 4096), (8192, 4096), (4096, 8192)),
            ((1, 32, 2048, 128), (4, 16, 1024, 64), (1, 32, 8192, 128)),
            (64 * MIB, 256 * MIB, 1024 * MIB),
            (),
        ),
        False: Grid(
            ((4096, 3072), (4096, 5120)),
            ((2, 32, 4096, 128), (8, 16, 1024, 128)),
            (128 * MIB, 512 * MIB),
            ((2, 4096, 4096, 32),),
        ),
    },
}
"""{kind of device: {fitted: Grid}}"""


def kernel_samples(
    watch: Stopwatch, *, check: bool = False, say: Callable[[str], None] = lambda text: None
) -> list[Sample]:
    """Samples of everything that one device does alone. check: also at the sizes that are kept
    apart from the fit. say: called with one line of progress at a time."""
    device, precisions = watch.device, PRECISIONS[watch.device.type]
    samples = [Sample("launch", "", {}, watch.seconds(_tiny_add(device)), True)]
    say("timing the largest product in each precision")
    samples += [_peak_sample(watch, precision) for precision in precisions]
    for fitted in (True, False) if check else (True,):
        grid, dtype = GRIDS[device.type][fitted], DTYPES[precisions[0]]
        which = "" if fitted else ", at the sizes kept apart"
        say(f"timing matrix products, attention and the memory in {precisions[0]}{which}")
        for work in (matmuls, attentions, memory_kernels):
            samples += [
                Sample(kind, variant, sizes, watch.seconds(run), fitted)
                for kind, variant, sizes, run in work(grid, device, dtype)
            ]
        samples += host_samples(watch, fitted)
        samples += [
            Sample(kind, variant, sizes, watch.seconds(run), fitted)
            for kind, variant, sizes, run in layers(grid, device, dtype)
        ]
    return samples


def _on_a_rank(mesh: Any, budget_s: float, check: bool, threads: int) -> dict[str, Any]:
    """`kernel_samples` of this process, and `Stopwatch.waited`, as plain values."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        watch = Stopwatch(torch.device("cpu"), budget_s)
        return {"samples": kernel_samples(watch, check=check), "waited": watch.waited}
    finally:
        torch.set_num_threads(before)


OF_A_RANK = {"kernels": _on_a_rank}
"""Functions that all ranks call at once, see `Pool.call`."""


def _tiny_add(device: torch.device) -> Callable[[], Any]:
    x = torch.zeros(1, device=device)
    return lambda: x.add_(1)


def _peak_sample(watch: Stopwatch, precision: str) -> Sample:
    tokens, hidden = max(GRIDS[watch.device.type][True].products)
    x, w = (
        torch.randn(shape, device=watch.device).to(DTYPES[precision])
        for shape in ((tokens, hidden), (4 * hidden, hidden))
    )
    with tf32_products(precision == "tf32"):
        return Sample(
            "peak",
            precision,
            {"m": tokens, "n": 4 * hidden, "k": hidden},
            watch.seconds(lambda: x @ w.T),
            True,
        )


@contextmanager
def tf32_products(allowed: bool) -> Iterator[None]:
    """Inside, CUDA may compute float32 products in tf32, or may not."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def matmuls(grid: Grid, device: torch.device, dtype: torch.dtype) -> Iterator[Work]:
    """The products of a linear layer: x W^T in the forward, dY W for the input's gradient and dY^T
    x for the weight's, as torch lays them out.

    In fp32 the last one is added to a gradient that is there, as in training. In 16 bits torch has
    no product that adds to a gradient in 32.
    """
    for tokens, hidden in grid.products:
        for width_in, width_out in ((hidden, 3 * hidden), (4 * hidden, hidden)):
            x, w, dy = (
                torch.randn(shape, device=device).to(dtype)
                for shape in ((tokens, width_in), (width_out, width_in), (tokens, width_out))
            )
            forward = {"m": tokens, "n": width_out, "k": width_in}
            yield "matmul", "forward", forward, partial(torch.matmul, x, w.T)
            of_input = {"m": tokens, "n": width_in, "k": width_out}
            yield "matmul", "input", of_input, partial(torch.matmul, dy, w)
            of_weight = {"m": width_out, "n": width_in, "k": tokens}
            yield "matmul", "weight", of_weight, _weight_gradient(x, dy)


def _weight_gradient(x: Tensor, dy: Tensor) -> Callable[[], Any]:
    if x.dtype != torch.float32:
        return partial(torch.matmul, dy.T, x)
    there = torch.zeros(dy.shape[1], x.shape[1], device=x.device)
    return partial(there.addmm_, dy.T, x)


def attentions(grid: Grid, device: torch.device, dtype: torch.dtype) -> Iterator[Work]:
    """torch's fused causal attention, forward and backward."""
    for batch, heads, seq, head_size in grid.attentions:
        q, k, v = (
            torch.randn(batch, heads, seq, head_size, device=device).to(dtype).requires_grad_()
            for _ in range(3)
        )
        sizes = {
            "batch": batch,
            "heads": heads,
            "queries": seq,
            "keys": seq,
            "head_size": head_size,
        }
        forward = partial(functional.scaled_dot_product_attention, q, k, v, is_causal=True)
        out = forward()
        grad = torch.randn_like(out)
        yield "attention", "forward", sizes, forward
        backward = partial(torch.autograd.grad, out, (q, k, v), grad, retain_graph=True)
        yield "attention", "backward", sizes, backward


def memory_kernels(grid: Grid, device: torch.device, dtype: torch.dtype) -> Iterator[Work]:
    """Kernels that the memory bounds. size_bytes counts what is read and written, as
    `simlab.lowering.kernels` does."""
    for size in grid.memory_bytes:
        x = torch.randn(size // dtype.itemsize // 1024, 1024, device=device).to(dtype)
        y = torch.empty_like(x)
        one_in_one_out, two_in_one_out = {"size_bytes": 2 * x.nbytes}, {"size_bytes": 3 * x.nbytes}
        yield "memory", "copy", one_in_one_out, partial(y.copy_, x)
        yield "memory", "add", two_in_one_out, partial(torch.add, x, y)
        yield "memory", "norm", one_in_one_out, partial(functional.layer_norm, x, (1024,))
        yield "memory", "gelu", one_in_one_out, partial(functional.gelu, x)
        yield "memory", "softmax", one_in_one_out, partial(torch.softmax, x, -1)


def layers(grid: Grid, device: torch.device, dtype: torch.dtype) -> Iterator[Work]:
    """A whole transformer block, forward and backward. It is never fitted, because the simulator
    puts it together from the rest."""
    for batch, seq, hidden, heads in grid.layers:
        block = Block(hidden, heads).to(device, dtype)
        x = torch.randn(batch, seq, hidden, device=device).to(dtype).requires_grad_()
        sizes = {"batch": batch, "seq": seq, "hidden": hidden, "heads": heads}
        y = block(x)
        grad, inputs = torch.randn_like(y), (x, *block.parameters())
        yield "layer", "forward", sizes, partial(block, x)
        backward = partial(torch.autograd.grad, y, inputs, grad, retain_graph=True)
        yield "layer", "backward", sizes, backward


def host_samples(watch: Stopwatch, fitted: bool) -> list[Sample]:
    """The host's time of a layer that is too small to compute anything: one `Block`, or three in a
    row where the sample is kept apart from the fit."""
    hidden, heads, seq = TINY
    depth = 1 if fitted else 3
    block = torch.nn.Sequential(*[Block(hidden, heads) for _ in range(depth)])
    x = torch.randn(1, seq, hidden, requires_grad=True)
    ops = dispatched_ops(lambda: _forward_backward(block, x))
    block, x = block.to(watch.device), x.detach().to(watch.device).requires_grad_()
    return [
        Sample(
            "host",
            "",
            {"ops": ops, "blocks": depth},
            watch.host_seconds(lambda: _forward_backward(block, x)),
            fitted,
        )
    ]


def _forward_backward(block: torch.nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    y = block(x)
    return torch.autograd.grad(y, (x, *block.parameters()), torch.ones_like(y))


def dispatched_ops(work: Callable[[], Any]) -> int:
    """The number of ops that torch's dispatcher sees in `work()`, views included."""

    class Count(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.ops += 1
            return op(*args, **(kwargs or {}))

    with Count() as count:
        work()
    return count.ops
