"""Context parallelism on ranks that are threads: against attention over the whole sequence, in 64
bits to rounding, in 16 bits as well as one process in 16 bits."""

import itertools

import pytest
import torch
from threaded_ranks import on_threads
from torch.nn import functional

from realrun.comm.group import Group
from realrun.model.fused import rotary
from realrun.parallel.layers.context import (
    ATTENTIONS,
    block_attention,
    positions,
    positions_at,
    ring_attention,
    ulysses_attention,
    visible,
)
from simlab.collectives import all_to_all
from simlab.errors import InputError
from simlab.lowering.kernels import Communication, layer_kernels
from simlab.spec.model import Model
from simlab.spec.plan import Plan

LAYOUTS = ("contiguous", "zigzag")
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
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["ring", "gathered"])
def test_rows_and_gradients_are_those_of_the_whole_sequence(ranks, layout, causal, kind):
    tensors = whole(12 * ranks)
    for ours, theirs in zip(
        joined(ranks, kind, layout, tensors, causal), reference(*tensors, causal), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
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


def traffic(group):
    """{way: [(kind, bytes, sent bytes) of every communication] forward and backward}, in float32,
    of a layer's attention."""
    results = {}
    for way, attention in ATTENTIONS.items():
        group.traffic.clear()
        q, k, v = (torch.randn(BATCH, 4, 4, 6, requires_grad=True) for _ in range(3))
        out = attention(q, k, v, group)
        forward = len(group.traffic)
        out.sum().backward()
        ledger = [(sent.kind, sent.size_bytes, sent.sent_bytes) for sent in group.traffic]
        results[way] = ledger[:forward], ledger[forward:]
    return results


def test_the_ring_sends_the_bytes_that_the_simulator_charges_and_ulysses_those_of_its_rounds():
    ranks, heads, seq, size = 4, 4, 16, 6
    model = Model(layers=1, hidden=heads * size, heads=heads, vocab=8, seq=seq)
    kernels = layer_kernels(model, Plan(cp=ranks, microbatch_size=BATCH, precision="fp32"))
    rings = [
        [k for k in part if isinstance(k, Communication)]
        for part in (kernels.forward, kernels.input_grad)
    ]
    # q, k, v and the output have as many bytes each
    local = 4 * BATCH * heads * seq // ranks * size
    pairwise = sum(
        t.size_bytes
        for transfers in all_to_all(range(ranks), local)
        for t in transfers
        if t.source == 0
    )
    for results in on_threads(ranks, traffic, dimension="cp"):
        for ledger, (kernel,) in zip(results["ring"], rings):
            assert {kind for kind, _, _ in ledger} == {kernel.kind}
            assert sum(sent for _, _, sent in ledger) == kernel.steps * kernel.size_bytes
        # never more than one rank's K and V
        assert [sent for _, _, sent in results["ring"][0]] == [2 * local] * (ranks - 1)
        assert results["ulysses"] == ([("all_to_all", local, pairwise)] * 4,) * 2
        whole = ranks * local
        # as many bytes, but all at once
        assert results["gathered"][0] == [("all_gather", whole, (ranks - 1) * local)] * 2
        assert results["gathered"][1] == [("reduce_scatter", whole, (ranks - 1) * local)] * 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("causal", [True, False])
def test_the_ring_computes_every_visible_pair_once_and_in_zigzag_all_ranks_do_as_much_in_every_step(
    layout, size, causal
):
    tokens, pairs, work = 4, [], {}
    for place, step in itertools.product(range(size), range(size)):
        source = (place - step) % size
        of_queries, of_keys = (
            positions_at(at, tokens, size, layout).tolist() for at in (place, source)
        )
        computed = [
            (query, key)
            for rows, keys, triangular in visible(place, source, tokens, layout, causal)
            for i, query in enumerate(of_queries[rows])
            for j, key in enumerate(of_keys[keys])
            if not triangular or j <= i
        ]
        pairs += computed
        work.setdefault(step, set()).add(len(computed))
    whole = range(size * tokens)
    assert sorted(pairs) == [
        (query, key) for query in whole for key in whole if key <= query or not causal
    ]
    if causal and layout == "zigzag":
        assert all(len(amounts) == 1 for amounts in work.values())
    elif causal and size > 1:
        assert all(amounts == {0, tokens**2} for step, amounts in work.items() if step)


def test_what_cannot_be_laid_out_is_refused():
    group = Group("cp", range(4), 0)
    with pytest.raises(InputError, match="layout 'zig-zag', did you mean 'zigzag'"):
        positions_at(0, 4, 2, "zig-zag")
    with pytest.raises(InputError, match="zigzag with 3 tokens on a rank"):
        ring_attention(*[torch.zeros(1, 4, 3, 2)] * 3, group)
    with pytest.raises(
        InputError, match="Ulysses over 4 cp ranks with 2 kv heads: 4 must divide them"
    ):
        ulysses_attention(torch.zeros(1, 4, 2, 2), *[torch.zeros(1, 2, 2, 2)] * 2, group)
    with pytest.raises(InputError, match="head size 3"):
        rotary(torch.zeros(2, 3), torch.arange(2))


def test_rotary_embedding_turns_pairs_as_complex_numbers_do_far_into_a_sequence():
    """Angles of 64 bits: in 32, a position of a hundred million is off by several radians."""
    where = torch.tensor([0, 1, 7, 100_000_001])
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    angle = where.double()[:, None] * 10_000.0 ** (-torch.arange(3, dtype=torch.float64) / 3)
    turned = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(rotary(x, where), expected, rtol=1e-9, atol=1e-9)
    assert rotary(x.bfloat16(), where).dtype == torch.bfloat16
