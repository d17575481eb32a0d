"""The bounds by which a search rejects plans, held against the figures that they bound."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simlab import InputError, Model, Plan, load_cluster, predict
from simlab.planner import judged, memory_bound_bytes, reserve_bytes, time_bound_s
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
SCHEDULES = ["1f1b", "interleaved-1f1b", "gpipe", "zb-h1", "zb-v", "looped-bfs"]


@st.composite
def plans(draw):
    tp, pp, cp = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    assume(tp * pp * cp <= 16)
    try:
        plan = Plan(
            dp=16 // (tp * pp * cp), tp=tp, pp=pp, cp=cp,
            schedule=draw(st.sampled_from(SCHEDULES)) if pp > 1 else "1f1b",
            zero=draw(st.sampled_from([0, 1, 2, 3])),
            recompute=draw(st.sampled_from(["none", "full"])),
            library=draw(st.sampled_from(["megatron", "torch"])),
            microbatch_size=draw(st.sampled_from([1, 2])),
            microbatches=pp * draw(st.integers(1, 3)),
            sequence_parallel=tp > 1,
        )  # fmt: skip
        return plan.check(MODEL, 16)
    except InputError:
        assume(False)


@given(plans())
def test_no_plan_is_faster_or_smaller_than_its_bounds(plan):
    prediction = predict(MODEL, plan, CLUSTER)
    assert memory_bound_bytes(MODEL, plan) <= sum(prediction.memory_bytes.values()) * (1 + 1e-9)
    assert time_bound_s(MODEL, plan, CLUSTER) <= prediction.step_s * (1 + 1e-9)


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
