"""Bounds that are kept for many plans are those of each plan by itself."""

from dataclasses import replace

import pytest

from simlab import InputError, Model, Plan, load_cluster
from simlab.planner.prune import Bounds

GPT = Model(layers=8, hidden=512, heads=8, vocab=4096, seq=1024, positions=1024)
EXPERTS = replace(
    GPT, positions=0, bias=False, gated_mlp=True, kv_heads=4, experts=8, experts_per_token=2,
    expert_ffn=256, shared_experts=1, dense_layers=1,
)  # fmt: skip
CLUSTER = load_cluster("dgx-a100", nodes=2)
PLANS = [
    Plan(dp=4, pp=4, microbatches=8),
    Plan(dp=2, tp=2, pp=4, microbatches=8),
    Plan(dp=2, cp=2, pp=4, microbatches=8),
]
ALONE = {"library": "torch", "dp": 16, "tp": 1, "cp": 1, "pp": 1}
"""Without a pipeline torch's DDP is under autocast, where weights and gradients are cast."""
CHANGES = [
    {"microbatch_size": 2}, {"microbatches": 16}, {"zero": 1}, {"zero": 2}, {"zero": 3},
    {"zero": 3, "library": "torch"}, {"recompute": "full"}, {"recompute": "selective"},
    {"schedule": "gpipe"}, {"schedule": "zb-h1"}, {"schedule": "zb-v"},
    {"schedule": "interleaved-1f1b"}, {"schedule": "looped-bfs"}, {"stage_layers": (1, 2, 2, 3)},
    {"library": "torch"}, ALONE, {**ALONE, "microbatches": 16}, {**ALONE, "zero": 1},
    {"precision": "fp8"}, {"precision": "fp8", "microbatches": 16},
    {"library": "fsdp1", "zero": 3}, {"library": "fsdp1", "zero": 3, "dp": 16, "tp": 1, "cp": 1, "pp": 1}, {"seq": 512},
    {"offload": "activations"}, {"order": "dp-tp-cp-pp"}, {"ep": 2}, {"ep": 2, "expert_load": 1.5},
]  # fmt: skip


@pytest.mark.parametrize("model", [GPT, EXPERTS], ids=["gpt", "experts"])
def test_a_plan_has_the_same_bounds_whatever_was_asked_before(model):
    """All that a plan can differ in. In 8 bits Transformer Engine casts weights once a step, so that
    each of more microbatches takes less; a tied head has no matrix where there is one stage."""
    plans = []
    for plan in PLANS:
        for change in ({}, *CHANGES):
            try:
                plans.append(replace(plan, **change).check(model, CLUSTER.gpus))
            except InputError:  # no such plan of this model
                continue
    assert len(plans) > 30
    shared = Bounds(model, CLUSTER)
    for plan in (*plans, *reversed(plans)):
        alone = Bounds(model, CLUSTER)
        assert shared.memory_bytes(plan) == alone.memory_bytes(plan), plan
        assert shared.time_s(plan) == pytest.approx(alone.time_s(plan), rel=1e-12), plan
