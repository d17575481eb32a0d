"""What does not fit, and where: rank by rank, on the GPUs and on their hosts."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.parameters import stage_parameters
from simlab.memory.schemes import Use
from simlab.memory.stage import Shape, StageWalk
from simlab.memory.step import scheme_of

LLAMA = sl.load_model("llama-3-8b")


@pytest.mark.parametrize(
    "plan",
    [
        {"pp": 4, "dp": 2, "schedule": "interleaved-1f1b", "microbatches": 8, "microbatch_size": 2, "zero": 1},
        {"pp": 8, "microbatches": 8, "microbatch_size": 4}, {"pp": 2, "dp": 4, "microbatches": 4, "microbatch_size": 2},
    ],
)  # fmt: skip
def test_breaches_name_the_ranks_that_hold_more_than_a_gpu_has(plan):
    found = sl.predict(LLAMA, sl.Plan(**plan), sl.load_cluster("dgx-h100"))
    over = [
        rank
        for rank, held in enumerate(found.held)
        if sum(held.values()) > found.cluster.gpu_memory_bytes
    ]
    assert [breach.rank for breach in found.breaches] == over


def test_states_that_a_host_cannot_hold_do_not_fit():
    """405.9 billion parameters' 14 bytes on two hosts of 2 TiB: 2.8 TB each."""
    plan = sl.Plan(
        dp=16, zero=3, offload="parameters", precision="fp16", recompute="full", seq=1024
    )
    found = sl.predict(sl.load_model("llama-3-405b"), plan, sl.load_cluster("dgx-h100", nodes=2))
    # gradients of 2 bytes, too
    assert found.host_bytes == pytest.approx(16 * found.model.parameters / 2, rel=0.01)
    assert sum(found.memory_bytes.values()) < found.cluster.gpu_memory_bytes and not found.fits
    with pytest.raises(
        sl.InputError, match=r"of parameters on a node's host, which has 2048\.0 GiB"
    ):
        sl.predict(found.model, plan, found.cluster, strict=True)


def test_without_offload_nothing_is_on_the_host():
    assert sl.predict(LLAMA, sl.Plan(dp=8), sl.load_cluster("dgx-h100")).host_bytes == 0


def whole_units(plan, layers=8, **ends):
    """(bytes of gathered parameters, of whole gradients) at most during a backward of a stage."""
    shape = Shape(("layer",) * layers, ends.get("first", False), ends.get("last", False))
    walk = StageWalk(LLAMA, plan, shape, scheme_of(LLAMA, plan, shape))
    largest = walk.op(Use("B")).largest
    return largest["unsharded_parameters"], largest["unsharded_gradients"]


def test_zero_3_has_room_for_its_largest_neighbouring_units():
    """Of Llama-3 8B the head, 525 million parameters, beside a layer of 218 million, gathered in 2
    bytes and reduced in 4."""
    plan = sl.Plan(dp=16, zero=3, seq=512)
    layer, head = stage_parameters(LLAMA, plan, 1), stage_parameters(LLAMA, plan, 0, last=True)
    both = layer + head
    assert whole_units(plan, 32, first=True, last=True) == (2 * both, 4 * both)
    assert whole_units(replace(plan, prefetch=0), 32, last=True) == (2 * head, 4 * head)
    assert whole_units(plan) == (2 * 2 * layer, 4 * 2 * layer)
    assert whole_units(replace(plan, prefetch=2)) == (2 * 3 * layer, 4 * 2 * layer)
    assert whole_units(replace(plan, zero=2)) == (0, 4 * 2 * layer)
    assert whole_units(replace(plan, zero=2, dp_overlap=False)) == (0, 4 * layer)


def test_selective_recomputation_does_no_more_where_scores_are_never_stored():
    found = [
        sl.predict(LLAMA, sl.Plan(dp=8, recompute=how), sl.load_cluster("dgx-h100"))
        for how in ("none", "selective")
    ]
    assert found[0].hfu == found[1].hfu == found[0].mfu
    unfused = sl.predict(
        LLAMA,
        sl.Plan(dp=8, recompute="selective", attention="unfused"),
        sl.load_cluster("dgx-h100"),
    )
    assert unfused.hfu > unfused.mfu


def test_a_kernel_that_is_unknown_cannot_be_faster():
    with pytest.raises(sl.InputError, match=r"kernel 'atention'.*attention"):
        sl.predict(LLAMA, sl.Plan(dp=8), sl.load_cluster("dgx-h100"), faster={"atention": 2})


@pytest.mark.parametrize(
    "plan",
    [
        {"zero": 2, "hybrid": 8},
        {"zero": 3, "hybrid": 8},
        {"zero": 3},
        {"zero": 2},
        {"zero": 1, "hybrid": 8},
    ],
)
def test_sharding_takes_about_as_long_op_by_op_as_layer_by_layer(plan):
    """Sums between replicas run beside the scattering within, and what runs beside computing slows
    it, in both."""
    cluster = sl.load_cluster("dgx-h100", nodes=4)
    plan = sl.Plan(dp=32, seq=2048, **plan)
    found = sl.predict(LLAMA, plan, cluster)
    trace = sl.layer_trace(LLAMA, plan, cluster)
    layers_s = max(span.end_s for span in trace.spans) - trace.start_s
    assert found.step_s == pytest.approx(layers_s, rel=0.02)
