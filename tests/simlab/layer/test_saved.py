"""What a layer keeps for its backward: tensors counted by hand, one reader after the other."""

from dataclasses import replace

import simlab as sl
from simlab.memory.activations import layer_activations_bytes, layer_tensors

T, H = 64, 256
LLAMA = sl.Model(
    name="m", layers=4, hidden=H, heads=8, kv_heads=4, ffn=512, gated_mlp=True, bias=False,
    vocab=1024, seq=T,
)  # fmt: skip
MIXED = replace(LLAMA, experts=8, experts_per_token=2, expert_ffn=128)
UNFUSED = sl.Plan(attention="unfused", dropout=False)


def test_a_mask_is_a_byte_in_every_precision():
    """Dropout of attention keeps softmax's result, its mask and what it makes."""
    for precision, width in (("bf16", 2), ("fp32", 4)):
        plan = replace(UNFUSED, precision=precision, dropout=True)
        assert layer_tensors(LLAMA, plan, "none")["scores"] == T * 8 * T * (2 * width + 1)


def test_only_a_fused_kernel_keeps_attentions_result_beside_the_products_cast_of_it():
    fused = layer_tensors(LLAMA, sl.Plan(precision="fp8"), "none")
    stored = layer_tensors(LLAMA, replace(UNFUSED, precision="fp8"), "none")
    assert (fused["output input"], stored["output input"]) == (3 * T * H, T * H)


def test_a_router_of_own_tokens_and_shared_experts_of_all_keep_what_each_reads():
    plan = sl.Plan(tp=2, dp=2, ep=4, etp=1, sequence_parallel=True, library="torch")
    for shared, parts in ((0, 1 / 2), (1, 1 / 2 + 1)):
        model = replace(MIXED, shared_experts=shared)
        assert layer_tensors(model, plan, "none")["mlp input"] == 2 * T * H * parts


def test_per_op_nothing_of_stored_scores_is_kept():
    """But the layer's input, q, v, gate and the product down, which is made with a gate only."""
    kept = layer_activations_bytes(LLAMA, replace(UNFUSED, recompute="per-op"), "per-op")
    assert kept == 2 * T * (H + 8 * 32 + 4 * 32 + 512 + H)


def test_per_op_experts_products_down_are_kept_for_each_copy_of_a_token():
    """A token has two copies, each with a gate of 128 and a result of the width of the token."""
    model = replace(MIXED, shared_experts=1)
    kept = {its: layer_activations_bytes(its, sl.Plan(), "per-op") for its in (MIXED, model)}
    attention = 2 * T * (H + 8 * 32 + 4 * 32 + 8 * 32) + 4 * T * 8
    assert kept[MIXED] == attention + 2 * T * 2 * (128 + H)
    assert kept[model] - kept[MIXED] == 2 * T * (128 + H)
