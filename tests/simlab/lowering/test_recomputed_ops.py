"""What torchtitan's per-op recomputation runs again, counted as its source counts: of the products
of a layer, in their order, every second one; no attention, nothing that was reduced."""

from dataclasses import replace

import pytest

from simlab.lowering.kernels import Attention, Communication, Matmul, Memory, layer_kernels
from simlab.spec.model import Model
from simlab.spec.plan import Plan

LLAMA = Model(
    layers=2,
    hidden=256,
    heads=8,
    kv_heads=4,
    ffn=768,
    vocab=512,
    seq=64,
    gated_mlp=True,
    bias=False,
)
GPT = replace(LLAMA, kv_heads=8, gated_mlp=False, bias=True, positions=64)


def products(model, tp):
    """[(name, multiplications a token)] of a layer's linear modules in the order of its forward."""
    h, d = model.hidden, model.head_size
    attention = [("q", h * h), ("k", h * model.kv_heads * d), ("v", h * model.kv_heads * d)]
    gate = [("gate", h * model.ffn)] * model.gated_mlp
    rest = [("output", h * h), *gate, ("up", h * model.ffn), ("down", h * model.ffn)]
    return [(name, count / tp) for name, count in (*attention, *rest)]


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt"])
@pytest.mark.parametrize("tp, sequence_parallel", [(1, False), (4, False), (4, True)])
def test_every_second_product_is_computed_again(model, tp, sequence_parallel):
    """The first, third, ... are saved."""
    plan = Plan(tp=tp, sequence_parallel=sequence_parallel, recompute="per-op", microbatch_size=2)
    kernels = layer_kernels(model, plan)
    again = [k for k in kernels.recompute if isinstance(k, Matmul)]
    expected = 2 * 2 * model.seq * sum(count for _, count in products(model, tp)[1::2])
    assert sum(k.flops for k in again) == expected
    assert all(k.n for k in again)
    assert not [k for k in kernels.recompute if isinstance(k, Attention)]


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt"])
def test_all_that_the_memory_bounds_and_what_was_gathered_runs_again_and_no_sum(model):
    plan = Plan(tp=4, sequence_parallel=True, recompute="per-op")
    kernels = layer_kernels(model, plan)
    light = [k for k in kernels.forward if isinstance(k, Memory)]
    assert [k for k in kernels.recompute if isinstance(k, Memory)] == light
    sent = [k.kind for k in kernels.recompute if isinstance(k, Communication)]
    assert sent == ["all_gather"] * 2


def test_fewer_heads_of_keys_than_ranks_leave_each_rank_one():
    plan = Plan(tp=8, recompute="per-op")
    qkv = [
        next(k.n for k in part if isinstance(k, Matmul) and k.name == "qkv")
        for part in (layer_kernels(LLAMA, plan).forward, layer_kernels(LLAMA, plan).recompute)
    ]
    assert qkv == [LLAMA.head_size * (1 + 2 * 1), LLAMA.head_size]


@pytest.mark.parametrize("library", ["torch", "megatron"])
@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("dropout", [False, True])
def test_torch_ends_a_whole_recomputation_where_nothing_that_follows_is_kept(
    library, experts, dropout
):
    """Its checkpointing stops when all is there that was saved: before the last product, unless a
    dropout's mask or a router's choice comes after it. Megatron-LM runs all of the forward."""
    model = replace(LLAMA, experts=experts, experts_per_token=2 if experts else 0)
    plan = Plan(library=library, recompute="full", dropout=dropout)
    kernels = layer_kernels(model, plan)
    again, whole = ([k.name for k in part] for part in (kernels.recompute, kernels.forward))
    stops = library == "torch" and not experts and not dropout
    assert again == (whole[: whole.index("down")] if stops else whole)
