"""A step on nodes of two kinds: the slower sets the pace, wherever its GPUs are."""

import pytest

import simlab as sl
from simlab.lowering.kernels import kernel_names

MODEL = sl.load_model("llama-3-8b")
H100, A100 = sl.load_cluster("dgx-h100"), sl.load_cluster("dgx-a100")
MIXED, TURNED = sl.Cluster.mixed(H100, A100), sl.Cluster.mixed(A100, H100)
PIPELINE = {"dp": 2, "tp": 4, "pp": 2, "microbatches": 8, "sequence_parallel": True}


def forwards(plan, cluster):
    return [stage.forward.compute for stage in sl.predict(MODEL, plan, cluster).stages]


def test_each_stage_is_computed_at_the_pace_of_the_node_it_is_on():
    fast, slow = forwards(sl.Plan(**PIPELINE), MIXED)
    assert slow > 2 * fast
    assert forwards(sl.Plan(**PIPELINE), TURNED)[0] > 2 * forwards(sl.Plan(**PIPELINE), TURNED)[1]


def test_stages_that_are_spread_over_both_kinds_go_at_the_slower_ones_pace():
    """With pp fastest every stage has GPUs of both nodes."""
    spread = forwards(sl.Plan(**PIPELINE, order="pp-tp-cp-dp"), MIXED)
    assert spread[0] == pytest.approx(forwards(sl.Plan(**PIPELINE), TURNED)[0])
    assert spread[1] == pytest.approx(forwards(sl.Plan(**PIPELINE), MIXED)[1])


def test_the_optimizer_waits_for_the_slower_kind_wherever_it_is_listed():
    steps = [
        sl.predict(MODEL, sl.Plan(**PIPELINE), cluster).optimizer_s for cluster in (MIXED, TURNED)
    ]
    # the last stage's head is larger than the first one's embedding
    assert steps[0] == pytest.approx(steps[1], rel=0.05)


@pytest.mark.parametrize("link", ["intra", "inter"])
def test_a_faster_link_is_faster_in_nodes_of_both_kinds(link):
    saved = [
        sl.faster_link(
            sl.predict(MODEL, sl.Plan(dp=4, tp=4, sequence_parallel=True), c), link, 4
        ).saved
        for c in (MIXED, TURNED)
    ]
    assert saved[0] == pytest.approx(saved[1]) and saved[0] > 0


def test_faster_kernels_are_faster_on_gpus_of_both_kinds():
    plan = sl.Plan(**PIPELINE)
    twice = dict.fromkeys(kernel_names(MODEL, plan), 2)
    faster = sl.predict(MODEL, plan, MIXED, faster=twice).stages
    assert [stage.forward.compute for stage in faster] == pytest.approx(
        [seconds / 2 for seconds in forwards(plan, MIXED)]
    )


def test_another_gpu_is_in_all_nodes():
    changed = sl.other_gpu(
        sl.predict(MODEL, sl.Plan(**PIPELINE), MIXED), "b200-sxm"
    ).prediction.cluster
    assert {part.gpu.name for part in changed.parts} == {"b200-sxm"}


@pytest.mark.parametrize("told", [sl.layer_trace, sl.offload_step])
def test_what_is_not_told_for_mixed_clusters_says_so(told):
    plan = sl.Plan(dp=16) if told is sl.offload_step else sl.Plan(**PIPELINE)
    with pytest.raises(
        sl.InputError,
        match="on dgx-h100\\+dgx-a100: give a cluster of one kind of node, or take `predict`",
    ):
        told(MODEL, plan, MIXED)
