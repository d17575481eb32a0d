"""Biases: each output of a product has one, in parameters and in what sums up their gradients."""

import pytest

import simlab as sl
from simlab.lowering.kernels import layer_kernels


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("gated", [False, True])
def test_gradients_of_biases_read_those_of_all_that_products_with_biases_make(tp, gated):
    """Of 64 tokens: 8 heads of queries and at least one of 2 of keys and of values, the MLP's first
    product, which with a gate makes two tensors, and two results of the width of a token."""
    model = sl.Model(
        layers=1, hidden=256, heads=8, kv_heads=2, gated_mlp=gated, vocab=1024, seq=64, bias=True
    )
    (sums,) = (k for k in layer_kernels(model, sl.Plan(tp=tp)).weight_grad if k.name == "bias grad")
    outputs = 8 * 32 / tp + 2 * max(1, 2 / tp) * 32 + (1 + gated) * 1024 / tp + 2 * 256
    assert sums.size_bytes == 2 * 64 * outputs
