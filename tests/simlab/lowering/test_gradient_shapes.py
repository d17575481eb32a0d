"""The products of a backward: each makes a gradient that is as large as what it is the gradient of."""

from dataclasses import replace

import pytest

from simlab.layer.operation import OperationKind
from simlab.lowering.kernels import GroupedMatmul, Matmul, head_kernels, layer_kernels
from simlab.spec.model import Model
from simlab.spec.plan import Plan

LLAMA = Model(
    layers=2, hidden=256, heads=8, kv_heads=2, ffn=512, vocab=1024, seq=64, gated_mlp=True, bias=False
)  # fmt: skip
EXPERTS = replace(LLAMA, experts=8, experts_per_token=2, expert_ffn=128, shared_experts=1)
LATENT = replace(LLAMA, kv_heads=8, q_rank=96, kv_rank=48, rope_size=8, value_size=24)


def products(kernels):
    return {kernel.name: kernel for kernel in kernels if isinstance(kernel, Matmul)}


MODULE = replace(LLAMA, mtp_layers=1).of_kind("module")


@pytest.mark.parametrize(
    "model", [LLAMA, EXPERTS, LATENT, MODULE], ids=["llama", "experts", "latent", "module"]
)
@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize("unit", [layer_kernels, head_kernels])
def test_a_gradient_has_the_shape_of_what_it_is_of(model, attention, unit):
    """Of y = x w, m x n with depth k: that of x is m x k with depth n, and that of w, or of the
    second operand of two activations, k x n with depth m. A weight's may lie transposed."""
    kernels = unit(model, Plan(attention=attention, microbatch_size=2, dropout=False))
    gradients = products(kernels.input_grad) | products(kernels.weight_grad)
    for name, y in products(kernels.forward).items():
        of_activations = y.operation in (OperationKind.SCORES, OperationKind.VALUES)
        first, second = ("left", "right") if of_activations else ("input", "weight")
        of_x = gradients.pop(f"{name} grad left" if of_activations else f"{name} {first} grad")
        of_w = gradients.pop(f"{name} grad right" if of_activations else f"{name} {second} grad")
        assert (of_x.m, of_x.n, of_x.k) == (y.m, y.k, y.n), name
        assert {of_w.m, of_w.n} == {y.k, y.n} and of_w.k == y.m, name
        assert of_x.batch == of_w.batch == y.batch, name
    assert not gradients


@pytest.mark.parametrize("role", ["input_grad", "weight_grad"])
def test_each_expert_makes_the_gradients_of_its_own_tokens(role):
    """As many tokens as it has in the forward; of its weights' gradient they are the depth."""
    kernels = layer_kernels(EXPERTS, Plan(microbatch_size=2, dropout=False))
    grouped = [k for k in kernels.forward if isinstance(k, GroupedMatmul)]
    found = [k for k in getattr(kernels, role) if isinstance(k, GroupedMatmul)]
    assert len(found) == len(grouped) == 2
    for y, its in zip(grouped, reversed(found)):
        for forward, gradient in zip(y.products, its.products, strict=True):
            shape = gradient.m, gradient.n, gradient.k
            if role == "input_grad":
                assert shape == (forward.m, forward.k, forward.n)
            else:
                assert {gradient.m, gradient.n} == {forward.k, forward.n}
                assert gradient.k == forward.m
