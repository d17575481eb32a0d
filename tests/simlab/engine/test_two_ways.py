"""A plan whose stages are each on two ranks (DualPipe): who sums gradients, and that all ways to compute its
step and its memory agree."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab.cost.stage_times import StageCost
from simlab.engine.play import check_agreement
from simlab.lowering.build import program_of
from simlab.lowering.instructions import rank_instructions
from simlab.lowering.pieces import BEGIN
from simlab.memory.step import StepWalk
from simlab.planner import Space, search
from simlab.planner.rank import predicted
from simlab.planner.space import MODEL as MODEL_CUT
from simlab.planner.space import SCHEDULE
from simlab.schedules import generate
from simlab.training.fit import PAIR_BYTES, reserve_bytes

MODEL = sl.Model(
    name="m", layers=8, hidden=1024, heads=8, kv_heads=8, ffn=2048, gated_mlp=True, bias=False,
    vocab=4096, seq=1024, experts=8, experts_per_token=2, expert_ffn=1024, tied_head=True,
)  # fmt: skip
DENSE = replace(MODEL, experts=0, experts_per_token=0, expert_ffn=0)
NODE = sl.load_cluster("dgx-h100")
TWO_WAYS = {"schedule": "dualpipe", "microbatches": 8}


# groups
# ------------------------------------------------------------------------------------------------


@given(
    dp=st.integers(1, 4), tp=st.integers(1, 2), half=st.integers(1, 3), order=st.permutations(["tp", "cp", "dp", "pp"])
)  # fmt: skip
def test_ranks_that_hold_the_same_are_those_at_the_same_distance_from_either_end(
    dp, tp, half, order
):
    plan = sl.Plan(
        dp=dp, tp=tp, pp=2 * half, microbatches=4 * half, schedule="dualpipe", order="-".join(order)
    )
    program, places = program_of(plan), plan.layout.all_coordinates()
    for rank, place in enumerate(places):
        alike = {
            other
            for other, its in enumerate(places)
            if its.tp == place.tp and program.stages_of(its.pp) == program.stages_of(place.pp)
        }
        assert set(plan.layout.group("dp", rank)) == alike and len(alike) == plan.holders == 2 * dp
    groups = plan.layout.groups("dp")
    assert sorted(rank for group in groups for rank in group) == [*range(plan.gpus)]
    # experts are shared at one place of the pipeline, and held alike at both
    if dp % 2 == 0:
        shared = replace(plan, ep=2).layout
        for rank, place in enumerate(places):
            assert {places[other].pp for other in shared.group("ep", rank)} == {place.pp}
            assert len(shared.group("edp", rank)) == dp


@pytest.mark.parametrize(("fields", "says"), [
    ({"pp": 3}, "pp = 3 with schedule = 'dualpipe', which begins at both ends: give an even pp, such as 4"),
    ({"zero": 2}, "zero = 2 with schedule = 'dualpipe': the two ranks of a stage share .*give zero = 0 or 1"),
    ({"zero": 3}, "zero = 3 with schedule = 'dualpipe'"),
    ({"dp": 4, "zero": 1, "hybrid": 2}, "hybrid = 2 with schedule = 'dualpipe': .*leave one out"),
])  # fmt: skip
def test_what_two_ranks_of_a_stage_cannot_do_is_refused(fields, says):
    with pytest.raises(sl.InputError, match=says):
        sl.Plan(**{"pp": 2, **TWO_WAYS} | fields)


# lists
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [
    {"dp": 1}, {"dp": 2, "zero": 1}, {"dp": 2, "dp_overlap": False}, {"dp": 2, "zero": 1, "bucket_bytes": 2**20},
    {"dp": 4, "ep": 2, "zero": 1}, {"dp": 2, "ep": 2, "ep_overlap": True}, {"dp": 1, "tp": 2, "ep": 2, "etp": 1, "sequence_parallel": True},
])  # fmt: skip
def test_both_ranks_of_a_stage_begin_the_same_and_each_gradient_once(fields):
    plan = sl.Plan(pp=4, **TWO_WAYS, **fields)
    lists = [
        rank_instructions(MODEL, plan, program_of(plan), place.pp)
        for place in plan.layout.all_coordinates()
    ]
    check_agreement(lists, plan)
    for its in lists:
        summed = [
            i.name
            for i in its
            if i.action == BEGIN and i.dimension == "dp" and i.name.endswith("gradients")
        ]
        assert len(summed) == len(set(summed))
        if plan.bucket_bytes is None:  # two stages of two layers, on the outer ranks with both ends
            layers = [name for name in summed if name.startswith("layer")]
            assert len(layers) == 4 and len(summed) - len(layers) in (0, 2)


def test_a_plans_pairs_are_the_schedules():
    plan = sl.Plan(dp=2, ep=2, pp=4, ep_overlap=True, **TWO_WAYS)
    assert program_of(plan).paired == generate("dualpipe", 4, 8).paired
    assert not program_of(replace(plan, ep_overlap=False)).paired


# times
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [
    {"dp": 4}, {"dp": 4, "zero": 1}, {"dp": 4, "zero": 1, "dp_overlap": False}, {"dp": 2, "tp": 2, "sequence_parallel": True, "zero": 1},
    {"dp": 4, "ep": 4, "zero": 1}, {"dp": 4, "bucket_bytes": 10_000_000}, {"dp": 2, "tp": 2, "order": "pp-dp-tp-cp"},
])  # fmt: skip
def test_walked_is_played_by_one_rank_for_many_and_by_all(fields):
    plan = sl.Plan(pp=4, microbatch_size=2, **TWO_WAYS, **fields)
    cluster = replace(NODE, nodes=plan.gpus // 8)
    walked = sl.predict(MODEL, plan, cluster).step_s
    for collapsed in (True, False):
        played = sl.layer_trace(MODEL, plan, cluster, collapsed=collapsed).whole_step_s
        assert played == pytest.approx(walked, rel=1e-9)


def test_with_pairs_too_but_for_latencies():
    """See `test_side_by_side`: the second message of a pair."""
    plan = sl.Plan(dp=2, pp=4, ep=2, ep_overlap=True, **TWO_WAYS | {"microbatches": 16})
    cluster = replace(NODE, gpus_per_node=2, nics_per_node=2, nodes=4)
    walked = sl.predict(MODEL, plan, cluster).step_s
    played = sl.layer_trace(MODEL, plan, cluster).whole_step_s
    latency_s = StageCost(MODEL, plan, cluster).message_s()[0]
    assert -1e-9 <= played - walked <= len(program_of(plan).paired) * latency_s


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe-v"])
def test_a_planner_simulates_all_microbatches(schedule):
    """After 2p and 3p of them the pace of both is not yet that of many."""
    plan = sl.Plan(dp=2, pp=4, schedule=schedule, microbatches=40)
    cluster, model = replace(NODE, nodes=1), replace(DENSE, layers=32)
    assert predicted(model, plan, cluster).step_s == sl.predict(model, plan, cluster).step_s
    first, second, last, all_of_them = (
        sl.predict(model, replace(plan, microbatches=m), cluster).step_s for m in (8, 12, 36, 40)
    )
    assert all_of_them - last > 1.01 * (second - first)


def test_a_search_shards_the_optimizer_over_the_two_ranks_of_a_stage():
    fixed = {"schedule": "dualpipe", "pp": 8, "tp": 1}
    space = Space(
        model=sl.load_model("gpt2-xl"), cluster=replace(NODE, nodes=1), global_batch=65, fixed=fixed
    )
    found = search(replace(space, global_batch=64), layered=0)
    assert {its.plan.zero for its in found.plans} == {0, 1} and found.plans[0].plan.zero == 1
    odd = search(space, layered=0)  # of no odd number of microbatches
    assert not odd.plans and {its.reason for its in odd.rejections} == {SCHEDULE, MODEL_CUT}


def test_a_rank_of_a_mixed_cluster_is_as_slow_as_the_other_one_of_its_stages():
    older = sl.load_cluster("dgx-a100")
    plan = sl.Plan(dp=8, pp=2, **TWO_WAYS)
    mixed = sl.predict(DENSE, plan, sl.Cluster.mixed(NODE, older))
    turned = sl.predict(DENSE, plan, sl.Cluster.mixed(older, NODE))
    assert mixed.step_s == pytest.approx(turned.step_s)
    assert mixed.stages == turned.stages


# memory
# ------------------------------------------------------------------------------------------------


def test_a_rank_holds_two_stages_and_updates_its_share_of_both():
    """Against 1F1B on as many ranks: twice the weights and gradients, and as many of the optimizer's
    states, which both ranks of a stage share."""
    one, two = (
        sl.Plan(dp=2, pp=4, zero=1, stage_layers="even", schedule=name, microbatches=16) for name in ("1f1b", "dualpipe")
    )  # fmt: skip
    model = replace(DENSE, tied_head=False)
    held = {}
    for plan in (one, two):
        walk = StepWalk(model, plan, program_of(plan), plan.layers_of_stages(model.layers))
        held[plan.schedule] = [walk.rest(rank) for rank in range(4)]
    for rank in range(4):
        alone = [held["1f1b"][rank], held["1f1b"][3 - rank]]
        both = held["dualpipe"][rank]
        for name in ("parameters", "gradients"):
            assert both[name] == pytest.approx(sum(its[name] for its in alone))
        assert both["optimizer"] == pytest.approx(sum(its["optimizer"] for its in alone) / 2)


def test_it_holds_p_plus_1_microbatches_of_a_stage():
    plan = sl.Plan(pp=4, stage_layers="even", **TWO_WAYS | {"microbatches": 16})
    program = program_of(plan)
    model = replace(DENSE, vocab=64)
    walk = StepWalk(model, plan, program, plan.layers_of_stages(model.layers))
    each = walk.activations()[0][1]  # of a stage without an end
    for rank in (1, 2):
        assert walk.peak(rank)["activations"] == pytest.approx((4 + 1) * each, rel=0.05)


@pytest.mark.parametrize("library", ["torch", "fsdp1", "megatron"])
@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe-v"])
def test_a_planners_peak_is_that_of_all_microbatches(library, schedule):
    model = replace(DENSE, layers=16, tied_head=False)
    plan = sl.Plan(dp=2, pp=4, schedule=schedule, library=library, microbatches=32)
    cluster = replace(NODE, nodes=1)
    most = sum(sl.predict(model, plan, cluster).memory_bytes.values())
    assert predicted(model, plan, cluster).memory_bytes == pytest.approx(most)


def test_a_gpu_keeps_a_communicator_for_the_other_rank_of_its_stages():
    one, two = (sl.Plan(pp=4, microbatches=8, schedule=name) for name in ("1f1b", "dualpipe"))
    assert reserve_bytes(two) - reserve_bytes(one) == PAIR_BYTES
    assert reserve_bytes(replace(two, dp=2)) == reserve_bytes(replace(one, dp=4))
