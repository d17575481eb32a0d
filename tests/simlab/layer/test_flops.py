"""Floating-point operations of a layer, against those of the kernels that a rank launches."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.flops import flops_again
from simlab.lowering.kernels import layer_kernels

LLAMA = sl.Model(
    name="m", layers=4, hidden=256, heads=8, kv_heads=4, ffn=512, gated_mlp=True, bias=False,
    vocab=1024, seq=64,
)  # fmt: skip
MIXED = replace(LLAMA, experts=8, experts_per_token=2, expert_ffn=128, shared_experts=1)
LATENT = replace(MIXED, kv_heads=8, q_rank=96, kv_rank=48, rope_size=8, value_size=24)
GPT = sl.Model(layers=4, hidden=256, heads=8, vocab=1024, positions=64, seq=64)
MODELS = {"llama": LLAMA, "mixed": MIXED, "latent": LATENT, "gpt": GPT}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize("recompute", ["none", "selective", "outputs", "per-op", "full"])
def test_what_is_done_again_is_what_kernels_do_again(name, attention, recompute):
    """Per op also the stored scores of unfused attention, a router and a half of shared experts."""
    model = MODELS[name]
    if (name, recompute) == ("latent", "per-op"):
        return
    plan = sl.Plan(recompute=recompute, attention=attention, dropout=False).check(model)
    kernels = sum(kernel.flops for kernel in layer_kernels(model, plan).recompute)
    flash = attention == "flash"
    assert 64 * flops_again(model, 64, recompute, flash=flash) == kernels
