"""The table of a layer, whose columns add up to what the other rooms say of it."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.parameters import stage_parameters
from simlab.lowering.kernels import Communication, layer_kernels
from simlab.memory.activations import layer_activations_bytes, statistics_bytes
from simlab.memory.step import StepWalk

PLANS = {
    "one GPU": sl.Plan(),
    "tensor": sl.Plan(tp=4, sequence_parallel=True, library="torch"),
    "stored scores": sl.Plan(tp=2, attention="unfused", recompute="selective"),
    "again": sl.Plan(tp=2, recompute="full", precision="fp8"),
    "outputs": sl.Plan(tp=2, recompute="outputs"),
    "experts": sl.Plan(dp=4, tp=2, ep=8, etp=1, sequence_parallel=True),
}


@pytest.mark.parametrize("name", ["gpt2-large", "llama-3-8b", "qwen3-30b-a3b", "deepseek-v3"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_columns_add_up(name, plan):
    model = sl.load_model(name)
    if plan.ep > 1 and not model.experts:
        plan = replace(plan, ep=1, etp=None)
    rows = sl.layer_table(model, plan).rows
    assert sum(its.parameters for its in rows) == stage_parameters(model, plan, 1)
    kept = layer_activations_bytes(model, plan, plan.recompute)
    assert sum(its.kept_bytes for its in rows) == pytest.approx(kept, rel=1e-12)
    forward = layer_kernels(model, plan).forward
    assert sum(its.flops for its in rows) == sum(its.flops for its in forward)
    sent = [kernel for its in rows for kernel in its.sent]
    assert sent == [kernel for kernel in forward if isinstance(kernel, Communication)]


def test_it_prints_a_line_for_each_operation_and_the_sums():
    table = str(sl.layer_table(sl.load_model("llama-3-70b"), sl.Plan(tp=16, seq=1024)))
    lines = table.splitlines()
    assert lines[2].split()[:8] == ["qkv", "(1024", "x", "8192)", "x", "(8192", "x", "768)"]
    assert lines[-1].split()[:2] == ["sum", f"{54_525_952 + 2 * 8192:,}"]
    assert "output reduce 16.0 MiB" in table


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt2-large"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_ranks_share_the_floating_point_operations_of_the_layer(name, tp):
    model = sl.load_model(name)
    table = sl.layer_table(model, sl.Plan(tp=tp, microbatch_size=3))
    per_token = sum(model.layer_flops().values())
    assert tp * table.flops == pytest.approx(3 * model.seq * per_token, rel=1e-12)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_layer_more_is_as_much_more_in_the_walk_over_a_step(plan):
    model = sl.load_model("qwen3-30b-a3b" if plan.ep > 1 else "llama-3-8b")
    held = []
    for layers in (2, 3):
        program = sl.generate("gpipe", 1, 1)
        walk = StepWalk(replace(model, layers=layers), plan, program, [layers])
        held.append(walk.activations()[0][0])
    kept = sl.layer_table(model, plan).kept_bytes
    norms = 0 if plan.recompute in ("full", "outputs") else 2 * statistics_bytes(model, plan)
    assert held[1] - held[0] == pytest.approx(kept + norms, rel=1e-9)


def test_communication_stands_before_what_reads_it_in_both_passes():
    """A pair of all-to-alls around the experts (Lepikhin et al. 2020), whose backward is the same
    pair; a gather before, and a scatter behind, what tensor parallelism cuts (Korthikanti et al.
    2022, figure 5), whose backward gathers where the forward scatters and the other way round."""
    plan = sl.Plan(dp=8, tp=2, ep=8, etp=1, sequence_parallel=True)
    rows = sl.layer_table(sl.load_model("qwen3-30b-a3b"), plan).rows
    found = {
        its.operation: ([each.kind for each in its.sent], [each.kind for each in its.sent_back])
        for its in rows
        if its.sent or its.sent_back
    }
    assert found == {
        "qkv": (["all_gather"], ["all_gather", "reduce_scatter"]),
        "residual 1": (["reduce_scatter"], ["all_gather"]),
        "up": (["all_to_all"], ["all_to_all"]),
        "residual 2": (["all_to_all"], ["all_to_all"]),
    }


def test_what_a_rank_has_of_each_tensor():
    """Llama 3 8B: 32 heads and 8 key and value heads of 128 numbers, an MLP of 14,336 with a gate."""
    rows = sl.layer_table(sl.load_model("llama-3-8b"), sl.Plan(tp=16, sequence_parallel=True)).rows
    held = {its.operation: (its.held.cut.value, *its.held[1:]) for its in rows}
    assert held["norm 1"] == ("tokens", 4096, 4096, 1 / 16)
    assert held["qkv"] == ("heads", (2 + 1 + 1) * 128, (32 + 8 + 8) * 128, 1)  # a whole key head
    assert held["output"] == ("heads", 2 * 128, 32 * 128, 1)
    assert held["up"] == ("columns", 2 * 14336 / 16, 2 * 14336, 1)
    one = sl.layer_table(sl.load_model("llama-3-8b"), sl.Plan()).rows
    assert {its.held.cut.value for its in one} == {"whole"}
