"""What lesson 5 tells people to say holds over a sweep of what it depends on."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.lowering.traffic import crossing, traffic

GPT = sl.Model(name="gpt", layers=24, hidden=2048, heads=16, vocab=64, seq=2048)
"""Blocks of 12 h² parameters, and hardly any embedding."""
LLAMA = sl.load_model("llama-3-70b")


@pytest.mark.parametrize(("gradient_bytes", "times_hidden"), [(4, 6), (2, 3)])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_tp_and_dp_send_alike_at_6_h_tokens_with_fp32_gradients_and_3_h_with_16_bits(
    gradient_bytes, times_hidden, n
):
    data = traffic(GPT, sl.Plan(dp=n, gradient_bytes=gradient_bytes))[0].dp
    one = traffic(GPT, sl.Plan(tp=n))[0].tp / GPT.seq  # a token's
    assert data / one == pytest.approx(times_hidden * GPT.hidden, rel=0.05)


def waiting_share(model, **fields):
    """Which part of the time in layers a rank waits for tensor parallelism, over NVLink."""
    plan = sl.Plan(dp=8 // fields["tp"], sequence_parallel=True, **fields)
    spent = sl.predict(model, plan, sl.load_cluster("dgx-h100")).waterfall_s
    return spent.tp / (spent.tp + spent.compute)


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("seq", [4096, 8192, 32_768])
@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b"])
def test_a_larger_batch_hardly_changes_the_share_of_tensor_parallelism_once_messages_are_long(
    name, seq, tp
):
    model = sl.load_model(name)
    more = ({}, {"microbatches": 4}, *({"microbatch_size": size} for size in (2, 4, 8)))
    shares = [waiting_share(model, tp=tp, seq=seq, **fields) for fields in more]
    assert max(shares) < 1.25 * min(shares)


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b"])
def test_a_larger_batch_spreads_the_latency_of_short_messages_and_long_sequences_have_the_scores(
    name, tp
):
    model = sl.load_model(name)
    assert waiting_share(model, tp=tp, seq=1024, microbatch_size=8) < waiting_share(
        model, tp=tp, seq=1024
    )
    shares = [waiting_share(model, tp=tp, seq=seq) for seq in (1024, 8192, 32_768)]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("microbatches", [8, 16, 32])
@pytest.mark.parametrize("dp_overlap", [True, False])
def test_tp_inside_the_node_is_the_shortest_step_and_the_order_holds(microbatches, dp_overlap):
    cluster = sl.load_cluster("dgx-h100", nodes=64)
    plan = sl.Plan(
        dp=8,
        tp=8,
        pp=8,
        microbatches=microbatches,
        sequence_parallel=True,
        zero=1,
        dp_overlap=dp_overlap,
    )
    steps = {
        order: sl.predict(LLAMA, replace(plan, order=order), cluster).step_s
        for order in ("tp-cp-dp-pp", "pp-cp-dp-tp", "dp-cp-pp-tp")
    }
    assert min(steps, key=steps.get) == "tp-cp-dp-pp"
    assert min(steps["pp-cp-dp-tp"], steps["dp-cp-pp-tp"]) > 1.5 * steps["tp-cp-dp-pp"]
    assert crossing(replace(plan, order="tp-cp-dp-pp"), 8).tp == 0


@pytest.mark.parametrize("c", [2, 4, 8, 16])
def test_a_contiguous_cut_gives_the_last_rank_2c_minus_1_over_c_of_the_mean_and_zigzag_the_mean(c):
    busiest = {cut: max(map(sum, sl.ring_work(c, cut))) * c for cut in ("contiguous", "zigzag")}
    assert busiest["contiguous"] == pytest.approx((2 * c - 1) / c)
    assert busiest["zigzag"] == pytest.approx(1.0)
