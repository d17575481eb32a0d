"""What torch's checkpointing computes again, counted by torch, against the kernels of its library."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import simlab as sl
from realrun.backends.torch.model import TorchBlock
from realrun.model.gpt import VOCAB, Block
from simlab.lowering.kernels import Matmul
from simlab.lowering.kernels.units import layer_kernels

B, S, H, HEADS = 2, 32, 24, 4
MODEL = sl.Model(layers=2, hidden=H, heads=HEADS, vocab=VOCAB, seq=S, positions=S)


def backward_flops(recompute):
    """Operations of the backward of a block of torch's layers, counted as it runs."""
    block = TorchBlock(Block(H, HEADS), 1, recompute)
    x = torch.randn(B, S, H, requires_grad=True)
    y = block(x)
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    return counter.get_total_flops()


def test_full_recomputation_stops_before_the_last_product_of_a_layer():
    """Of 24 b s h^2 operations of the products with weights it leaves out the 8 b s h^2 of `down`.
    torch does not count those of attention on a CPU."""
    counted = backward_flops("full") - backward_flops("none")
    plan = sl.Plan(microbatch_size=B, seq=S, recompute="full", library="torch", precision="fp32")
    again = layer_kernels(MODEL, plan).recompute
    assert sum(kernel.flops for kernel in again if isinstance(kernel, Matmul)) == counted
    assert counted == 16 * B * S * H**2
    whole = sl.Plan(microbatch_size=B, seq=S, recompute="full", precision="fp32")
    kernels = layer_kernels(MODEL, whole)
    assert kernels.recompute == kernels.forward  # Megatron-LM runs all of it


def test_a_dropout_after_the_last_product_is_computed_again():
    plan = sl.Plan(recompute="full", library="torch", dropout=True)
    kernels = layer_kernels(MODEL, plan)
    assert kernels.recompute == kernels.forward


def test_the_hardware_flops_leave_out_what_is_not_computed_again():
    cluster = sl.load_cluster("dgx-a100")
    both = [
        sl.predict(sl.load_model("llama-3-8b"), sl.Plan(dp=8, zero=3, recompute="full", library=library), cluster)
        for library in ("torch", "megatron")
    ]  # fmt: skip
    torchs, megatrons = (its.hfu / its.mfu for its in both)
    layer = both[0].model.layer_flops()
    share = both[0].model.layers * layer["down"] / both[0].model.flops_per_token()
    assert megatrons - torchs == pytest.approx(share)
