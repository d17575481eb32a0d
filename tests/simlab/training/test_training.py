"""A step of a model on a cluster: what its parts add up to, what must hold of any plan, and a
published run."""

import json
from dataclasses import replace
from math import prod

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plan_oracles import changed, cluster_of, nothing_is_slowed, steps

import simlab
from simlab.errors import InputError
from simlab.memory.model_states import model_states
from simlab.spec.cluster import load_cluster
from simlab.spec.model import Model, load_model
from simlab.spec.plan import Plan
from simlab.training import layer_trace, predict
from simlab.training.fit import reserve_bytes

FEW = settings(max_examples=30)
GPT = Model(
    name="GPT",
    layers=8,
    hidden=2048,
    heads=16,
    vocab=51200,
    positions=1024,
    seq=1024,
    tied_head=False,
)
FREE = {"bandwidth_bytes_per_s": 1e30, "base_s": 0.0, "hop_s": 0.0, "message_s": 0.0}


def without_communication(cluster):
    return replace(
        cluster, intra=replace(cluster.intra, **FREE), inter=replace(cluster.inter, **FREE)
    )


def totals(prediction):
    """([seconds of each stage's forward], [of its backward])"""
    return [s.forward.total for s in prediction.stages], [
        s.backward.total for s in prediction.stages
    ]


# sums
# -----------------------------------------------------------------------------------------------------


@FEW
@given(steps())
def test_what_time_is_spent_on_adds_up_to_the_step(step):
    found = predict(*step)
    parts = found.waterfall_s
    assert sum(parts) == pytest.approx(found.step_s, rel=1e-9)
    assert min(parts) >= 0 and parts.compute > 0
    assert found.exposed_s == {
        name: getattr(parts, name) for name in ("dp", "tp", "pp", "cp", "ep")
    }
    plan = found.plan
    assert (
        (parts.pp > 0) <= (plan.pp > 1)
        and (parts.tp > 0) <= (plan.tp > 1)
        and (parts.cp > 0) <= (plan.cp > 1)
    )
    if plan.pp == 1:
        assert parts.bubble == pytest.approx(0, abs=1e-9 * found.step_s)
    reduces = (
        plan.dp * plan.cp > 1
        or plan.sequence_parallel  # the gradients of norms, over tensor-parallel ranks
        or (found.model.tied_head and plan.pp > 1)
    )
    if not reduces:
        assert parts.dp == pytest.approx(0, abs=1e-12)


@FEW
@given(steps())
def test_tokens_and_utilisation_are_counted_from_the_plan_alone(step):
    model, plan, cluster = step
    found = predict(*step)
    tokens = plan.dp * plan.microbatch_size * plan.microbatches * model.seq
    assert found.tokens == tokens and found.tokens_per_s == pytest.approx(tokens / found.step_s)
    peak = cluster.gpu.peak_flops["bf16"] * prod((plan.dp, plan.tp, plan.pp, plan.cp))
    h, s, layers, matrices = model.hidden, model.seq, model.layers, 3 if model.gated_mlp else 2
    closed = (
        3
        * tokens
        * (layers * (8 * h * h + 2 * matrices * h * model.ffn + 4 * s * h) + 2 * h * model.vocab)
    )
    assert found.mfu * found.step_s == pytest.approx(closed / peak, rel=1e-9)
    assert found.hfu >= found.mfu and found.mfu < 1
    if plan.recompute == "full":
        again = (closed - 6 * tokens * h * model.vocab) / 3
        if plan.library == "torch" and not plan.dropout and not model.experts:
            again -= tokens * layers * 2 * h * model.ffn  # the last product of each layer
        assert found.hfu / found.mfu == pytest.approx((closed + again) / closed)
    if plan.recompute == "none":
        assert found.hfu == found.mfu


# without communication
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("microbatches", [1, 5])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_one_gpu_does_forward_and_backward_of_each_microbatch_and_the_optimizer(
    microbatches, recompute
):
    found = predict(GPT, Plan(microbatches=microbatches, recompute=recompute), cluster_of(1))
    (forward_s,), (backward_s,) = totals(found)
    assert found.step_s == pytest.approx(
        microbatches * (forward_s + backward_s) + found.optimizer_s, rel=1e-12
    )
    assert found.waterfall_s[2:7] == pytest.approx((0,) * 5, abs=1e-12)


@pytest.mark.parametrize("p, m", [(2, 2), (4, 4), (4, 9), (8, 8)])
def test_a_pipeline_without_communication_takes_the_closed_forms(p, m):
    """Stages are unequal by embedding and head: the first microbatch passes all, the others follow
    at the slowest one's pace."""
    cluster = without_communication(cluster_of(p))
    found = predict(GPT, Plan(pp=p, microbatches=m, schedule="gpipe"), cluster)
    forward_s, backward_s = totals(found)
    closed = sum(forward_s) + sum(backward_s) + (m - 1) * (max(forward_s) + max(backward_s))
    assert found.trace.step_s == pytest.approx(closed, rel=1e-9)
    assert found.step_s == pytest.approx(closed + found.optimizer_s, rel=1e-9)
    assert found.waterfall_s.pp == pytest.approx(0, abs=1e-9)
    mean = (sum(forward_s) + sum(backward_s)) / p
    assert found.waterfall_s.bubble == pytest.approx(closed - m * mean, rel=1e-6)


@pytest.mark.parametrize("schedule", ["1f1b", "eager-1f1b"])
def test_with_equal_stages_the_bubble_is_the_published_one(schedule):
    """(p-1)/m of the ideal time (Narayanan et al. 2021): no vocabulary to speak of, so that stages
    are equal."""
    model = replace(GPT, vocab=1, positions=0)
    found = predict(
        model,
        Plan(pp=4, microbatches=8, microbatch_size=8, schedule=schedule),
        without_communication(cluster_of(4)),
    )
    assert simlab.bubble(found.trace).idle_over_ideal == pytest.approx(3 / 8, rel=0.02)


@FEW
@given(steps(dp=1, tp=1, cp=1, zero=0, dp_overlap=True))
def test_one_replica_without_tensor_parallelism_waits_for_messages_alone(step):
    model, plan, cluster = step
    spent = predict(replace(model, tied_head=False), plan, cluster).waterfall_s
    assert (spent.tp, spent.cp, spent.offload) == (0, 0, 0) and spent.dp == pytest.approx(
        0, abs=1e-12
    )


# never slower
# ---------------------------------------------------------------------------------------------


@FEW
@given(steps(), st.sampled_from(["intra", "inter", "both"]), st.floats(1, 1000))
@nothing_is_slowed()
def test_more_bandwidth_is_never_slower(step, where, factor):
    """But for compute that runs beside communication: other compute may be slowed then than with
    slower links, of which the host hides less."""
    model, plan, cluster = step
    faster = {
        level: replace(fabric, bandwidth_bytes_per_s=factor * fabric.bandwidth_bytes_per_s)
        for level, fabric in (("intra", cluster.intra), ("inter", cluster.inter))
        if where in (level, "both")
    }
    found = predict(model, plan, replace(cluster, **faster))
    assert found.step_s <= predict(*step).step_s * (1 + 1e-9)


@FEW
@given(steps(dp_overlap=False, tp_overlap="none", prefetch=0))
@nothing_is_slowed()
def test_overlap_is_never_slower_than_none(step):
    """But for what it slows: in a pipeline, a rank that reduces beside its last backward ends that
    later, and the ranks before it wait. With sequence parallelism the sums of the norms' gradients
    stand in one queue with the communication of the layers: of a step of two small layers they take
    1.6%, so that is left out here."""
    model, plan, cluster = step
    alone_s = predict(*step).step_s
    for overlaps in (
        {"dp_overlap": True},
        {"tp_overlap": "weight-grad"},
        {"tp_overlap": "pipelined"},
        {"prefetch": 1},
    ):
        if plan.sequence_parallel and overlaps.get("dp_overlap"):
            continue
        beside = predict(model, changed(plan, **overlaps), cluster)
        assert beside.step_s <= alone_s * (1 + 1e-9), overlaps


@FEW
@given(steps(recompute="none"))
def test_recomputation_takes_time_and_saves_memory(step):
    model, plan, cluster = step
    kept, again = predict(*step), predict(model, replace(plan, recompute="full"), cluster)
    assert again.step_s >= kept.step_s * (1 - 1e-9)
    for left, whole in zip(again.memory.activations()[0], kept.memory.activations()[0]):
        assert left <= whole


@pytest.mark.parametrize("faster, slower", [
    ({}, {"fused": False}), ({}, {"attention": "unfused"}), ({"reshard": False}, {}), ({}, {"offload": "optimizer"}),
    ({}, {"attention": "flash-1"}),
])  # fmt: skip
def test_what_saves_work_is_faster(faster, slower):
    model = replace(load_model("llama-3-8b"), layers=4)
    plan = Plan(dp=8, zero=3, seq=4096, microbatches=2)
    fast, slow = (
        predict(model, replace(plan, **fields), cluster_of(8)).step_s for fields in (faster, slower)
    )
    assert fast <= slow


@pytest.mark.parametrize("offload", ["activations", "parameters"])
def test_what_is_kept_on_the_host_comes_over_pcie_for_every_microbatch(offload):
    """Where PCIe is all that counts: activations out and back, parameters in twice; where it is
    fast, only the memory shows."""
    model, plan = (
        replace(GPT, positions=0, vocab=1),
        Plan(microbatches=3, recompute="full", offload=offload),
    )
    slow, fast = (replace(cluster_of(1), pcie_bytes_per_s=rate) for rate in (1e3, 1e30))
    # full recomputation keeps the layers' inputs
    size = 8 * 1024 * 2048 * 2 if offload == "activations" else 2 * model.parameters
    found = predict(model, plan, slow)
    assert found.trace.step_s == pytest.approx(3 * 2 * size / 1e3, rel=1e-6)
    assert sum(found.waterfall_s) == pytest.approx(found.step_s, rel=1e-9)
    plain, free = predict(model, replace(plan, offload="none"), fast), predict(model, plan, fast)
    assert free.trace.step_s == pytest.approx(plain.trace.step_s, rel=1e-12)
    assert free.memory_bytes[offload] < plain.memory_bytes[offload]


# memory
# ---------------------------------------------------------------------------------------------------

RECIPES = {
    "megatron": {"precision": "bf16"},
    "zero": {"precision": "fp16"},
    "fp32": {"precision": "fp32"},
}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_held_at_rest_is_the_recipes(recipe, zero):
    for model in (GPT, replace(GPT, tied_head=True), replace(load_model("llama-3-8b"), layers=2)):
        found = predict(
            model, Plan(dp=8, zero=zero, seq=512, **RECIPES[recipe]), cluster_of(8)
        ).memory_bytes
        states = model_states(model.parameters, 8, zero=zero, recipe=recipe)
        assert {
            name: found[name] for name in ("parameters", "gradients", "optimizer")
        } == pytest.approx(
            {
                "parameters": states.parameters,
                "gradients": states.gradients,
                "optimizer": states.optimizer,
            },
            rel=1e-12,
        )


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_a_tied_head_on_the_embeddings_rank_is_there_once(schedule):
    """In a V the last stage is on the first rank; else the two are copies, whose gradients are
    summed at the end."""
    plan = Plan(pp=2, microbatches=4, schedule=schedule)
    tied, untied = (
        predict(replace(GPT, tied_head=tie), plan, cluster_of(2)) for tie in (True, False)
    )
    matrix = 51200 * 2048
    if schedule == "zb-v":
        assert untied.memory_bytes["parameters"] - tied.memory_bytes["parameters"] == 2 * matrix
        assert tied.waterfall_s.dp == pytest.approx(0, abs=1e-12)
    else:
        assert untied.memory_bytes["parameters"] == tied.memory_bytes["parameters"]
        assert (
            tied.waterfall_s.dp > 4 * matrix / load_cluster("dgx-a100").intra.bandwidth_bytes_per_s
        )


@FEW
@given(steps())
def test_tensors_fit_if_their_sum_does_and_the_plan_with_the_reserve_and_what_the_allocator_wastes(
    step,
):
    found = predict(*step)
    assert all(size >= 0 for size in found.memory_bytes.values())
    stays = sum(found.memory_bytes[name] for name in ("parameters", "gradients", "optimizer"))
    moves = sum(found.memory_bytes.values()) - stays
    total = (stays + moves / 0.85 + reserve_bytes(found.plan)) * (1 + 1e-12)
    for there, fits in ((total, True), (total * (1 - 1e-9), False), (total * 2, True)):
        assert with_memory(found, there).fit.fits is fits
    tensors = sum(found.memory_bytes.values())
    for there, fits in ((tensors, True), (tensors * (1 - 1e-9), False), (tensors * 2, True)):
        assert with_memory(found, there).fits is fits


def with_memory(found, size_bytes):
    gpu = replace(found.cluster.gpu, memory_bytes=size_bytes)
    return replace(found, cluster=replace(found.cluster, gpu=gpu))


@FEW
@given(steps(zeros=(0,)))
@example(
    (replace(GPT, tied_head=True), Plan(cp=2, schedule="zb-v", library="fsdp1"), cluster_of(2))
)
def test_more_sharding_never_holds_more_states(step):
    model, plan, cluster = step
    steps = [predict(model, replace(plan, zero=zero), cluster) for zero in (0, 1, 2, 3)]
    found = [its.memory_bytes for its in steps]
    # 2 and 3 have buffers for what is on its way
    assert sum(found[0].values()) >= sum(found[1].values())
    if plan.pp == 1:  # else another rank may be the fullest
        ends = [its.memory.moments(0)[-1].held for its in steps]  # when gradients are complete
        states = [its["parameters"] + its["gradients"] + its["optimizer"] for its in ends]
        ranks = plan.dp * plan.cp
        if plan.library == "torch":  # which pads each tensor's rows
            assert states[0] / ranks * (1 - 1e-9) <= states[3] < 1.1 * states[0] / ranks
        else:
            assert states == sorted(states, reverse=True)
            assert states[0] / states[3] == pytest.approx(ranks)


# a published run
# ------------------------------------------------------------------------------------------


LLAMA = Plan(dp=128, tp=8, pp=16, zero=1, schedule="interleaved-1f1b", chunks=2, microbatches=16, seq=8192, sequence_parallel=True,
             stage_layers="uneven")  # fmt: skip


def llama(**fields):
    """Llama 3 405B's pretraining on 16,384 GPUs (Dubey et al. 2024, arXiv 2407.21783, Table 4: tp
    8, pp 16, dp 128 at 8,192 tokens)."""
    return predict(
        load_model("llama-3-405b"), replace(LLAMA, **fields), load_cluster("dgx-h100", nodes=2048)
    )


def test_llama_3_405b_on_16384_gpus_runs_as_fast_as_published():
    """41% of the peak in bf16. The paper does not say how many stages a rank has: the figure lies
    between those of two and of eight. With two, reductions slow the backwards of one rank after the
    other, by what kernels lost beside others on an H100. What is sent is ZeRO-1's: data parallelism "synchronizes after
    each training step", gradients are accumulated over the microbatches in fp32 and so
    reduce-scattered, parameters not resharded after the forward (section 3.3.2)."""
    found = llama()
    assert found.tokens == 16 * 2**20 and found.plan.gpus == 16384
    assert 0.35 < found.mfu < 0.41 < llama(chunks=8, stage_layers="auto").mfu < 0.48
    assert sum(found.waterfall_s) == pytest.approx(found.step_s, rel=1e-9)


def test_it_fits_with_its_gradients_sharded_and_without_lacks_little_but_scattering_them_after_every_backward_costs_a_fifth():
    """The paper shards gradients, too (section 3.3.2), but simlab has no plan that does so and
    reduces them once a step."""
    once, each = llama(), llama(zero=2)
    assert sum(each.memory_bytes.values()) < each.capacity_bytes < sum(once.memory_bytes.values())
    held = sum(once.memory_bytes.values()) - once.memory_bytes["buffers"]  # of the backward running
    assert held < 1.03 * once.cluster.gpu.memory_bytes
    assert 0.7 < each.mfu / once.mfu < 0.85


# what cannot be
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields, gpus, says", [
    ({"dp": 4}, 8, "= 4, but there are 8 GPUs: dp = 8 would use them all"), ({"tp": 3}, 3, "tp = 3 does not divide GPT's heads = 16"),
    ({"pp": 3}, 3, "3 stages do not divide 8 layers"), ({"pp": 2, "schedule": "zb-auto"}, 2, "zb-auto searches for given op times"),
    ({"pp": 4, "microbatches": 6, "schedule": "dualpipe"}, 4, "dualpipe on 4 ranks with 6 microbatches"),
    ({"pp": 4, "microbatches": 6, "schedule": "dualpipe-v"}, 4, "6 microbatches: dualpipe-v on 4 ranks has 8 stages"),
    ({"pp": 8, "schedule": "zb-v"}, 8, "8 x 2 = 16 stages are more than the 8 layers"),
])  # fmt: skip
def test_a_plan_that_cannot_be_is_refused(fields, gpus, says):
    with pytest.raises(InputError, match=says):
        predict(GPT, Plan(**fields), cluster_of(gpus))


def test_an_mfu_says_that_attention_is_counted_in_full(capsys):
    """12 L s a d of 6 N + 12 L s a d a token: a causal half would be 6 L s a d."""
    from simlab.cli.main import main

    model, plan = simlab.load_model("llama-3-8b"), Plan(dp=8, seq=8192, zero=3)
    step = simlab.predict(model, plan, load_cluster("dgx-h100"))
    matrices = model.parameters - model.vocab * model.hidden - (2 * model.layers + 1) * model.hidden
    per_token = 6 * matrices + 12 * model.layers * 8192 * model.hidden
    peak = 8 * 989.4e12
    assert step.mfu == pytest.approx(per_token * step.tokens_per_s / peak, rel=1e-3)
    assert step.mfu_attention == "full"
    arguments = "simulate --model llama-3-8b --cluster dgx-h100 --dp 8 --zero 3 --seq 8192"
    assert main(arguments.split()) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("MFU"))
    assert line.endswith("attention counted in full")
    assert main([*arguments.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mfu_attention"] == "full"


# values that cannot be
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0, -2, float("nan"), "x"])
def test_a_kernel_is_some_number_of_times_as_fast(factor):
    with pytest.raises(InputError, match=f"times as fast 'attention' is = {factor!r}: give"):
        predict(
            load_model("gpt2"), Plan(dp=8), load_cluster("dgx-a100"), faster={"attention": factor}
        )


def test_a_precision_that_the_gpus_lack_is_refused_layer_by_layer_too():
    for step in (predict, layer_trace):
        for precision in ("fp8", "fp8-rowwise"):
            plan = Plan(dp=8, library="torch", precision=precision)
            with pytest.raises(InputError, match="has no fp8"):
                step(load_model("gpt2"), plan, load_cluster("dgx-a100"))


def test_with_a_scale_for_each_row_a_step_with_tensor_parallelism_sends_more_than_with_one_for_all():
    fields = {"dp": 2, "tp": 4, "zero": 3, "sequence_parallel": True, "library": "torch"}
    steps = [
        predict(load_model("llama-3-8b"), Plan(precision=p, **fields), load_cluster("dgx-h100"))
        for p in ("fp8", "fp8-rowwise", "bf16")
    ]
    by_tensor, by_row, wide = (its.exposed_s["tp"] for its in steps)
    assert by_tensor < by_row == pytest.approx(wide)
    assert steps[1].step_s < steps[2].step_s
