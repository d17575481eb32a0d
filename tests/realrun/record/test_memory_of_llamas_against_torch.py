"""Predicted memory of models with gated MLPs, grouped heads and experts against what torch's
MemTracker reads in the step itself: DDP and FSDP2, several microbatches, recomputation."""

from dataclasses import replace
from functools import partial

import pytest
from fused_llama import Llama
from realrun_memory import measured

import simlab as sl
from simlab.memory.ledger import Ledger

SEQ, RANKS = 32, 4
LLAMA = sl.Model(
    layers=3, hidden=64, heads=8, kv_heads=2, ffn=160, gated_mlp=True, bias=False, vocab=256, seq=SEQ
)  # fmt: skip
MODELS = {
    "llama": LLAMA,
    "experts": replace(LLAMA, experts=4, experts_per_token=2),
}
SCHEMES = {
    "ddp": {"precision": "fp32"},
    "fsdp": {"precision": "fp32", "zero": 3},
    "fsdp-bf16": {"precision": "bf16", "zero": 3},
    "fsdp-keep": {"precision": "fp32", "zero": 3, "reshard": False},
}
REDUCED = ("unsharded_gradients", "reduce_scatter", "buckets")
SCALARS = 16  # bytes: the loss, its weight, its gradient


def walk_of(model, plan):
    node = replace(sl.load_cluster("dgx-h100"), gpus_per_node=plan.gpus)
    return sl.predict(model, plan, node).memory


def largest_of(walk):
    """{category: the most of it in the ops of a step}"""
    ledger = Ledger(walk.rest(0))
    for stage, use in walk.uses(0):
        ledger.add(walk.stages[stage].op(use))
    return ledger.largest


@pytest.mark.parametrize(  # states make the peak, or activations do
    "batch, microbatches, recompute", [(2, 1, "none"), (32, 3, "none"), (32, 2, "full")]
)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", MODELS)
def test_each_category_is_right_to_the_byte(name, scheme, batch, microbatches, recompute):
    """But for tokens and targets, Adam's counters, and a router's logits."""
    model, fields = MODELS[name], SCHEMES[scheme]
    plan = sl.Plan(
        dp=RANKS, microbatch_size=batch, microbatches=microbatches, recompute=recompute, seq=SEQ, library="torch", **fields
    )  # fmt: skip
    walk = walk_of(model, plan)
    tracker = measured(
        {"seq": SEQ}, RANKS, batch, scheme.split("-")[0], build=lambda: Llama(model, recompute=recompute == "full"),
        microbatches=microbatches, reshard=plan.reshard, bf16=plan.precision == "bf16",
    )  # fmt: skip
    fullest = max(walk.moments(0), key=lambda moment: moment.total)
    phase = {"F": "forward", "B": "backward"}.get(fullest.op[1], "optimizer")
    assert phase == tracker.phase
    logits = SCALARS + 4 * batch * SEQ * model.experts
    differ = {
        category: (size, tracker.peak.get(category, 0))
        for category, size in fullest.held.items()
        if category not in ("inputs", "optimizer")
        and size != pytest.approx(tracker.peak.get(category, 0), rel=1e-12, abs=logits)
    }
    assert not differ
    gathers = ["all_gather"] * (plan.precision == "fp32")  # torch counts casts of shards there, too
    for category in ("parameters", "unsharded_parameters", *REDUCED, *gathers):
        torchs = tracker.largest.get(category, 0)
        assert largest_of(walk)[category] == pytest.approx(torchs, abs=SCALARS), category
    counters = 4 * len(list(Llama(model).parameters()))
    assert fullest.held["optimizer"] + counters == pytest.approx(tracker.peak["optimizer"])


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("batch", [2, 8, 32])  # states make the peak, both, or activations do
@pytest.mark.parametrize("size", [{}, {"layers": 8}, {"hidden": 128, "ffn": 512}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_ddp_in_16_bits_holds_what_is_predicted(name, size, batch, recompute):
    """Autocast keeps norms and the skipped path in fp32, a 16-bit copy of a norm's output for each
    product that reads it, and 16-bit copies of weights. What is computed again of experts is 2%
    off."""
    model = replace(MODELS[name], **size)
    plan = sl.Plan(
        dp=RANKS, microbatch_size=batch, seq=SEQ, library="torch", precision="bf16", recompute=recompute
    )  # fmt: skip
    fullest = max(walk_of(model, plan).moments(0), key=lambda moment: moment.total)
    build = partial(Llama, model, recompute=recompute == "full")
    tracker = measured({"seq": SEQ}, RANKS, batch, "ddp", build=build, bf16=True)
    close = 0.02 if name == "experts" and recompute == "full" else 0.007
    assert fullest.total == pytest.approx(sum(tracker.peak.values()), rel=close)
    if fullest.op == "0B0" and recompute == "none":
        assert fullest.held["activations"] == pytest.approx(
            tracker.peak["activations"], abs=SCALARS
        )
