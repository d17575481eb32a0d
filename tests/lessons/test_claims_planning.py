"""What lesson 11 tells people to say holds over a sweep of what it depends on."""

from dataclasses import replace
from itertools import product

import pytest

import simlab as sl
from simlab.lessons.subjects.planning import EXERCISES
from simlab.planner import Space, search
from simlab.planner.search import MEMORY

FIXED = {"cp": 1, "schedule": "1f1b"}
GPT = sl.load_model("megatron-18b")


def found(model, cluster, batch=256, **fixed):
    space = Space(
        model=sl.load_model(model),
        cluster=sl.load_cluster(cluster, nodes=8),
        global_batch=batch,
        fixed=FIXED | fixed,
    )
    return search(space, kept=1, layered=0)


@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx-a100", "dgx-a100-40gb"])
@pytest.mark.parametrize("batch", [32, 48])
def test_dp_is_limited_by_the_global_batch(cluster, batch):
    its = found("megatron-18b", cluster, batch)
    plans = [plan for _, plan in its.slow] + [ranked.plan for ranked in its.plans]
    assert max(plan.dp for plan in plans) <= batch < 64
    assert its.plans[0].plan.tp * its.plans[0].plan.pp > 1


@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx-a100", "dgx-a100-40gb", "a100-pcie"])
def test_memory_rejects_more_plans_of_a_larger_model(cluster):
    shares = []
    for model in ("llama-2-7b", "megatron-18b", "llama-3-70b"):
        its = found(model, cluster)
        shares.append(its.rejected.get(MEMORY, 0) / its.evaluated)
    assert shares == sorted(shares) and shares[-1] > 0.5


@pytest.mark.parametrize("slower", [4, 8, 16])
def test_a_slower_network_costs_pure_data_parallelism_more_than_a_pipeline(slower):
    def best_s(factor, **fixed):
        cluster = sl.load_cluster("dgx-h100", nodes=8)
        rate = cluster.inter.bandwidth_bytes_per_s / factor
        inter = replace(cluster.inter, bandwidth_bytes_per_s=rate)
        space = Space(
            model=GPT,
            cluster=replace(cluster, inter=inter),
            global_batch=256,
            fixed=FIXED | {"recompute": "none"} | fixed,
        )
        return search(space, kept=1, layered=0).plans[0].step_s

    grows = [best_s(slower, tp=1, pp=pp) / best_s(1, tp=1, pp=pp) for pp in (1, 8)]
    assert grows[0] > grows[1]


PAIRS = [("dgx-h100", "dgx-a100"), ("dgx-a100", "dgx-v100"), ("dgx-h200", "dgx-h100")]


@pytest.mark.parametrize(("fast", "slow"), PAIRS)
@pytest.mark.parametrize("microbatches", [8, 32])
def test_a_pipeline_goes_at_the_pace_of_its_slow_stage_and_a_cut_by_speed_is_faster(
    fast, slow, microbatches
):
    parts = [sl.load_cluster(name, nodes=1) for name in (slow, fast)]
    mixed = sl.Cluster.mixed(*parts)
    plan = sl.Plan(dp=4, tp=2, pp=2, zero=1, microbatches=microbatches, precision="fp16")

    def step_s(first, cluster):
        cut = (first, GPT.layers - first)
        return sl.predict(GPT, replace(plan, stage_layers=cut), cluster).step_s

    equal_s = step_s(20, mixed)
    all_fast_s, all_slow_s = (step_s(20, replace(part, nodes=2)) for part in parts[::-1])
    assert all_fast_s <= equal_s <= 1.02 * all_slow_s
    assert equal_s > (all_fast_s + all_slow_s) / 2, "nearer to the slow kind's"
    if all_slow_s > 1.2 * all_fast_s:
        assert min(step_s(first, mixed) for first in range(8, 20)) < equal_s


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("fast_layers", [22, 26, 30])
def test_the_fast_stage_holds_less_where_it_is_the_last(size, fast_layers):
    plan = sl.Plan(dp=4, tp=2, pp=2, zero=1, microbatch_size=size, microbatches=8)
    cluster = sl.load_cluster("dgx-h100", nodes=2)
    rest = GPT.layers - fast_layers
    first, last = (
        sum(sl.predict(GPT, replace(plan, stage_layers=cut), cluster).held[rank].values())
        for cut, rank in (((fast_layers, rest), 0), ((rest, fast_layers), 1))
    )
    assert last < first


@pytest.mark.parametrize("dp", [4, 8])
def test_data_parallelism_over_both_kinds_goes_at_the_slow_ones_pace(dp):
    fast, slow = (sl.load_cluster(name, nodes=1) for name in ("dgx-h100", "dgx-a100"))
    plan = sl.Plan(dp=dp, tp=16 // dp, zero=1, microbatches=8)
    mixed_s, slow_s = (
        sl.predict(GPT, plan, cluster).step_s
        for cluster in (sl.Cluster.mixed(fast, slow), replace(slow, nodes=2))
    )
    assert mixed_s == pytest.approx(slow_s, rel=0.05)


def test_the_oracle_of_a_cut_is_the_best_of_all_cuts():
    (exercise,) = [each for each in EXERCISES if each.id == "d21"]
    layer_s, most = [0.01, 0.03, 0.02], [5, 9, 9]
    ways = [cut for cut in product(range(10), repeat=3) if sum(cut) == 9]
    fits = [cut for cut in ways if all(count <= room for count, room in zip(cut, most))]
    best = min(max(count * each for count, each in zip(cut, layer_s)) for cut in fits)
    assert exercise.oracle(layers=9, layer_s=layer_s, most=most) == pytest.approx(best)


@pytest.mark.parametrize("model", ["llama-2-7b", "megatron-18b", "llama-3-70b"])
def test_only_full_recomputation_costs_a_third_more_compute(model):
    def compute_s(kind):
        plan = sl.Plan(dp=1, tp=8, pp=8, zero=1, microbatches=16, recompute=kind)
        cluster = sl.load_cluster("dgx-h100", nodes=8)
        return sl.predict(sl.load_model(model), plan, cluster).waterfall_s.compute

    none_s, selective_s, full_s = map(compute_s, ("none", "selective", "full"))
    assert 1.2 < full_s / none_s < 1.4 and selective_s / none_s < 1.1


@pytest.mark.parametrize("gbit", [0.1, 1.0])
@pytest.mark.parametrize("model", ["llama-2-7b", "megatron-18b"])
def test_a_step_over_an_edge_link_mostly_waits(model, gbit):
    cluster = sl.load_cluster("dgx-h100", nodes=2)
    inter = replace(cluster.inter, bandwidth_bytes_per_s=gbit * 1e9 / 8)
    plan = sl.Plan(dp=2, tp=8, microbatches=16)
    step = sl.predict(sl.load_model(model), plan, replace(cluster, inter=inter))
    assert step.exposed_s["dp"] > 5 * step.waterfall_s.compute
