"""Context parallelism on four processes: attention over a cut sequence is that over the whole one,
forward and backward."""

import itertools

import pytest
from realrun_ranks import ERROR, Ranks, error

from simlab.collectives import all_to_all
from simlab.errors import InputError
from simlab.lowering.kernels import Communication, layer_kernels
from simlab.spec.model import Model
from simlab.spec.plan import Plan

WORLD = 4
BATCH, HEADS, SEQ, SIZE = 2, 4, 16, 6
LAYOUTS = ("contiguous", "zigzag")


@pytest.fixture(scope="module")
def ranks():
    four = Ranks(WORLD)
    yield four
    four.close()


def numbers(*shape, seed=0):
    """Random ones, the same on all ranks."""
    import torch

    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# layouts and rotary embedding: one process
# ----------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("causal", [True, False])
def test_the_ring_computes_every_visible_pair_once_and_in_zigzag_all_ranks_do_as_much_in_every_step(
    layout, size, causal
):
    from realrun.parallel.layers.context import positions_at, visible

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


def test_rotary_embedding_is_multiplication_with_complex_numbers_and_of_a_slice_that_slice_of_the_whole():
    import torch

    from realrun.model.fused import rotary
    from realrun.parallel.layers.context import positions_at

    x, half = numbers(BATCH, HEADS, SEQ, 8), 4
    turned = torch.view_as_complex(torch.stack([x[..., :half], x[..., half:]], -1)) * torch.polar(
        torch.ones(SEQ, half, dtype=torch.float64),
        torch.arange(SEQ, dtype=torch.float64).outer(
            torch.tensor([10000 ** (-2 * i / 8) for i in range(half)], dtype=torch.float64)
        ),
    )
    whole = rotary(x, torch.arange(SEQ))
    assert error(whole, torch.cat([turned.real, turned.imag], -1)) < 1e-14
    for layout, place in itertools.product(LAYOUTS, range(WORLD)):
        where = positions_at(place, SEQ // WORLD, WORLD, layout)
        torch.testing.assert_close(
            rotary(x[:, :, where], where), whole[:, :, where], rtol=0, atol=1e-15
        )
    far = rotary(x, torch.arange(SEQ) + 1000)  # scores depend on distances alone
    torch.testing.assert_close(far @ far.mT, whole @ whole.mT, rtol=1e-9, atol=1e-9)


def test_what_cannot_be_laid_out_is_refused():
    import torch

    from realrun.comm.group import Group
    from realrun.model.fused import rotary
    from realrun.parallel.layers.context import (
        positions_at,
        ring_attention,
        ulysses_attention,
    )

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


# attention
# ------------------------------------------------------------------------------------------------


def attention(rank, rounds):
    """{(way, layout, causal, kv heads): {what: error against torch's attention over the whole
    sequence}}."""
    import torch
    from realrun_processes import both_directions
    from torch.nn import functional

    from realrun.comm.channels import Channels
    from realrun.comm.group import Group
    from realrun.comm.rounds_group import RoundsGroup
    from realrun.parallel.layers.context import ATTENTIONS, positions

    group = Group("cp", range(WORLD), rank)
    if rounds:
        group = RoundsGroup(
            "cp", range(WORLD), rank, Channels(rank, torch.device("cpu"), both_directions())
        )
    results = {}
    for way, layout, causal, kv_heads in itertools.product(
        ATTENTIONS, LAYOUTS, (True, False), (HEADS, 2)
    ):
        if way == "ulysses" and kv_heads < WORLD:
            continue
        whole = [
            numbers(BATCH, heads, SEQ, SIZE, seed=seed).requires_grad_()
            for seed, heads in enumerate((HEADS, kv_heads, kv_heads))
        ]
        expected = functional.scaled_dot_product_attention(
            *whole, is_causal=causal, enable_gqa=True
        )
        dy = numbers(*expected.shape, seed=9)
        expected.backward(dy)
        where = positions(SEQ // WORLD, group, layout)
        mine = [x.detach()[:, :, where].requires_grad_() for x in whole]
        actual = ATTENTIONS[way](*mine, group, layout, causal)
        actual.backward(dy[:, :, where])
        errors = {
            f"d{name}": error(x.grad, y.grad[:, :, where]) for name, x, y in zip("qkv", mine, whole)
        }
        results[way, layout, causal, kv_heads] = errors | {
            "output": error(actual, expected[:, :, where])
        }
    return results


@pytest.mark.parametrize("rounds", [False, True])
def test_every_way_gives_the_rows_and_gradients_of_attention_over_the_whole_sequence(ranks, rounds):
    for results in ranks(attention, rounds):
        assert len(results) == 20
        for case, errors in results.items():
            assert max(errors.values()) < ERROR, (case, errors)


def traffic(rank):
    """{way: [(kind, bytes, sent bytes) of every communication] forward and backward}, in float32,
    of a layer's attention."""
    from realrun.comm.group import Group
    from realrun.parallel.layers.context import ATTENTIONS

    results = {}
    for way in ATTENTIONS:
        group = Group("cp", range(WORLD), rank)
        q, k, v = (
            numbers(BATCH, HEADS, SEQ // WORLD, SIZE).float().requires_grad_() for _ in range(3)
        )
        out = ATTENTIONS[way](q, k, v, group)
        forward = len(group.traffic)
        out.sum().backward()
        ledger = [(sent.kind, sent.size_bytes, sent.sent_bytes) for sent in group.traffic]
        results[way] = ledger[:forward], ledger[forward:]
    return results


def test_the_ring_sends_the_bytes_that_the_simulator_charges_and_ulysses_those_of_its_rounds(ranks):
    model = Model(layers=1, hidden=HEADS * SIZE, heads=HEADS, vocab=8, seq=SEQ)
    kernels = layer_kernels(model, Plan(cp=WORLD, microbatch_size=BATCH, precision="fp32"))
    rings = [
        [k for k in part if isinstance(k, Communication)]
        for part in (kernels.forward, kernels.input_grad)
    ]
    # q, k, v and the output have as many bytes each
    local = 4 * BATCH * HEADS * SEQ // WORLD * SIZE
    pairwise = sum(
        t.size_bytes
        for transfers in all_to_all(range(WORLD), local)
        for t in transfers
        if t.source == 0
    )
    for results in ranks(traffic):
        for ledger, (kernel,) in zip(results["ring"], rings):
            assert {kind for kind, _, _ in ledger} == {kernel.kind}
            assert sum(sent for _, _, sent in ledger) == kernel.steps * kernel.size_bytes
        # never more than one rank's K and V
        assert [sent for _, _, sent in results["ring"][0]] == [2 * local] * (WORLD - 1)
        assert results["ulysses"] == ([("all_to_all", local, pairwise)] * 4,) * 2
        whole = WORLD * local
        # as many bytes, but all at once
        assert results["gathered"][0] == [("all_gather", whole, (WORLD - 1) * local)] * 2
        assert results["gathered"][1] == [("reduce_scatter", whole, (WORLD - 1) * local)] * 2
