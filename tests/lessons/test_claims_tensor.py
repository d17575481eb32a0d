"""What lesson 5 tells people to say holds over a sweep of what it depends on."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.explorers.context import Setting, layer
from simlab.lessons import book
from simlab.lessons.words import LANGUAGES, word
from simlab.lowering.traffic import crossing, traffic

GPT = sl.Model(name="gpt", layers=24, hidden=2048, heads=16, vocab=64, seq=2048)
"""Blocks of 12 h² parameters, and hardly any embedding."""
LLAMA = sl.load_model("llama-3-70b")
NVLINK, NIC, H100 = 450e9, 50e9, 989e12
"""Bytes per second in one direction, and dense FLOP/s in bf16: NVIDIA's data sheets."""


def says(key, *figures):
    """Whether the answer that is said aloud has each figure, in both languages."""
    texts = [word(f"{key}.spoken", tongue=tongue) for tongue in LANGUAGES]
    return all(figure in text for figure in figures for text in texts)


def test_communication_over_compute_of_eight_h100s_is_what_the_answer_says():
    ratio = book.exercise("w10").solution
    near, far = (ratio(8, 8192, link, H100) for link in (NVLINK, NIC))
    assert round(near, 1) == 0.4 and 3.6 < far < 4, "nearly 4"
    assert says("w10", "0.4", "400") and NIC * 8 == 400e9


def test_the_volume_and_the_times_of_tensor_parallelism_on_512_gpus_are_what_the_answer_says():
    cluster = sl.load_cluster("dgx-h100", nodes=64)
    plan = sl.Plan(dp=8, tp=8, pp=8, microbatches=32, sequence_parallel=True, zero=1)
    sent = sum(stage.tp for stage in traffic(LLAMA, plan)) / plan.pp
    assert says("t5", f"{round(sent / 1e9, -1):.0f}")
    assert says("t5", f"{sent / NVLINK:.1f}", f"{sent / NIC:.1f}")
    assert plan.dp * plan.microbatches * LLAMA.seq == pytest.approx(2e6, rel=0.05), "two million"
    inside, across = (
        sl.predict(LLAMA, replace(plan, order=order), cluster).step_s
        for order in ("tp-cp-dp-pp", "pp-cp-dp-tp")
    )
    assert 5.5 < inside < 6.5 and 2.6 < across / inside < 3


@pytest.mark.parametrize(("gradient_bytes", "times_hidden"), [(4, 6), (2, 3)])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_tp_and_dp_send_alike_at_6_h_tokens_with_fp32_gradients_and_3_h_with_16_bits(
    gradient_bytes, times_hidden, n
):
    data = traffic(GPT, sl.Plan(dp=n, gradient_bytes=gradient_bytes))[0].dp
    one = traffic(GPT, sl.Plan(tp=n))[0].tp / GPT.seq  # a token's
    assert data / one == pytest.approx(times_hidden * GPT.hidden, rel=0.05)


def spent_in_layers(model, **fields):
    """(seconds that a rank waits for tensor parallelism, seconds that it computes), over NVLink."""
    plan = sl.Plan(dp=8 // fields["tp"], sequence_parallel=True, **fields)
    spent = sl.predict(model, plan, sl.load_cluster("dgx-h100")).waterfall_s
    return spent.tp, spent.compute


def waiting_share(model, **fields):
    """Which part of the time in layers is waiting."""
    waiting_s, computing_s = spent_in_layers(model, **fields)
    return waiting_s / (waiting_s + computing_s)


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
    waits_s = [spent_in_layers(model, tp=tp, seq=1024, microbatch_size=n)[0] / n for n in (1, 8)]
    assert waits_s[1] < waits_s[0]  # of a sequence; products of one sequence are slower, too
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


# follow-ups
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b", "gpt3-175b"])
def test_sequence_parallelism_sends_a_quarter_more_in_all(name, tp):
    model = sl.load_model(name)
    plain, cut = (
        traffic(model, sl.Plan(tp=tp, sequence_parallel=on))[0].tp for on in (False, True)
    )
    assert cut / plain == pytest.approx(1.25, rel=0.01)


@pytest.mark.parametrize("tp", [4, 8])
def test_the_share_grows_with_the_ranks_and_shrinks_with_the_hidden_size(tp):
    shares = {
        (name, count): waiting_share(sl.load_model(name), tp=count)
        for name in ("llama-3-8b", "llama-3-70b")
        for count in (tp // 2, tp)
    }
    for name in ("llama-3-8b", "llama-3-70b"):
        assert shares[name, tp] > shares[name, tp // 2]
    assert shares["llama-3-70b", tp] < shares["llama-3-8b", tp]


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3-8b", "llama-3-70b"])
def test_the_all_to_all_sends_less_with_more_ranks_and_the_ring_never_does(name):
    """Grouped-query attention moves the number of ranks from which the all-to-all sends less."""
    model, counts = sl.load_model(name), (2, 4, 8, 16)
    sent = {
        kind: [traffic(model, sl.Plan(cp=cp, cp_kind=kind, seq=32_768))[0].cp for cp in counts]
        for kind in ("ring", "all-to-all")
    }
    assert sent["ring"] == sorted(sent["ring"])
    assert sent["all-to-all"] == sorted(sent["all-to-all"], reverse=True)
    assert sent["all-to-all"][2] < sent["ring"][2]
    assert (sent["all-to-all"][0] < sent["ring"][0]) == (name == "llama-2-7b")


@pytest.mark.parametrize(("link", "tokens"), [("node", 2**13), ("node", 2**17), ("network", 2**17)])
def test_on_8_ranks_a_ring_waits_less_than_an_all_to_all_but_for_short_sequences_over_a_network(
    link, tokens
):
    def exposed_s(kind, tokens, link):
        return layer(Setting(tokens, 8, 8, link, "none"), kind).exposed_s

    assert exposed_s("ring", tokens, link) < exposed_s("all-to-all", tokens, link)
    short = [exposed_s(kind, 2**13, "network") for kind in ("ring", "all-to-all")]
    assert short[0] > 1.2 * short[1]


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b"])
def test_a_transfer_in_pieces_hides_a_good_part_over_nvlink_and_little_over_the_network(name):
    model, hidden = sl.load_model(name), {}
    for nodes, order in ((1, "tp-cp-dp-pp"), (8, "dp-cp-tp-pp")):
        plan = sl.Plan(tp=8, dp=nodes, sequence_parallel=True, order=order)
        waits = [
            sl.predict(
                model, replace(plan, tp_overlap=kind), sl.load_cluster("dgx-h100", nodes=nodes)
            ).waterfall_s.tp
            for kind in ("none", "pipelined")
        ]
        hidden[nodes] = 1 - waits[1] / waits[0]
    assert hidden[1] > 0.5 > 0.4 > hidden[8]
