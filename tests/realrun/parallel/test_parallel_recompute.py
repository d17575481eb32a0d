"""Activation recomputation: what it holds by its formula, what it computes again by torch's count,
and gradients that do not change."""

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from realrun.model.gpt import Block, Stage, loss
from realrun.parallel.recompute import ATTENTIONS, MODES, recompute, unfused_attention
from realrun.record.activations import SavedActivations
from simlab.errors import InputError

B, S, H, A = 3, 32, 24, 4  # sequences, tokens, hidden, heads
MASK = S * S / 8  # of the unfused attention, one byte each, in numbers of 8
NORMS = 4 * B * S
HELD = {  # numbers of 8 bytes
    ("none", "flash"): 16 * B * S * H + NORMS + A * B * S,
    ("none", "unfused"): 16 * B * S * H + NORMS + A * B * S * S + MASK,
    **dict.fromkeys([("selective", attention) for attention in ATTENTIONS], 16 * B * S * H + NORMS),
    **dict.fromkeys([("full", attention) for attention in ATTENTIONS], B * S * H),
}


def block(mode, attention="flash"):
    torch.manual_seed(3)
    made = Block(H, A).double()
    if mode == "torch":
        return checkpoint_wrapper(made)
    recompute([made], mode, attention=attention)
    return made


def step(module):
    """(bytes held between forward and backward, gradients of input and parameters, operations of
    the backward)"""
    x = torch.randn(
        B, S, H, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    ).requires_grad_()
    ledger = SavedActivations(module.parameters())
    with ledger.saving((0, 0)):
        y = module(x)
    held = ledger.bytes
    with FlopCounterMode(display=False) as counter:
        y.backward(torch.cos(y.detach()))
    assert ledger.bytes == 0
    return held, [x.grad, *(p.grad for p in module.parameters())], counter.get_total_flops()


@pytest.mark.parametrize("mode, attention", HELD)
def test_a_block_holds_what_the_formula_says(mode, attention):
    assert step(block(mode, attention))[0] == 8 * HELD[mode, attention]


@pytest.mark.parametrize("mode, attention", HELD)
def test_gradients_are_those_of_a_plain_block(mode, attention):
    torch.manual_seed(3)
    plain = step(Block(H, A).double())[1]
    for ours, expected in zip(step(block(mode, attention))[1], plain, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


def test_full_recomputation_holds_and_computes_what_torchs_wrapper_does():
    ours, torchs = step(block("full")), step(block("torch"))
    assert (ours[0], ours[2]) == (torchs[0], torchs[2])


def test_what_is_computed_again_is_the_attention_or_the_whole_forward():
    """In operations of matrix products: 4 b s^2 h of the attention, 24 b s h^2 of the linears."""
    none, selective, full = (step(block(mode, "unfused"))[2] for mode in MODES)
    attention, linears = 4 * B * S * S * H, 24 * B * S * H * H
    assert none == 2 * (attention + linears)
    # without the product with v, of which only the result would be new
    assert selective - none == attention / 2
    assert full - none == attention + linears


def test_a_flash_attention_leaves_selective_recomputation_next_to_nothing_to_save():
    saved = {
        attention: 1 - HELD["selective", attention] / HELD["none", attention]
        for attention in ATTENTIONS
    }
    assert saved["flash"] < 0.02 and saved["unfused"] > 0.2


def test_unfused_attention_is_torchs():
    q, k, v = torch.randn(3, B, A, S, H // A, dtype=torch.float64)
    for causal in (False, True):
        expected = scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.testing.assert_close(
            unfused_attention(q, k, v, is_causal=causal), expected, rtol=1e-9, atol=1e-12
        )


def test_a_mode_can_be_changed_and_a_whole_model_holds_one_input_per_layer():
    sizes = {"layers": 5, "hidden": H, "heads": A, "seq": S}
    model, tokens = Stage(sizes, 0, 1).double(), torch.zeros(B, S, dtype=torch.int64)
    held = {}
    for mode in (*MODES, "none"):
        recompute(model.blocks, mode)
        ledger = SavedActivations(model.parameters())
        ledger.leave_out([tokens])
        with ledger.saving((0, 0)):
            value = loss(model(tokens), tokens)
        held.setdefault(mode, ledger.bytes)
        assert held[mode] == ledger.bytes
        del value
    assert held["none"] - held["full"] == 8 * 5 * (HELD["none", "flash"] - HELD["full", "flash"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"mode": "all"}, "recompute 'all': give one of none, selective, full"),
        ({"mode": "full", "attention": "fast"}, "attention 'fast': give one of flash, unfused"),
    ],
)
def test_what_there_is_not_is_refused(arguments, message):
    with pytest.raises(InputError) as caught:
        recompute([], **arguments)
    assert str(caught.value) == message
