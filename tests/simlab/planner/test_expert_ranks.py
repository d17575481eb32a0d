"""Expert-parallel ranks in a search: which are tried, that bounds stay below what they bound, and that
the best is found and explained."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simlab import InputError, Model, Plan, load_cluster, load_model, predict
from simlab.planner import (
    Rejection,
    Space,
    explanation,
    judged,
    memory_bound_bytes,
    reserve_bytes,
    search,
    time_bound_s,
)
from simlab.planner.explanation_text import explanation_text
from simlab.planner.prune import Bounds
from simlab.planner.search import MEMORY
from simlab.planner.space import MODEL

MIXED = Model(
    name="mixed", layers=8, hidden=1024, heads=16, kv_heads=8, ffn=4096, gated_mlp=True, vocab=32000,
    seq=2048, positions=0, bias=False, tied_head=False, experts=8, experts_per_token=2,
)  # fmt: skip
SHARED = replace(
    MIXED, name="shared", experts=12, experts_per_token=3, expert_ffn=1024, shared_experts=1, dense_layers=3
)  # fmt: skip
DENSE = replace(MIXED, name="small", experts=0, experts_per_token=0)
NODES = load_cluster("dgx-h100", nodes=2)
NODE = load_cluster("dgx-h100", nodes=1)
SCHEDULES = ["1f1b", "interleaved-1f1b", "gpipe", "zb-h1", "zb-v", "looped-bfs"]


def with_memory(cluster, size_bytes):
    return replace(cluster, gpu=replace(cluster.gpu, memory_bytes=size_bytes))


def slow(cluster, times):
    inter = cluster.inter
    bandwidth = inter.bandwidth_bytes_per_s / times
    return replace(cluster, inter=replace(inter, bandwidth_bytes_per_s=bandwidth))


def plans_of(space):
    return [plan for plan in space.candidates() if isinstance(plan, Plan)]


@pytest.mark.parametrize(("model", "nodes", "tried"), [
    ("mixtral-8x7b", 1, {1, 2, 4, 8}), ("mixtral-8x7b", 3, {1, 2, 4, 8}), ("deepseek-v2", 3, {1, 2, 4, 8}),
    ("deepseek-v2", 5, {1, 2, 4, 5, 8, 10, 20, 40}), ("qwen3-30b-a3b", 4, {1, 2, 4, 8, 16, 32}), ("llama-3-8b", 1, {1}),
])  # fmt: skip
def test_what_divides_the_experts_and_the_replicas_is_tried(model, nodes, tried):
    cluster = load_cluster("dgx-h100", nodes=nodes)
    fixed = {"tp": 1, "cp": 1, "pp": 1, "zero": 1, "recompute": "none", "microbatch_size": 1}
    space = Space(model=load_model(model), cluster=cluster, global_batch=480, fixed=fixed)
    found = [(plan.ep, plan.ep_overlap) for plan in space.candidates()]
    assert found == [
        (ep, beside) for ep in sorted(tried) for beside in (False, True)[: 1 + (ep > 1)]
    ]


def test_experts_that_are_not_cut_are_tried_over_tensor_parallel_ranks_too():
    fixed = {"tp": 2, "cp": 1, "pp": 1, "zero": 1, "recompute": "none", "microbatch_size": 1}
    space = Space(model=MIXED, cluster=NODE, global_batch=16, fixed=fixed | {"ep_overlap": False})
    assert [(plan.ep, plan.etp) for plan in plans_of(space)] == [
        *((ep, 2) for ep in (1, 2, 4)), *((ep, 1) for ep in (2, 4, 8)),
    ]  # fmt: skip
    whole = replace(space, fixed=space.fixed | {"etp": 1})
    assert {(plan.ep, plan.etp) for plan in plans_of(whole)} == {(2, 1), (4, 1), (8, 1)}


def test_all_to_alls_beside_another_microbatch_are_tried_where_they_can_be():
    fixed = {"ep": 2, "tp": 1, "cp": 1, "pp": 2, "microbatch_size": 1}
    space = Space(model=MIXED, cluster=NODE, global_batch=16, fixed=fixed)
    beside = {p.ep_overlap and (p.schedule, p.zero, p.recompute) for p in plans_of(space)} - {False}
    assert beside == {
        ("interleaved-1f1b", zero, kind) for zero in (0, 1, 2) for kind in ("none", "outputs")
    }
    never = replace(space, fixed=fixed | {"ep_overlap": False})
    assert not any(plan.ep_overlap for plan in plans_of(never))
    asked = replace(space, fixed=fixed | {"ep_overlap": True})
    assert any(plan.ep_overlap for plan in plans_of(asked))


def test_context_parallel_ranks_share_experts_too():
    space = Space(model=MIXED, cluster=NODE, global_batch=8, fixed={"dp": 2, "cp": 4, "zero": 1})
    assert {plan.ep for plan in plans_of(space)} == {1, 2, 4, 8}


def test_a_given_number_of_ranks_is_kept():
    found = search(Space(model=MIXED, cluster=NODE, global_batch=16, fixed={"ep": 4}), layered=0)
    assert {ranked.plan.ep for ranked in found.plans} == {4}
    assert {its["ep"] for its in found.to_dict()["plans"]} == {4}
    rejected = [r for r in found.rejections if r.reason == MODEL]
    assert any("ep = 4 does not divide dp x cp = 2" in r.detail for r in rejected)


def test_what_cannot_be_beside_other_options_is_rejected_with_the_reason():
    space = Space(model=MIXED, cluster=NODE, global_batch=16, fixed={"offload": "optimizer"})
    assert {plan.ep for plan in plans_of(space)} == {1}
    rejections = [r for r in space.candidates() if isinstance(r, Rejection)]
    assert any("ep = 8 with offload = 'optimizer'" in r.detail for r in rejections)


def test_degrees_that_cannot_be_are_one_rejection_whatever_the_experts():
    space = Space(model=MIXED, cluster=NODE, global_batch=3)
    rejections = [each for each in space.candidates() if isinstance(each, Rejection)]
    degrees = [tuple(r.values[name] for name in ("dp", "tp", "pp", "cp")) for r in rejections]
    assert len(degrees) == len({*degrees}) > 0


def test_each_split_has_a_communicator_those_of_experts_too():
    both = {"dp": 8, "tp": 2}
    assert reserve_bytes(Plan(**both, ep=8)) - reserve_bytes(Plan(**both)) == 688e6
    assert reserve_bytes(Plan(**both, ep=4)) - reserve_bytes(Plan(**both)) == 688e6 + 544e6


@st.composite
def plans(draw):
    model = draw(st.sampled_from([DENSE, MIXED, SHARED]))
    tp, pp, cp = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    assume(tp * pp * cp <= 16)
    ep = draw(st.sampled_from([1, 2, 4, 8])) if model.experts else 1
    load = {"expert_load": draw(st.sampled_from([1.0, 1.5]))} if ep > 1 else {}
    try:
        plan = Plan(
            dp=16 // (tp * pp * cp), tp=tp, pp=pp, cp=cp, ep=ep, **load,
            schedule=draw(st.sampled_from(SCHEDULES)) if pp > 1 else "1f1b",
            zero=draw(st.sampled_from([0, 1, 2, 3])),
            recompute=draw(st.sampled_from(["none", "full", "per-op", "outputs"])),
            etp=draw(st.sampled_from([None, 1])), ep_overlap=ep > 1 and draw(st.booleans()),
            dispatcher=draw(st.sampled_from(["all-to-all", "once-a-node"])) if ep > 1 else "all-to-all",
            library=draw(st.sampled_from(["megatron", "torch"])),
            microbatch_size=draw(st.sampled_from([1, 2])),
            microbatches=pp * draw(st.integers(1, 3)),
            sequence_parallel=tp > 1,
            order=draw(st.sampled_from(["tp-cp-dp-pp", "tp-pp-cp-dp"])),
        )  # fmt: skip
        return model, plan.check(model, 16)
    except InputError:
        assume(False)


@given(plans(), st.sampled_from([NODES, slow(NODES, 16)]))
def test_no_plan_is_faster_or_smaller_than_its_bounds(drawn, cluster):
    model, plan = drawn
    prediction = predict(model, plan, cluster)
    assert memory_bound_bytes(model, plan) <= sum(prediction.memory_bytes.values()) * (1 + 1e-9)
    assert time_bound_s(model, plan, cluster) <= prediction.step_s * (1 + 1e-9)


@pytest.mark.parametrize(("model", "fixed"), [
    (SHARED, {"order": "pp-tp-cp-dp", "microbatch_size": 1, "zero": 1}),
    (MIXED, {"library": "torch", "zero": 1, "schedule": "1f1b"}),
    (SHARED, {"expert_load": 1.5, "zero": 1, "schedule": "1f1b"}),
    (MIXED, {"dispatcher": "once-a-node", "zero": 1, "recompute": "outputs"}),
])  # fmt: skip
def test_what_plans_share_is_the_bound_of_each(model, fixed):
    """A search computes bounds of many plans at once, in any order."""
    space = Space(model=model, cluster=NODES, global_batch=16, fixed=fixed)
    bounds = Bounds(model, NODES)
    together = [(bounds.memory_bytes(plan), bounds.time_s(plan), plan) for plan in plans_of(space)]
    for held, least_s, plan in together[::-7]:
        assert held == memory_bound_bytes(model, plan), plan
        assert least_s == time_bound_s(model, plan, NODES), plan


def test_a_bound_counts_the_all_to_alls():
    plan, cluster = Plan(dp=16, ep=16, zero=1, microbatches=4), slow(NODES, 64)
    model = replace(SHARED, experts=16)
    prediction = predict(model, plan, cluster)
    assert prediction.waterfall_s.ep > 0.5 * prediction.step_s
    assert time_bound_s(model, plan, cluster) > 0.5 * prediction.step_s


@pytest.mark.parametrize(("model", "cluster", "fixed"), [
    (MIXED, with_memory(NODE, 12e9), {"cp": 1}),
    (SHARED, with_memory(slow(replace(NODES, gpus_per_node=4), 4), 7.5e9), {"tp": 1, "cp": 1}),
    (MIXED, slow(replace(NODES, gpus_per_node=4), 8), {"tp": 1, "pp": 1}),
])  # fmt: skip
def test_the_best_are_those_that_predicting_every_plan_finds(model, cluster, fixed):
    space = Space(model=model, cluster=cluster, global_batch=16, fixed=fixed)
    found = search(space, kept=6, layered=0)
    tried = []
    for plan in plans_of(space):
        prediction = predict(model, plan, cluster)
        if judged(plan, cluster, prediction.memory_bytes).fits:
            tried.append((prediction.step_s, plan.ep))
    best = sorted(tried)[:6]
    assert [ranked.step_s for ranked in found.plans] == pytest.approx(
        [s for s, _ in best], rel=1e-4
    )
    assert found.predictions < len(tried) and len({ep for _, ep in tried}) > 2
    assert sum(found.rejected.values()) + len(found.plans) == found.evaluated


def test_where_all_experts_fit_on_no_gpu_ranks_share_them():
    model = load_model("deepseek-v3")
    cluster = load_cluster("dgx-h100", nodes=128)
    fixed = {"microbatch_size": 1, "recompute": "full", "pp": 16, "tp": 1}
    space = Space(model=model, cluster=cluster, global_batch=4096, fixed=fixed)
    found = search(space, kept=3, layered=0)
    assert found.plans and all(ranked.plan.ep > 1 for ranked in found.plans)
    alone = search(replace(space, fixed=fixed | {"ep": 1}), kept=1, layered=0)
    assert not alone.plans and alone.rejected[MEMORY] > 0
    assert all(r.missing_bytes > 0 for r in alone.rejections if r.reason == MEMORY)


def test_the_difference_to_a_rival_names_the_all_to_alls():
    """Ranks that share no experts send no tokens: the best plan's all-to-alls are what they save."""
    fixed = {"tp": 1, "cp": 1, "pp": 1, "recompute": "none"}
    space = Space(model=MIXED, cluster=NODE, global_batch=32, fixed=fixed)
    why = explanation(search(space, layered=0))
    (name, rival), *_ = [each for each in why.families.items() if "ep" not in each[0]]
    assert "ep" in why.best.family and name == "dp only"
    assert why.waterfall_s.ep > 0
    assert rival.difference_s["ep"] == pytest.approx(-why.waterfall_s.ep)
    assert "ep all-to-alls -" in explanation_text(why)
