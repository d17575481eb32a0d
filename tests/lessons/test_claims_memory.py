"""What lesson 3 has a learner say aloud, held over sweeps of what it depends on."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.lessons.words import word
from simlab.studies.caching_allocator import pool_steps
from simlab.training import HOST_ADAM_S

NODE = sl.load_cluster("dgx-h100")
ONE_GPU = replace(NODE, gpus_per_node=1, nics_per_node=1)
YEAR_S = 365 * 86400


def share_of_dp(model, plan):
    """The share of the step that is exposed communication, on H100 nodes."""
    step = sl.predict(model, plan, replace(NODE, nodes=plan.gpus // 8))
    return step.exposed_s["dp"] / step.step_s


# w01
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b", "llama-3-8b", "llama-3-70b", "gpt3-175b"])
@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx-a100"])
@pytest.mark.parametrize("microbatch_size", [1, 4])
def test_fifteen_trillion_tokens_are_decades_of_one_gpu_and_a_decade_of_a_small_model(
    name, cluster, microbatch_size
):
    one = replace(sl.load_cluster(cluster), gpus_per_node=1, nics_per_node=1, nodes=1)
    plan = sl.Plan(microbatch_size=microbatch_size, microbatches=8)
    step = sl.predict(sl.load_model(name), plan, one)
    assert 15e12 / step.tokens_per_s / YEAR_S > (10 if name == "gpt2-xl" else 30)


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b", "megatron-18b"])
@pytest.mark.parametrize("zero", [1, 3])
def test_with_a_fixed_batch_the_share_of_communication_grows_with_the_gpus(name, zero):
    model = sl.load_model(name)
    plans = [sl.Plan(dp=dp, zero=zero, microbatches=1024 // dp) for dp in (8, 32, 128, 512, 1024)]
    shares = [share_of_dp(model, plan) for plan in plans]
    assert shares == sorted(shares) and shares[-1] > 0.3


@pytest.mark.parametrize("name", ["llama-7b", "megatron-18b", "megatron-7.5b"])
def test_what_a_ring_over_many_nodes_costs_is_latency_and_inside_a_node_bytes(name):
    """And sharding in the node is a way out."""
    model = sl.load_model(name)
    size = 2 * sum(model.layer_parameters.values())

    def latency(ranks):
        cluster, group = replace(NODE, nodes=max(1, ranks // 8)), sl.GroupShape(ranks, 8)
        seconds = [sl.collective_s("all_gather", amount, group, cluster) for amount in (1024, size)]
        return seconds[0] / seconds[1]

    assert latency(8) < 0.05 < latency(64) < latency(1024)
    if name == "llama-7b":
        assert latency(1024) > 0.75
    plan = sl.Plan(dp=1024, zero=3)
    assert share_of_dp(model, replace(plan, hybrid=8)) < 0.75 * share_of_dp(model, plan)


def test_the_arithmetic_of_hops_bytes_and_years_is_what_the_answer_says():
    model = sl.load_model("llama-7b")
    size = 2 * sum(model.layer_parameters.values())
    cluster, group = replace(NODE, nodes=128), sl.GroupShape(1024, 8)
    hops_s, all_s = (sl.collective_s("all_gather", b, group, cluster) for b in (1024, size))
    assert hops_s == pytest.approx(4e-3, rel=0.1) and hops_s / 1023 == pytest.approx(4e-6, rel=0.1)
    assert all_s - hops_s == pytest.approx(1e-3, rel=0.1)
    years_at_peak = 6 * 8e9 * 15e12 / 989e12 / YEAR_S
    assert 0.44 < years_at_peak / 50 < 0.5, "not quite half its peak"


def test_with_more_microbatches_zero_1_communicates_a_smaller_share_and_zero_3_the_same():
    model, fallen = sl.load_model("llama-7b"), {}
    for zero in (1, 3):
        shares = [share_of_dp(model, sl.Plan(dp=1024, zero=zero, microbatches=m)) for m in (1, 4)]
        fallen[zero] = shares[1] / shares[0]
    assert fallen[1] < 0.6 < 0.9 < fallen[3] < 1.1


# w02
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b", "llama-3-8b", "megatron-18b"])
def test_few_tokens_the_optimizer_leads_many_the_activations_and_checkpointing_turns_it(name):
    model = sl.load_model(name)

    def largest(sequences, recompute):
        plan = sl.Plan(microbatch_size=sequences, recompute=recompute, seq=1024)
        held = sl.predict(model, plan, ONE_GPU).memory_bytes
        return max(held, key=held.get)

    assert largest(1, "none") == "optimizer"
    sequences = next(n for n in (2, 4, 8, 16, 32) if largest(n, "none") == "activations")
    assert largest(sequences, "full") == "optimizer"
    assert any(largest(2**n, "full") == "activations" for n in range(4, 12))


@pytest.mark.parametrize("name", ["gpt2-xl", "megatron-1.7b", "megatron-7.5b"])
@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "fsdp"])
def test_with_many_tokens_the_peak_is_where_the_backward_begins(name, sharding):
    model = sl.load_model(name)
    memory = sl.data_parallel_memory(model, 8, microbatch_size=16, sharding=sharding, recipe="zero")
    assert memory.peak.op == "backward head"


@pytest.mark.parametrize("name", ["gpt2-xl", "megatron-1.7b", "megatron-7.5b"])
@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2"])
def test_with_few_tokens_the_peak_comes_later_when_all_gradients_are_there(name, sharding):
    model = replace(sl.load_model(name), seq=128)
    memory = sl.data_parallel_memory(model, 8, microbatch_size=1, sharding=sharding, recipe="zero")
    assert memory.peak.op == "optimizer step"


@pytest.mark.parametrize("microbatch_size", [4, 8, 16])
def test_15_trillion_tokens_of_gpt2_xl_in_larger_microbatches_are_about_a_decade(microbatch_size):
    plan = sl.Plan(microbatch_size=microbatch_size, microbatches=8)
    step = sl.predict(sl.load_model("gpt2-xl"), plan, ONE_GPU)
    assert step.fits and 15e12 / step.tokens_per_s / YEAR_S == pytest.approx(10, rel=0.2)


# w04
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [8, 64, 512])
@pytest.mark.parametrize("size", [1, 4])
def test_no_stage_changes_activations_and_over_many_ranks_they_make_stage_3s_peak(ranks, size):
    model, held = sl.load_model("megatron-7.5b"), {}
    for sharding in ("ddp", "zero1", "zero2", "fsdp"):
        options = {"microbatch_size": size, "recipe": "zero"}
        memory = sl.data_parallel_memory(model, ranks, sharding=sharding, **options)
        held[sharding] = sl.memory_stack(memory).held_in("backward head")
    assert len({round(each["activations"]) for each in held.values()}) == 1
    states = sum(held["fsdp"][part] for part in ("parameters", "gradients", "optimizer"))
    if ranks >= 64:
        assert states < 0.5 * held["fsdp"]["activations"]


# w05
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b", "llama-3-70b"])
@pytest.mark.parametrize("ranks", [8, 64])
def test_with_fp32_gradients_stage_3_sends_plain_data_parallelisms_bytes(name, ranks):
    model, times = sl.load_model(name), {}
    for size in (2, 4):
        sent = [
            sl.traffic(model, sl.Plan(dp=ranks, zero=zero, gradient_bytes=size))[0].dp
            for zero in range(4)
        ]
        times[size] = [each / sent[0] for each in sent]
    assert times[2] == pytest.approx([1, 1, 1, 1.5])
    assert times[4] == pytest.approx([1, 0.75, 0.75, 1])


@pytest.mark.parametrize("nodes", [8, 32])
@pytest.mark.parametrize(("name", "seq"), [("llama-7b", 2048), ("llama-2-13b", 1024)])
def test_stage_3_takes_longer_than_1_by_less_where_a_layer_computes_longer(nodes, name, seq):
    model, longer = sl.load_model(name), []
    for size in (1, 4):
        ones, threes = (
            sl.predict(
                model,
                sl.Plan(dp=8 * nodes, zero=zero, microbatch_size=size, seq=seq),
                replace(NODE, nodes=nodes),
            )
            for zero in (1, 3)
        )
        longer.append(threes.step_s / ones.step_s - 1)
        if size == 4:
            assert max(step.exposed_s["dp"] / step.step_s for step in (ones, threes)) < 0.03
    assert longer[0] > 3 * longer[1] > 0


# w09
# ---------------------------------------------------------------------------------------------

ARRANGED = {
    "gpt3-175b": sl.Plan(tp=8, pp=8, microbatches=16, sequence_parallel=True),
    "megatron-22b": sl.Plan(tp=8, sequence_parallel=True, microbatch_size=4),
    "gpt2-xl": sl.Plan(microbatch_size=4),
}


def recomputed(name, attention, again):
    """(activations held at the peak, step) with one kind of recomputation."""
    plan = replace(ARRANGED[name], attention=attention, dropout=None, recompute=again)
    cluster = sl.load_cluster("dgx-a100", nodes=max(1, plan.gpus // 8))
    if plan.gpus == 1:
        cluster = replace(cluster, gpus_per_node=1, nics_per_node=1)
    step = sl.predict(sl.load_model(name), plan, cluster)
    return step.memory_bytes["activations"], step.step_s


@pytest.mark.parametrize("name", ARRANGED)
def test_full_leaves_little_for_a_third_more_time_and_selective_costs_far_less(name):
    """A few percent in large models; more in a small one, whose products are short beside the
    softmax."""
    none, full, selective = (recomputed(name, "unfused", k) for k in ("none", "full", "selective"))
    assert full[0] < 0.25 * none[0] and 1.2 < full[1] / none[1] < 1.42
    assert selective[0] < 0.8 * none[0] and selective[1] / none[1] < (
        1.15 if name == "gpt2-xl" else 1.08
    )


@pytest.mark.parametrize("name", ARRANGED)
def test_with_flash_attention_selective_saves_nothing_but_per_op_still_does(name):
    """ "Selective saves nothing with FlashAttention" holds of the one variant only."""
    none = recomputed(name, "flash", "none")
    assert recomputed(name, "flash", "selective") == pytest.approx(none)
    per_op, full = recomputed(name, "flash", "per-op"), recomputed(name, "flash", "full")
    assert full[0] < per_op[0] < 0.75 * none[0] and none[1] < per_op[1] < full[1]


# w07
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b", "megatron-7.5b"])
@pytest.mark.parametrize("m", [1, 4, 16])
def test_offload_adds_4_bytes_over_pcie_and_the_update_whatever_the_batch(name, m):
    model = sl.load_model(name)
    plan = sl.Plan(microbatches=m, microbatch_size=2, gradient_bytes=2)
    step = sl.offload_step(model, plan, ONE_GPU, overlap="none")
    Ψ, pcie = model.parameters, ONE_GPU.pcie_bytes_per_s
    assert step.exposed_s == pytest.approx(4 * Ψ / pcie + HOST_ADAM_S * Ψ)
    assert step.busy_s.host > step.busy_s.pcie_out + step.busy_s.pcie_in


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b"])
@pytest.mark.parametrize("times", [0.25, 1.1, 3])
def test_above_the_break_even_only_the_delayed_update_hides(name, times):
    model = sl.load_model(name)
    plan = sl.Plan(microbatch_size=1, gradient_bytes=2, recompute="full")
    one = sl.offload_step(model, plan, ONE_GPU, overlap="none")
    m = max(1, round(times * one.exposed_s / one.busy_s.compute))
    steps = {
        how: sl.offload_step(model, replace(plan, microbatches=m), ONE_GPU, overlap=how)
        for how in ("transfers", "delayed")
    }
    own = steps["delayed"].busy_s.compute
    assert (steps["delayed"].step_s < 1.01 * own) == (times > 1)
    assert steps["transfers"].step_s > own + 0.9 * steps["transfers"].busy_s.host


@pytest.mark.parametrize("name", ["llama-7b", "llama-3-8b", "megatron-7.5b"])
def test_at_the_break_even_a_step_is_about_1_8_times_the_gpus_work_for_the_update_comes_on_top(
    name,
):
    plan = sl.Plan(gradient_bytes=2, recompute="full")
    step = sl.offload_step(sl.load_model(name), plan, ONE_GPU, overlap="transfers")
    once_s = step.step_s - step.busy_s.compute  # whatever the number of tokens
    own_s = step.busy_s.pcie_out + step.busy_s.host + step.busy_s.pcie_in
    assert 1.7 < (own_s + once_s) / own_s < 1.9


@pytest.mark.parametrize("name", ["llama-7b", "megatron-18b"])
def test_offloaded_parameters_cost_per_microbatch_and_larger_microbatches_hide_it(name):
    model = sl.load_model(name)

    def copies_s(m, size):
        options = {"recompute": "full", "gradient_bytes": 2, "offload": "parameters"}
        plan = sl.Plan(microbatches=m, microbatch_size=size, **options)
        return sl.predict(model, plan, ONE_GPU).waterfall_s.offload

    more = copies_s(8, 1) - copies_s(4, 1)
    assert more == pytest.approx(copies_s(12, 1) - copies_s(8, 1), rel=0.01) and more > 0
    assert copies_s(8, 4) < 0.5 * copies_s(8, 1)


# d11
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("microbatches", [8, 32])
@pytest.mark.parametrize("name", ["llama-3-70b", "gpt3-175b"])
def test_pipelining_alone_hardly_lowers_activations_under_1f1b(name, microbatches):
    """Fewer layers on rank 0, and as many more microbatches."""
    model, cluster = sl.load_model(name), replace(NODE, nodes=8)
    held = {}
    for pp in (1, 4, 8):
        plan = sl.Plan(dp=8 // pp, tp=8, pp=pp, microbatches=microbatches)
        step = sl.predict(model, plan, replace(cluster, nodes=plan.gpus // 8))
        held[pp] = step.memory_bytes["activations"]
    assert held[4] == pytest.approx(held[1], rel=0.15) and held[8] == pytest.approx(
        held[1], rel=0.15
    )


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b", "llama-3-8b"])
@pytest.mark.parametrize("tokens", [1024, 2048])
def test_a_pool_saves_requests_to_the_device_not_memory_and_fragments_with_growing_lengths(
    name, tokens
):
    model, growing = sl.load_model(name), [tokens, 2 * tokens, 3 * tokens, 4 * tokens]
    same = pool_steps(model, [tokens] * 3)
    assert same[0].requests == same[2].requests > 300
    assert same[1].device_calls <= 1 and same[2].device_calls == 0
    pools = {
        "same": same[-1],
        "growing": pool_steps(model, growing)[-1],
        "longest first": pool_steps(model, [*reversed(growing)])[-1],
        "expandable": pool_steps(model, growing, expandable=True)[-1],
    }
    wasted = {kind: step.reserved_bytes / step.allocated_bytes for kind, step in pools.items()}
    assert all(ratio >= 1 for ratio in wasted.values())
    assert wasted["growing"] > 1.15
    assert wasted["longest first"] < 1.1 and wasted["expandable"] < 1.02


def test_the_steps_that_a_follow_up_of_w05_names_are_the_simulated_ones():
    model, steps = sl.load_model("llama-7b"), {}
    for size in (1, 4):
        for zero in (1, 3):
            plan = sl.Plan(dp=64, zero=zero, microbatch_size=size)
            steps[size, zero] = sl.predict(model, plan, replace(NODE, nodes=8)).step_s * 1e3
    for tongue, to in (("en", "and"), ("zh", "和")):
        said = word("w05.follow_ups.1.answer", tongue=tongue)
        for size in (1, 4):
            assert f"{steps[size, 1]:.0f} {to} {steps[size, 3]:.0f} ms" in said
