"""What a plan's data-parallel choices do to a step: buckets, prefetch, which ranks are
neighbours."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_oracles import nothing_is_slowed

import simlab as sl
from simlab.cost.groups import Groups
from simlab.cost.roofline import kernel_s
from simlab.cost.stage_times import StageCost
from simlab.layer.parameters import unit_parameters

MODEL = replace(sl.load_model("llama-2-7b"), layers=4)
A100 = sl.load_cluster("dgx-a100", nodes=4)
MB = 2**20


def cost(**fields):
    return StageCost(MODEL, sl.Plan(dp=32, **fields), A100)


@pytest.mark.parametrize("zero", [0, 1])
def test_each_bucket_pays_its_own_latency(zero):
    """All gradients after the backward, in pieces of 16 MiB: all but the last one are of that size."""
    its, size = cost(zero=zero), 16 * MB
    plan = sl.Plan(dp=32, zero=zero, dp_overlap=False, bucket_bytes=size)
    kind = "all_reduce" if zero == 0 else "reduce_scatter"
    found = sl.predict(MODEL, plan, A100)
    whole, rest = divmod(4 * MODEL.parameters, size)
    reduced_s = whole * its.collective_s(kind, size, its.groups.dp)
    last_s = its.collective_s(kind, rest, its.groups.dp)
    assert found.after_s == pytest.approx(reduced_s + last_s, rel=1e-3)
    sizes = [s.bytes for s in sl.layer_trace(MODEL, plan, A100).spans if "gradients" in s.op]
    assert sorted(sizes)[1:] == [size] * whole and sizes[-1] == pytest.approx(rest, abs=128)


@pytest.mark.parametrize("zero", [2, 3])
def test_what_is_reduced_in_every_backward_has_no_buckets(zero):
    with pytest.raises(
        sl.InputError, match=f"bucket_bytes = 1024 has no effect with zero = {zero}: leave it out"
    ):
        sl.Plan(dp=4, zero=zero, bucket_bytes=1024)


@pytest.mark.parametrize("zero", [0, 1])
def test_too_small_buckets_and_too_large_ones_both_expose_more(zero):
    exposed = [
        sl.predict(MODEL, sl.Plan(dp=32, zero=zero, bucket_bytes=size), A100).exposed_s["dp"]
        for size in (MB, 50 * MB, 10**10)
    ]
    assert exposed[1] < exposed[0] and exposed[1] < exposed[2]


def test_groups_follow_the_order_of_ranks():
    plan = sl.Plan(dp=4, tp=8)
    groups = Groups.of(plan, A100)
    assert (groups.tp, groups.dp) == (sl.GroupShape(8, 8), sl.GroupShape(4, 1))
    groups = Groups.of(replace(plan, order="cp-dp-tp-pp"), A100)
    assert (groups.tp, groups.dp) == (sl.GroupShape(8, 2), sl.GroupShape(4, 4))


def spans(prefetch, stream, collapsed=True):
    trace = sl.layer_trace(
        MODEL, sl.Plan(dp=32, zero=3, prefetch=prefetch), A100, collapsed=collapsed
    )
    return {span.op: span for span in trace.spans if span.stream == stream and span.rank == 0}


@pytest.mark.parametrize("collapsed", [True, False])
def test_prefetched_parameters_are_gathered_while_the_layer_before_computes(collapsed):
    gathers, computes = spans(1, "dp", collapsed), spans(1, "compute", collapsed)
    for layer in (1, 2, 3):
        gather, before = gathers[f"0F0 layer {layer} gather"], computes[f"0F0 layer {layer - 1}"]
        assert (
            gather.start_s < before.end_s
            and gather.end_s <= computes[f"0F0 layer {layer}"].start_s + 1e-12
        )
        assert computes[f"0F0 layer {layer}"].start_s == pytest.approx(before.end_s), (
            "what is gathered in time exposes nothing"
        )


def test_without_prefetch_every_layer_waits_for_its_gathering():
    gathers, computes = spans(0, "dp"), spans(0, "compute")
    for layer in (1, 2, 3):
        assert (
            gathers[f"0F0 layer {layer} gather"].start_s >= computes[f"0F0 layer {layer - 1}"].end_s
        )
        assert computes[f"0F0 layer {layer}"].start_s == pytest.approx(
            gathers[f"0F0 layer {layer} gather"].end_s
        )


@pytest.mark.parametrize("zero", [0, 1])
def test_what_hides_gradients_and_parameters_takes_longer_meanwhile(zero):
    """A layer of the last backward is slowed by the reduction of its neighbour's gradients: it goes on
    at the speed that its kernels have on the multiprocessors that the reduction leaves."""
    plan, its = (
        sl.Plan(dp=32, zero=zero, microbatch_size=8, microbatches=2),
        cost(zero=zero, microbatch_size=8, microbatches=2),
    )
    layers = {
        span.op: span.end_s - span.start_s
        for span in sl.layer_trace(MODEL, plan, A100).spans
        if span.stream == "compute"
    }
    kind = "reduce_scatter" if zero else "all_reduce"
    size = 4 * unit_parameters(its.model, its.plan, "layer")
    kernels = [*its.kernels["layer"].input_grad, *its.kernels["layer"].weight_grad]
    moved = its.collective_bytes_per_s
    alone_s, beside_s = (
        sum(kernel_s(kernel, A100.gpu, beside_bytes_per_s=beside) for kernel in kernels)
        for beside in (None, moved)
    )
    assert layers["0B0 layer 1"] == pytest.approx(alone_s) and beside_s > 1.2 * alone_s
    slowed_s = (1 - alone_s / beside_s) * its.collective_s(kind, size, its.groups.dp)
    assert layers["0B1 layer 1"] == pytest.approx(layers["0B0 layer 1"] + slowed_s)


def test_zero_2_scatters_after_each_backward_and_zero_1_after_the_last():
    scatters = [
        sl.layer_trace(MODEL, sl.Plan(dp=32, zero=zero, microbatches=3), A100) for zero in (1, 2)
    ]
    once, each = (
        [span.op for span in trace.spans if span.op.endswith("gradients")] for trace in scatters
    )
    assert all(op.startswith("0B2 ") for op in once) and len(each) == 3 * len(once) == 3 * (4 + 2)
    steps = [
        sl.predict(MODEL, sl.Plan(dp=32, zero=zero, microbatches=3, dp_overlap=False), A100)
        for zero in (1, 2)
    ]
    its = cost(zero=1)
    units_s = sum(
        its.collective_s(
            "reduce_scatter", 4 * unit_parameters(MODEL, its.plan, unit), its.groups.dp
        )
        for unit in [*["layer"] * 4, "embedding", "head"]
    )
    assert steps[1].step_s - steps[0].step_s == pytest.approx(2 * units_s, rel=1e-6)


def test_zero_3_gathers_embedding_and_head_for_forward_and_backward_as_it_does_layers():
    trace = sl.layer_trace(MODEL, sl.Plan(dp=32, zero=3, microbatches=2), A100)
    names = [span.op.split(" ", 1) for span in trace.spans if span.stream == "dp"]
    for op in ("0F0", "0F1", "0B0", "0B1"):
        units = ["embedding", *(f"layer {layer}" for layer in range(4)), "head"][
            :: 1 if op[1] == "F" else -1
        ]
        assert [name for its, name in names if its == op and name.endswith("gather")] == [
            f"{unit} gather" for unit in units
        ]
        assert [name for its, name in names if its == op and name.endswith("gradients")] == [
            f"{u} gradients" for u in units if op[1] == "B"
        ]


@given(st.floats(0.5, 64))
@nothing_is_slowed()
def test_more_prefetch_is_never_slower(narrower):
    """But for the kernels that it slows, of which some lose more than others: they lose nothing here."""
    slow = replace(
        A100,
        inter=replace(
            A100.inter, bandwidth_bytes_per_s=A100.inter.bandwidth_bytes_per_s / narrower
        ),
    )
    steps = [
        sl.layer_trace(MODEL, sl.Plan(dp=32, zero=3, prefetch=k), slow).step_s for k in (0, 1, 2, 3)
    ]
    assert all(late <= early * (1 + 1e-9) for early, late in pairwise(steps))
