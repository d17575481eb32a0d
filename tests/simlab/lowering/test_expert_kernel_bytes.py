"""Bytes of the kernels that only models with experts, latent attention or norms of queries and keys
have, held against torch's own ops."""

from dataclasses import replace

import pytest

from simlab.lowering.kernels import GroupedMatmul, Memory, layer_kernels
from simlab.spec.model import Model
from simlab.spec.plan import Plan

torch = pytest.importorskip("torch")
from torch_bytes import MovedBytes, meta, moved_bytes  # noqa: E402  (it needs torch)

TOKENS, HIDDEN, HEADS, SIZE = 64, 256, 8, 32
LLAMA = Model(
    layers=2, hidden=HIDDEN, heads=HEADS, ffn=512, vocab=1024, seq=TOKENS, gated_mlp=True, bias=False
)  # fmt: skip
EXPERTS = replace(LLAMA, experts=8, experts_per_token=2, expert_ffn=128)
LATENT = replace(LLAMA, head_size=SIZE, q_rank=96, kv_rank=48, rope_size=8, value_size=24)
PLAIN = Plan(dropout=False)


def size_of(kernels, name):
    """Bytes of the one `Memory` kernel of that name."""
    (found,) = [k.size_bytes for k in kernels if isinstance(k, Memory) and k.name == name]
    return found


def copied_bytes(*shape):
    """What torch reads and writes to make a copy of such a tensor."""
    return moved_bytes(lambda: meta(*shape).clone(), least=1)


def names(kernels):
    return [kernel.name for kernel in kernels]


# queries and keys
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_queries_and_keys_are_normed_on_the_rank_that_has_their_heads(tp, kv_heads):
    """Each is read and written once; values are not. The backward makes five passes for two."""
    model, plan = replace(LLAMA, kv_heads=kv_heads, qk_norm=True), replace(PLAIN, tp=tp)
    kernels = layer_kernels(model, plan)
    one_pass = 2 * TOKENS * (HEADS + kv_heads) // tp * (HIDDEN // HEADS)
    assert size_of(kernels.forward, "norm of q and k") == 2 * one_pass
    assert size_of(kernels.input_grad, "norm of q and k grad") == 5 * one_pass
    assert "norm of q and k" not in names(
        layer_kernels(replace(model, qk_norm=False), plan).forward
    )


def test_latents_are_normed_and_keys_are_put_together_of_their_own_and_the_common_part():
    kernels = layer_kernels(LATENT, PLAIN)
    for name, rank in (("q", LATENT.q_rank), ("kv", LATENT.kv_rank)):
        assert size_of(kernels.forward, f"norm of {name} latent") == copied_bytes(TOKENS, rank)
    assert size_of(kernels.forward, "copy of keys") == copied_bytes(TOKENS, HEADS, SIZE)
    assert size_of(kernels.input_grad, "copy of keys grad") == copied_bytes(TOKENS, HEADS, SIZE)
    straight = names(layer_kernels(replace(LATENT, q_rank=0), PLAIN).forward)
    assert "norm of q latent" not in straight and "norm of kv latent" in straight


def test_of_latent_attention_the_rotary_part_of_every_query_and_of_one_key_is_turned():
    """The key's is the same for all heads."""
    kernels = layer_kernels(LATENT, PLAIN)
    assert size_of(kernels.forward, "rotary") == copied_bytes(TOKENS, HEADS + 1, LATENT.rope_size)


@pytest.mark.parametrize("model, width", [(LLAMA, HIDDEN // HEADS), (LATENT, 24)])
def test_what_unfused_attention_makes_is_brought_from_heads_to_tokens(model, width):
    """As wide as a value is."""
    kernels = layer_kernels(model, replace(PLAIN, attention="unfused"))
    made = moved_bytes(lambda: meta(1, HEADS, TOKENS, width).transpose(1, 2).contiguous(), least=1)
    assert size_of(kernels.forward, "transpose") == made


# experts
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [1, 2])
def test_copies_of_tokens_are_made_for_their_experts_and_results_brought_back(chosen):
    """A row for each expert of each token, there and back, forward and backward."""
    kernels = layer_kernels(replace(EXPERTS, experts_per_token=chosen), PLAIN)
    both_ways = 2 * copied_bytes(chosen * TOKENS, HIDDEN)
    assert size_of(kernels.forward, "permute") == both_ways
    assert size_of(kernels.input_grad, "permute grad") == both_ways


@pytest.mark.parametrize("ep, load", [(1, 1.0), (4, 1.0), (4, 1.5), (8, 1.0), (8, 1.5)])
def test_what_came_from_other_ranks_is_copied_once_more_for_several_experts_of_a_rank(ep, load):
    """On the busiest rank `load` times as much. A rank with one expert has nothing to sort."""
    plan = replace(PLAIN, dp=8, ep=ep, expert_load=load)
    kernels = layer_kernels(EXPERTS, plan)
    if ep == 4:
        rows = int(load * 2 * TOKENS)
        both_ways = 2 * copied_bytes(rows, HIDDEN)
        assert size_of(kernels.forward, "permute by expert") == both_ways
        assert size_of(kernels.input_grad, "permute by expert grad") == both_ways
    else:
        assert "permute by expert" not in names(kernels.forward)


@pytest.mark.parametrize("shared", [1, 2])
def test_shared_experts_are_one_mlp_whose_result_is_added(shared):
    kernels = layer_kernels(replace(EXPERTS, shared_experts=shared), PLAIN)
    added = moved_bytes(
        lambda: torch.ops.aten.add(meta(TOKENS, HIDDEN), meta(TOKENS, HIDDEN)), least=1
    )
    assert size_of(kernels.forward, "add shared experts") == added
    inner = 2 * TOKENS * shared * EXPERTS.expert_width
    assert size_of(kernels.forward, "shared activation") == 3 * inner
    assert size_of(kernels.forward, "activation") == 3 * 2 * (2 * TOKENS * EXPERTS.expert_width)


@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize("precision, times", [("bf16", 1), ("fp32", 2)])
def test_in_fp32_each_of_these_kernels_moves_twice_as_much(precision, times, attention):
    for model in (EXPERTS, replace(EXPERTS, shared_experts=1, qk_norm=True), LATENT):
        plan = replace(PLAIN, precision=precision, attention=attention)
        sizes, halves = (
            {
                k.name: k.size_bytes
                for k in layer_kernels(model, its).forward
                if isinstance(k, Memory)
            }
            for its in (plan, replace(plan, precision="bf16"))
        )
        assert sizes == {name: times * size for name, size in halves.items()}


# what Megatron-LM's experts do by ops of torch
# ------------------------------------------------------------------------------------------

CLAMPED = replace(EXPERTS, clamped=True, biases=("mlp",))
ROWS, WIDTH = 2 * TOKENS, EXPERTS.expert_width  # of copies of tokens; of an expert


def both_ways(function, *tensors):
    """[bytes forward, bytes backward] of ops on tensors of which all need a gradient."""
    leaves = [its.requires_grad_() for its in tensors]
    with MovedBytes(least=TOKENS * WIDTH) as forward:
        made = function(*leaves)
    grad = torch.empty_like(made)
    with MovedBytes(least=TOKENS * WIDTH) as backward:
        made.backward(grad)
    return forward.bytes, backward.bytes


def limits(joined):
    """Of Megatron-LM's weighted_bias_quick_geglu_impl, what comes before its kernel."""
    gate, up = joined.chunk(2, -1)
    return torch.cat((gate.clamp(min=None, max=7.0), up.clamp(min=-7.0, max=7.0)), -1)


def test_gate_and_up_of_experts_are_limited_by_ops_of_torch():
    forward, backward = both_ways(limits, meta(ROWS, 2 * WIDTH))
    kernels = layer_kernels(CLAMPED, PLAIN)
    assert size_of(kernels.forward, "limits of gate and up") == forward
    assert size_of(kernels.input_grad, "limits of gate and up grad") == backward
    again = layer_kernels(CLAMPED, replace(PLAIN, recompute="outputs")).recompute
    assert size_of(again, "limits of gate and up") == forward
    for model, plan in ((EXPERTS, PLAIN), (CLAMPED, replace(PLAIN, library="torch"))):
        assert "limits of gate and up" not in names(layer_kernels(model, plan).forward)


@pytest.mark.parametrize("once, dtype", [(False, torch.bfloat16), (True, torch.float32)])
def test_biases_of_experts_results_are_added_expert_by_expert(once, dtype):
    """In fp32 where the router's weights are, as the kernels that send tokens once to a node want them."""
    tokens = [ROWS // 2, ROWS // 2]
    biases = [meta(HIDDEN).requires_grad_() for _ in tokens]

    def added(results, weights):
        parts = zip(torch.split(results, tokens), biases, torch.split(weights, tokens))
        return torch.cat([t + b * p for t, b, p in parts]).to(results.dtype)

    forward, backward = both_ways(added, meta(ROWS, HIDDEN), meta(ROWS, 1, dtype=dtype))
    fields = {"ep": 4, "dispatcher": "once-a-node"} if once else {}
    kernels = layer_kernels(CLAMPED, replace(PLAIN, dp=4, **fields))
    assert size_of(kernels.forward, "biases of experts") == forward
    assert size_of(kernels.input_grad, "biases of experts grad") == backward
    (summed,) = (k for k in kernels.weight_grad if k.name == "bias grad")
    assert summed.size_bytes == 2 * ROWS * 2 * WIDTH  # of the first product only


def test_one_kernel_for_all_experts_makes_their_activation_and_adds_their_biases():
    plan = replace(PLAIN, dp=4, ep=2, precision="fp8-mx", fused_experts=True)
    kernels = layer_kernels(CLAMPED, plan)
    gone = {"limits of gate and up", "activation", "biases of experts"}
    apart = {*names(layer_kernels(CLAMPED, replace(plan, fused_experts=False)).forward)}
    assert apart - {*names(kernels.forward)} == gone
    assert not [k for k in kernels.input_grad if k.name.removesuffix(" grad") in gone]
    assert not [k for k in kernels.forward if isinstance(k, GroupedMatmul) and k.apart]
