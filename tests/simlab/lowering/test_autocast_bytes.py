"""What torch's autocast reads and writes beside the products of a layer, held against torch's own ops on
a CPU."""

from collections import Counter
from dataclasses import replace

import pytest

from simlab.lowering.kernels import Matmul, Memory, layer_kernels
from simlab.spec.model import Model
from simlab.spec.plan import Plan

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  (it needs torch)
from torch.nn import functional  # noqa: E402
from torch_bytes import MovedBytes  # noqa: E402

TOKENS, HIDDEN, HEADS = 64, 256, 8
ELEMENTS = TOKENS * HIDDEN
GPT = Model(layers=2, hidden=HIDDEN, heads=HEADS, vocab=4096, positions=TOKENS, seq=TOKENS)
DDP = Plan(library="torch", dropout=False)


class Layer(nn.Module):
    """A layer of a GPT."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).view(1, TOKENS, 3, HEADS, -1)
        mixed = functional.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, TOKENS, HIDDEN))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def moved(microbatches):
    """({op: bytes of a forward}, {op: mean bytes of a backward}) of so many microbatches."""
    layer, forward, backward = Layer(), Counter(), Counter()
    for _ in range(microbatches):
        x = torch.randn(1, TOKENS, HIDDEN, requires_grad=True)
        with MovedBytes(ELEMENTS) as ran, torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        forward = Counter()
        for name, size in ran.ops:
            forward[name] += size
        gradient = torch.randn_like(y)
        with MovedBytes(ELEMENTS) as ran:
            y.backward(gradient)
        for name, size in ran.ops:
            backward[name] += size / microbatches
    return forward, backward


def sizes(kernels, *starts):
    """Bytes of the `Memory` kernels whose names start so."""
    return sum(
        kernel.size_bytes
        for kernel in kernels
        if isinstance(kernel, Memory) and kernel.name.startswith(starts)
    )


def test_the_forward_casts_weights_and_norms_and_adds_in_fp32():
    kernels, (forward, _) = layer_kernels(GPT, DDP), moved(1)
    listed = sizes(kernels.forward, "copy", "norm", "residual")
    assert listed == forward["_to_copy"] + forward["native_layer_norm"] + forward["add"]


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_the_backward_casts_gradients_back_and_adds_all_but_the_first(microbatches):
    kernels = layer_kernels(GPT, replace(DDP, microbatches=microbatches))
    _, backward = moved(microbatches)
    # torch's one op of a norm's backward is two kernels, which read both operands each
    norms = backward["native_layer_norm_backward"] + 2 * 8 * ELEMENTS
    listed = sizes(kernels.input_grad, "copy", "norm", "residual") + sizes(
        kernels.weight_grad, "copy"
    )
    sums = backward["add"] + backward["add_"]
    assert listed == pytest.approx(backward["_to_copy"] + norms + sums)


def test_a_product_writes_its_weights_gradient_in_16_bits_and_a_forward_again_casts_again():
    kernels = layer_kernels(GPT, replace(DDP, recompute="full"))
    assert all(its.fresh for its in kernels.weight_grad if isinstance(its, Matmul))
    assert sizes(kernels.recompute, "copy") == sizes(kernels.forward, "copy") > 0


@pytest.mark.parametrize("changed", [
    {"library": "megatron"}, {"precision": "fp32"}, {"zero": 3, "dp": 2}, {"tp": 2}, {"pp": 2},
], ids=str)  # fmt: skip
def test_nothing_is_cast_where_parameters_have_16_bits_or_are_cast_as_a_whole(changed):
    kernels = layer_kernels(GPT, replace(DDP, **changed))
    assert (
        sizes(
            [*kernels.forward, *kernels.weight_grad], "copy of weights", "copy of gradients in fp32"
        )
        == 0
    )
