"""What a plan sends, against closed forms; ranks in another order; what-ifs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_oracles import changed, plan_of, steps

import simlab as sl
from simlab.collectives import busbw_factor
from simlab.layer.parameters import stage_parameters
from simlab.lowering.build import program_of
from simlab.lowering.instructions import BEGIN, rank_instructions
from simlab.lowering.kernels import kernel_names
from simlab.lowering.traffic import sent_bytes

MODEL = sl.Model(
    name="m",
    layers=8,
    hidden=1024,
    heads=16,
    kv_heads=4,
    vocab=32000,
    seq=512,
    gated_mlp=True,
    bias=False,
)
CLUSTER = sl.load_cluster("dgx-a100", nodes=4)


@pytest.mark.parametrize("t", [1, 2, 4])
@pytest.mark.parametrize("m", [4, 8])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel_ranks_send_four_all_reduces_a_layer_and_microbatch(
    t, m, sequence_parallel
):
    plan = plan_of(
        tp=t, pp=4, microbatches=m, microbatch_size=2, sequence_parallel=sequence_parallel
    )
    hidden_bytes = 2 * 512 * 1024 * 2
    middle = sl.traffic(MODEL, plan)[1]
    # with sequence parallelism 4 gathers, 4 scatters (half an all-reduce each), and inputs gathered
    # again for the weights' gradient: 2
    all_reduces = 4 + sequence_parallel
    between = 2 * m * all_reduces * 2 * (t - 1) / t * hidden_bytes
    # without it, what the stage before sent a t-th of is gathered, and so are gradients; with it,
    # norms' gradients are summed once a step
    more = (
        2 * 2 * 1024 * 4 * 2 * (t - 1) / t
        if sequence_parallel
        else 2 * m * (t - 1) / t * hidden_bytes
    )
    assert middle.tp == pytest.approx(between + more)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_pipeline_ranks_send_a_tp_th_of_the_hidden_states_each_way_for_each_microbatch(p):
    plan = sl.Plan(tp=2, pp=p, microbatches=8)
    message = 512 * 1024 * 2 / 2
    assert [t.pp for t in sl.traffic(MODEL, plan)] == [
        8 * message,
        *[16 * message] * (p - 2),
        8 * message,
    ]


def test_interleaved_stages_send_more_messages():
    plain, chunked = (
        sl.traffic(MODEL, sl.Plan(pp=4, microbatches=8, schedule=name))
        for name in ("1f1b", "interleaved-1f1b")
    )
    assert sum(t.pp for t in chunked) / sum(t.pp for t in plain) == pytest.approx(
        (4 * 2 - 1) / (4 - 1)
    )


@pytest.mark.parametrize("d", [2, 8])
@pytest.mark.parametrize("c", [1, 2])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradients_and_parameters_are_sent_over_dp_and_cp_together(d, c, zero):
    plan = sl.Plan(dp=d, cp=c, pp=4, zero=zero, microbatches=4)
    parameters = stage_parameters(MODEL, plan, 2)
    # bytes; from ZeRO-2 on for each of 4 microbatches
    per_parameter = {0: 2 * 4, 1: 4 + 2, 2: 4 * 4 + 2, 3: 4 * (2 + 2 + 4)}[zero]
    n = d * c
    assert sl.traffic(MODEL, plan)[1].dp == pytest.approx((n - 1) / n * per_parameter * parameters)


def test_hybrid_sharding_reduces_each_shard_over_its_replicas():
    plan = sl.Plan(dp=8, zero=1, hybrid=4)
    parameters = stage_parameters(MODEL, plan, 8, first=True, last=True)
    sent = sl.traffic(MODEL, plan)[0]
    assert sent.dp == pytest.approx(3 / 4 * 6 * parameters)
    assert sent.replicas == pytest.approx(2 * 1 / 2 * 4 * parameters / 4)


@pytest.mark.parametrize("c", [1, 2, 4])
def test_context_parallel_ranks_send_keys_and_values_and_twice_that_backward(c):
    plan = sl.Plan(cp=c, pp=2, microbatches=4)
    keys_and_values = 2 * 2 * (512 / c) * 4 * 64
    assert sl.traffic(MODEL, plan)[0].cp == pytest.approx(4 * 4 * 3 * (c - 1) * keys_and_values)


def test_nothing_is_sent_by_one_gpu():
    assert sl.traffic(MODEL, sl.Plan(microbatches=4)) == [sl.Traffic(0, 0, 0, 0)]


def test_a_tied_head_on_another_stage_sums_its_gradients_with_the_embeddings():
    tied, plan = replace(MODEL, tied_head=True), sl.Plan(pp=4, microbatches=4)
    more = [a.pp - b.pp for a, b in zip(sl.traffic(tied, plan), sl.traffic(MODEL, plan))]
    assert more == [32000 * 1024 * 4, 0, 0, 32000 * 1024 * 4]


@given(steps(widths=(64,), seqs=(256,)), st.sampled_from(["ring", "all-to-all"]))
def test_it_is_the_sum_over_the_lists_of_instructions_but_for_padding_and_the_norm(step, cp_kind):
    model, plan, _ = step
    # a tied head is in no list
    model, plan = replace(model, tied_head=False), changed(plan, cp_kind=cp_kind)
    for rank, closed in enumerate(sl.traffic(model, plan)):
        listed, padding = listed_bytes(model, plan, rank)
        assert {"tp": closed.tp, "cp": closed.cp, "pp": closed.pp} == pytest.approx(
            {name: listed[name] for name in ("tp", "cp", "pp")}
        )
        assert 0 <= listed["dp"] - closed.dp + 1e-6 * closed.dp <= padding + 2e-6 * closed.dp
        if plan.dp != 3:  # 2 and 4 ranks divide all
            assert closed.dp == pytest.approx(listed["dp"])


def listed_bytes(model, plan, rank):
    """({dimension: bytes that a GPU of the pipeline rank sends}, the most of them that is
    padding)."""
    sent, padding = dict.fromkeys(("tp", "cp", "dp", "pp"), 0.0), 0.0
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp * plan.cp, "pp": plan.pp}
    for instruction in rank_instructions(model, plan, program_of(plan), rank):
        if instruction.action == BEGIN and not instruction.name.startswith(
            ("norm over", "overflow over")
        ):
            ranks, whole = sizes[instruction.dimension], instruction.kind in ("ring", "message")
            factor = 1 if whole else busbw_factor(instruction.kind.replace("_", "-"), ranks)
            sent[instruction.dimension] += factor * instruction.size_bytes
            padding += factor * ranks * 4 if instruction.dimension == "dp" else 0
    return sent, padding


def test_what_a_list_sends_is_what_the_closed_forms_say_that_its_rank_sends():
    plan = sl.Plan(dp=2, tp=2, pp=2, microbatches=4)
    for rank, closed in enumerate(sl.traffic(MODEL, plan)):
        sent = sent_bytes(rank_instructions(MODEL, plan, program_of(plan), rank), plan)
        # besides there is the norm of the gradients: a few numbers for each dimension
        assert {name: getattr(closed, name) for name in ("dp", "tp", "pp")} == pytest.approx(
            {name: sent[name] for name in ("dp", "tp", "pp")}, abs=64
        )


def test_with_zero_2_gradients_are_scattered_after_every_backward_with_zero_1_once():
    """Or there would have to be a place for all of them, which ZeRO-2's memory says that there is
    not."""
    per_step = [
        sl.traffic(MODEL, sl.Plan(dp=4, zero=zero, microbatches=8))[0].dp for zero in (1, 2)
    ]
    parameters = stage_parameters(MODEL, sl.Plan(), 8, first=True, last=True)
    assert per_step == pytest.approx(
        [3 / 4 * (4 + 2) * parameters, 3 / 4 * (8 * 4 + 2) * parameters]
    )


# the order of ranks
# --------------------------------------------------------------------------------------------


def test_groups_know_how_many_of_their_ranks_share_a_node():
    from simlab.cost.groups import Groups

    def per_node(order):
        groups = Groups.of(sl.Plan(dp=4, tp=2, pp=2, cp=2, order=order), CLUSTER)
        return groups.tp.per_node, groups.cp.per_node, groups.dp.per_node

    assert per_node("tp-cp-dp-pp") == (2, 2, 4)
    assert per_node("dp-pp-cp-tp") == (1, 1, 4)
    # cp and dp are not neighbours of the fastest: dp x cp is no regular stride from tp on
    assert per_node("pp-tp-dp-cp") == (2, 1, 2)
    assert per_node("cp-tp-dp-pp") == (2, 2, 4)


def test_crossing_counts_the_hops_between_nodes():
    plan = sl.Plan(dp=4, tp=2, pp=2, cp=2)
    assert sl.crossing(plan, 8) == sl.Traffic(tp=0, cp=0, dp=2 / 8, pp=1)
    assert sl.crossing(replace(plan, order="pp-dp-cp-tp"), 8) == sl.Traffic(
        tp=1, cp=1, dp=2 / 8, pp=0
    )
    assert sl.crossing(plan, 32).total == 0


@pytest.mark.parametrize(
    ("gpus_per_node", "shards", "replicas"), [(8, 0, 0), (4, 0, 1), (2, 2 / 4, 1), (1, 1, 1)]
)
def test_crossing_follows_the_groups_of_hybrid_sharding(gpus_per_node, shards, replicas):
    """Shard groups are the rings 0-1-2-3 and 4-5-6-7, replicas the pairs 0-4, 1-5, 2-6 and 3-7. On
    nodes of two GPUs the hops 1-2 and 3-0 of a ring of four leave the node."""
    plan = sl.Plan(dp=8, zero=3, hybrid=4)
    assert sl.crossing(plan, gpus_per_node) == sl.Traffic(
        tp=0, cp=0, dp=shards, pp=0, replicas=replicas
    )


def test_without_hybrid_sharding_there_are_no_replicas_and_all_of_dp_is_one_ring():
    plan = sl.Plan(dp=8, zero=3)
    assert sl.crossing(plan, 4) == sl.Traffic(tp=0, cp=0, dp=2 / 8, pp=0)
    assert sl.traffic(MODEL, plan)[0].replicas == 0


def test_an_order_with_tp_across_nodes_is_slower_and_one_that_is_none_is_an_error():
    model, plan = sl.load_model("llama-2-13b"), sl.Plan(dp=4, tp=2, pp=2, cp=2, microbatches=8)
    inside, across = (
        sl.predict(model, replace(plan, order=o), CLUSTER).step_s
        for o in ("tp-cp-dp-pp", "dp-cp-pp-tp")
    )
    assert across > inside
    with pytest.raises(sl.InputError, match="order = 'tp-dp'"):
        sl.Plan(order="tp-dp")


# what if
# ------------------------------------------------------------------------------------------------------

PREDICTION = sl.predict(MODEL, sl.Plan(dp=4, tp=2, pp=4, microbatches=8, dp_overlap=False), CLUSTER)


def test_a_faster_network_shortens_what_crosses_it_and_only_that():
    found = sl.faster_link(PREDICTION, "inter", 2)
    assert (
        found.before is PREDICTION
        and found.saved_s == PREDICTION.step_s - found.prediction.step_s > 0
    )
    assert found.saved == found.saved_s / PREDICTION.step_s
    assert found.spent_s["tp"] == pytest.approx(0) and found.spent_s["compute"] == pytest.approx(0)
    assert sum(found.spent_s.values()) == pytest.approx(found.saved_s)
    assert sl.faster_link(PREDICTION, "intra", 2).spent_s["tp"] > 0
    assert sl.faster_link(PREDICTION, "pcie", 2).saved_s == 0


def test_a_link_of_the_same_speed_changes_nothing():
    assert sl.faster_link(PREDICTION, "inter", 1).saved_s == 0
    assert sl.faster_kernel(PREDICTION, "attention", 1).saved_s == 0
    assert sl.other_gpu(PREDICTION, CLUSTER.gpu.name).saved_s == 0


def test_kernels_that_take_half_as_long_save_half_of_what_they_take_together():
    big = sl.load_model("llama-2-13b")
    prediction = sl.predict(big, sl.Plan(dp=32, zero=3, microbatches=2), CLUSTER)
    saved = [
        sl.faster_kernel(prediction, name).spent_s["compute"]
        for name in kernel_names(big, prediction.plan)
    ]
    beside = sum(saved) * 2
    assert all(seconds > 0 for seconds in saved)
    # the rest: slowed by collectives, residual sums' gradients
    assert beside == pytest.approx(prediction.waterfall_s.compute, rel=0.12)


def test_a_faster_gpu_makes_a_shorter_step():
    found = sl.other_gpu(PREDICTION, "h100-sxm-80gb")
    assert (
        found.saved_s > 0
        and found.prediction.cluster.gpu.name == "h100-sxm-80gb"
        and found.prediction.cluster.nodes == 4
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sl.faster_link(PREDICTION, "nvlink"), "link 'nvlink'"),
        (lambda: sl.faster_link(PREDICTION, "inter", 0), "times = 0"),
        (lambda: sl.faster_kernel(PREDICTION, "atention"), "did you mean 'attention'"),
        (lambda: sl.other_gpu(PREDICTION, "h101"), "gpu 'h101'"),
    ],
)
def test_what_cannot_be_is_said(call, message):
    with pytest.raises(sl.InputError, match=message):
        call()


@pytest.mark.parametrize("gpus_per_node", [0, -8, 1.5, "8", None, True])
def test_a_node_of_no_whole_number_of_gpus_is_refused(gpus_per_node):
    with pytest.raises(
        sl.InputError, match=f"gpus_per_node = {gpus_per_node!r}: give a whole number, at least 1"
    ):
        sl.crossing(sl.Plan(dp=4), gpus_per_node)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-v"])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_replicas_of_a_shard_are_summed_once_whatever_the_schedule(schedule, zero):
    plan = sl.Plan(dp=4, pp=4, hybrid=2, zero=zero, schedule=schedule, microbatches=4)
    program = program_of(plan)
    for rank, sent in enumerate(sl.traffic(MODEL, plan)):
        begun = [i for i in rank_instructions(MODEL, plan, program, rank) if i.action == BEGIN]
        listed = sum(
            busbw_factor(i.kind.replace("_", "-"), 2) * i.size_bytes
            for i in begun
            if i.dimension in ("dp", "replicas") and not i.name.startswith("norm")
        )
        assert sent.dp + sent.replicas == pytest.approx(listed, rel=1e-9)
