"""What lesson 6 tells people to say holds over a sweep of what it depends on."""

from dataclasses import replace

import pytest

import simlab as sl

LLAMA = sl.load_model("llama-3-8b")


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-2-7b", "gpt3-175b"])
@pytest.mark.parametrize("seq", [1024, 8192, 32768])
def test_6_p_counts_an_untied_embedding_that_multiplies_nothing_and_leaves_attention_out(name, seq):
    for tied in (False, True):
        model = replace(sl.load_model(name), tied_head=tied)
        attention = 12 * model.layers * model.hidden * seq
        matrices = model.flops_per_token(seq) - attention
        lookup = 0 if tied else model.vocab * model.hidden
        assert matrices == pytest.approx(6 * (model.parameters - lookup), rel=0.01)


@pytest.mark.parametrize("dp", [8, 16, 32])
@pytest.mark.parametrize("seq", [2048, 8192])
def test_full_recomputation_raises_hfu_and_lowers_mfu(dp, seq):
    cluster = sl.load_cluster("dgx-a100", nodes=dp // 8)
    plan = sl.Plan(dp=dp, zero=3, seq=seq)
    none, full = (
        sl.predict(LLAMA, replace(plan, recompute=kind), cluster) for kind in ("none", "full")
    )
    assert full.mfu < none.mfu and full.hfu > none.hfu > full.mfu


@pytest.mark.parametrize("p", [2, 4, 8])
def test_more_stages_hardly_lower_the_first_stages_activations_under_1f1b(p):
    model = sl.load_model("llama-2-13b")
    held = [
        sl.predict(
            model,
            sl.Plan(pp=pp, microbatches=16),
            replace(sl.load_cluster("dgx-a100"), gpus_per_node=pp),
        ).memory_bytes["activations"]
        for pp in (1, p)
    ]
    assert held[1] > 0.9 * held[0]
