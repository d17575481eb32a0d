"""Context parallelism on ranks that are threads: against attention over the whole sequence, in 64
bits to rounding, in 16 bits as well as one process in 16 bits."""

import pytest
import torch
from threaded_ranks import on_threads
from torch.nn import functional

from realrun.model.fused import rotary
from realrun.parallel.layers.context import (
    ATTENTIONS,
    block_attention,
    positions,
    ring_attention,
)

BATCH, HEADS, KV_HEADS, HEAD_SIZE = 2, 6, 3, 4


def whole(tokens, dtype=torch.float64, seed=0):
    """[q, k, v, the gradient of the result] of the whole sequence."""
    generator = torch.Generator().manual_seed(seed)
    heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    return [
        torch.randn(BATCH, h, tokens, HEAD_SIZE, generator=generator, dtype=torch.float64).to(dtype)
        for h in heads
    ]


def reference(q, k, v, dout, causal=True):
    """[result, dq, dk, dv] by torch, of the whole sequence in one process, in 64 bits."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), dout.double())]


def cut(group, kind, layout, tensors, causal):
    """[result, dq, dk, dv] of this rank's tokens."""
    each = tensors[0].shape[2] // group.size
    where = positions(each, group, layout)
    q, k, v, dout = (x[:, :, where].clone().requires_grad_() for x in tensors)
    out = ATTENTIONS[kind](q, k, v, group, layout, causal)
    return where, [out.detach(), *torch.autograd.grad(out, (q, k, v), dout.detach())]


def joined(ranks, kind, layout, tensors, causal=True):
    """The same of all ranks, in the order of the sequence."""
    answers = on_threads(ranks, cut, kind, layout, tensors, causal, dimension="cp")
    order = torch.cat([where for where, _ in answers]).argsort()
    return [torch.cat(parts, 2)[:, :, order] for parts in zip(*(parts for _, parts in answers))]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["ring", "gathered"])
def test_rows_and_gradients_are_those_of_the_whole_sequence(ranks, layout, causal, kind):
    tensors = whole(12 * ranks)
    for ours, theirs in zip(
        joined(ranks, kind, layout, tensors, causal), reference(*tensors, causal), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("causal", [True, False])
def test_ulysses_gives_them_too_where_ranks_divide_the_heads(layout, causal):
    tensors = whole(24)
    for ours, theirs in zip(
        joined(3, "ulysses", layout, tensors, causal), reference(*tensors, causal), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def distance(ours, theirs):
    return ((ours.double() - theirs).norm() / theirs.norm()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ranks", [8, 16])
def test_over_many_ranks_a_ring_in_16_bits_is_not_further_off_than_rounding_once(dtype, ranks):
    """Results and queries' gradients are added up over the steps in 32 bits and rounded at the end:
    sums taken in 16 bits drift with the number of steps."""
    tensors = whole(4 * ranks, dtype)
    ours, theirs = joined(ranks, "ring", "zigzag", tensors), reference(*tensors)
    one = joined(1, "ring", "zigzag", tensors)
    for name, found, alone, exact in zip(("out", "dq"), ours, one, theirs):
        assert found.dtype == dtype
        assert distance(found, exact) < 1.25 * distance(alone, exact), name


def test_scores_and_their_sums_are_of_32_bits_in_16():
    q, k, v, _ = whole(64, torch.bfloat16)
    _, lse = block_attention(q, k, v, False)
    assert lse.dtype == torch.float32
    _, exact = block_attention(q.double(), k.double(), v.double(), False)
    assert (lse.double() - exact).abs().max() < 2**-6


def test_a_ring_sends_keys_and_values_and_their_gradients_each_one_step_less_than_ranks():
    tensors = whole(24)

    def sent(group):
        each = 24 // group.size
        where = positions(each, group, "zigzag")
        q, k, v, dout = (x[:, :, where].clone().requires_grad_() for x in tensors)
        out = ring_attention(q, k, v, group)
        forward = [one.sent_bytes for one in group.traffic]
        out.backward(dout.detach())
        return forward, [one.sent_bytes for one in group.traffic][len(forward) :]

    for forward, backward in on_threads(3, sent, dimension="cp"):
        kv = 2 * 8 * BATCH * KV_HEADS * 8 * HEAD_SIZE
        assert forward == [kv] * 2 and backward == [kv] * 4


def test_rotary_embedding_turns_pairs_as_complex_numbers_do_far_into_a_sequence():
    """Angles of 64 bits: in 32, a position of a hundred million is off by several radians."""
    where = torch.tensor([0, 1, 7, 100_000_001])
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    angle = where.double()[:, None] * 10_000.0 ** (-torch.arange(3, dtype=torch.float64) / 3)
    turned = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(rotary(x, where), expected, rtol=1e-9, atol=1e-9)
    assert rotary(x.bfloat16(), where).dtype == torch.bfloat16
