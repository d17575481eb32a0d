"""What a search predicts of a plan in short, and judges of its memory, beside the whole prediction."""

from dataclasses import replace

import pytest

from simlab import Model, Plan, load_cluster, predict
from simlab.planner import judged, reserve_bytes
from simlab.planner.rank import most_held, predicted, waterfall_s
from simlab.training.fit import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    FRAGMENTATION,
    MOST_FRAGMENTATION,
    PAIR_BYTES,
)

MODEL = Model(
    name="small", layers=8, hidden=1024, heads=16, kv_heads=8, ffn=4096, gated_mlp=True,
    vocab=32000, seq=2048, positions=0, bias=False, tied_head=False,
)  # fmt: skip
CLUSTER = load_cluster("dgx-h100", nodes=2)


@pytest.mark.parametrize("changes", [
    {}, {"pp": 4, "dp": 4}, {"pp": 4, "dp": 4, "schedule": "interleaved-1f1b"}, {"tp": 2, "dp": 8, "zero": 3},
    {"pp": 2, "dp": 8, "zero": 2}, {"pp": 4, "dp": 4, "recompute": "full", "zero": 1}, {"pp": 2, "dp": 8, "schedule": "zb-h1"},
    {"pp": 2, "dp": 8, "library": "torch"}, {"cp": 4, "dp": 4, "zero": 1},
    {"pp": 4, "dp": 4, "schedule": "gpipe"}, {"pp": 4, "dp": 4, "schedule": "looped-bfs"},
])  # fmt: skip
def test_the_steady_state_is_extrapolated_to_four_decimals(changes):
    plan = Plan(**{"dp": 16, "microbatches": 32, **changes})
    whole, short = predict(MODEL, plan, CLUSTER), predicted(MODEL, plan, CLUSTER)
    assert short.step_s == pytest.approx(whole.step_s, rel=1e-4)
    assert short.memory_bytes == pytest.approx(sum(whole.memory_bytes.values()), rel=1e-9)
    assert short.mfu == pytest.approx(whole.mfu, rel=1e-4)
    parts = waterfall_s(MODEL, plan, CLUSTER)
    assert sum(parts) == pytest.approx(whole.step_s, rel=1e-4)
    assert parts.bubble == pytest.approx(whole.waterfall_s.bubble, abs=1e-3 * whole.step_s)


def test_few_microbatches_are_predicted_as_they_are():
    plan = Plan(dp=4, pp=4, microbatches=3)
    assert predicted(MODEL, plan, CLUSTER).step_s == predict(MODEL, plan, CLUSTER).step_s
    held = predict(MODEL, plan, CLUSTER).memory_bytes
    assert most_held(MODEL, plan) == pytest.approx(held)


def test_the_reserve_is_the_context_and_a_communicator_for_each_dimension_that_is_split():
    assert reserve_bytes(Plan()) == CONTEXT_BYTES
    assert reserve_bytes(Plan(dp=2, tp=4)) == CONTEXT_BYTES + PAIR_BYTES + COMMUNICATOR_BYTES


def test_a_judgement_is_one_of_three_and_says_what_is_missing():
    plan, capacity = Plan(dp=16), CLUSTER.gpu_memory_bytes
    room = capacity - reserve_bytes(plan)
    states = {"parameters": room / 8, "gradients": room / 8, "optimizer": room / 4}
    shares = {  # of what is left for activations
        0.99 * (1 - MOST_FRAGMENTATION): "fits",
        1.01 * (1 - MOST_FRAGMENTATION): "tight",
        0.99 * (1 - FRAGMENTATION): "tight",
        1.01 * (1 - FRAGMENTATION): "does not fit",
        1.01: "does not fit",
    }
    for share, expected in shares.items():
        fit = judged(plan, CLUSTER, {**states, "activations": share * room / 2})
        assert fit.verdict == expected and fit.fits == (expected != "does not fit"), share
        reserved = share / (1 - FRAGMENTATION) * room / 2
        assert fit.missing_bytes == pytest.approx(max(0, reserved - room / 2), abs=10)
        assert fit.held_bytes == pytest.approx((1 + share) * room / 2)
    assert judged(plan, CLUSTER, {"optimizer": 0.999 * room}).verdict == "fits"


def test_a_plan_that_does_not_fit_is_not_simulated():
    gpu = replace(CLUSTER.gpu, memory_bytes=2e9)
    ranked = predicted(MODEL, Plan(dp=16), replace(CLUSTER, gpu=gpu))
    assert ranked.step_s == float("inf") and not ranked.fit.fits and ranked.fit.missing_bytes > 0
