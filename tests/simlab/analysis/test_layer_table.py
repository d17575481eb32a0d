"""The table of a layer, whose columns add up to what the other rooms say of it."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.parameters import stage_parameters
from simlab.lowering.kernels import Communication, layer_kernels
from simlab.memory.activations import layer_activations_bytes

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
