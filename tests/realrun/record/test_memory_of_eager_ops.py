"""What autograd keeps of norms and gated activations that are no one kernel, against the bytes that
simlab counts for them."""

import torch
from realrun_memory import saved_by
from torch.nn import functional

import simlab as sl
from simlab.memory.units.sizes import UnitSizes

MODEL = sl.load_model("llama-3-8b")
TOKENS = 8
UNFUSED = UnitSizes(MODEL, sl.Plan(seq=TOKENS, fused=False), 2, 4)
FUSED = UnitSizes(MODEL, sl.Plan(seq=TOKENS), 2, 4)


def saved_bytes(function, *inputs):
    """Bytes of the storages that autograd keeps for the backward of a function, but for those of
    its inputs and its result."""
    result, kept = saved_by(lambda: function(*inputs))
    for tensor in (*inputs, result):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def made(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True)


def rms_norm(x, weight):
    """As in Llama's reference code."""
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x)
    return normed * weight


def gated(merged):
    gate, up = merged.chunk(2, dim=-1)
    return functional.silu(gate) * up


def test_a_norm_of_several_ops_keeps_its_input_in_fp32_and_its_normalised_form():
    kept = saved_bytes(rms_norm, made(TOKENS, MODEL.hidden), made(MODEL.hidden))
    # and a few fp32 numbers of each token
    assert 0 < kept - UNFUSED.norm_parts <= 3 * UNFUSED.norm_statistics
    assert FUSED.norm_parts == 0


def gate_part(sizes):
    return sum(step.gate_part for step in sizes.steps("layer"))


def test_a_gated_activation_of_two_ops_keeps_the_activated_gate():
    assert saved_bytes(gated, made(TOKENS, 2 * MODEL.ffn)) == gate_part(UNFUSED)
    assert gate_part(FUSED) == 0
