"""What lesson 12 says aloud, over what it depends on."""

import re
from dataclasses import replace

import pytest

import simlab as sl
from simlab.diagnosis import straggler, time_spent, trace_graph
from simlab.lessons.subjects import operating
from simlab.lessons.subjects.operating import graph_of, hidden, op_saves, works_of
from simlab.lessons.words import entry
from simlab.operations import (
    Prices,
    failure_rate,
    layers_by_speed,
    mean_goodput,
    random_jobs,
    replan,
    simulate_queue,
    training_cost,
)
from simlab.operations.doctor import Machine, differences
from simlab.operations.rates import DAY_S
from simlab.planner import Space, search


def step(ranks, microbatches, latency_s=0.0):
    times = sl.OpTimes(forward_s=0.020, backward_s=0.040)
    program = sl.generate("1f1b", ranks, microbatches)
    return trace_graph(sl.simulate(program, times, link=sl.Link(latency_s=latency_s)))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_the_parts_add_up_and_those_of_rank_0_alone_save_less_than_their_share(ranks, factor):
    graph = step(ranks, factor * ranks, 0.002)
    for spent in time_spent(graph):
        assert spent.total == pytest.approx(graph.step_s)
    all_forwards = works_of(graph, "F")
    assert all_forwards == pytest.approx(1 / 6, abs=0.02)
    if ranks > 2:
        assert works_of(graph, "F", 0) < all_forwards / ranks


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_nothing_waits_on_the_critical_path_though_every_rank_waits(ranks):
    graph = step(ranks, 2 * ranks, 0.002)
    assert sum(link.seconds for link in graph.critical_path()) == pytest.approx(graph.step_s)
    assert all(spent.waiting > 0.05 * graph.step_s for spent in time_spent(graph))


@pytest.mark.parametrize("ranks", [4, 8])
def test_most_forwards_of_rank_0_save_nothing_alone(ranks):
    graph = step(ranks, 2 * ranks, 0.002)
    alone = [
        graph.saved_s(lambda work, name=f"0F{at}": work.name == name, 0.5)
        for at in range(2 * ranks)
    ]
    assert sum(saved_s < 1e-9 for saved_s in alone) > ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_op_alone_saves_at_most_half_its_own_time(ranks):
    graph = step(ranks, 2 * ranks, 0.002)
    saved = {op: op_saves(graph, op) for op in sl.generate("1f1b", ranks, 2 * ranks).ranks[0]}
    for op, share in saved.items():
        assert share <= (0.010 if op.kind == "F" else 0.020) / graph.step_s + 1e-12, op
    assert max(saved.values()) == pytest.approx(0.020 / graph.step_s)


def test_savings_of_two_changes_do_not_add_up():
    """Two ops of 2 s beside each other: either alone saves nothing, both save a second."""
    graph = graph_of({"a": (2.0, []), "b": (2.0, [])})
    assert [graph.saved_s(lambda w, n=name: w.name == n, 0.5) for name in "ab"] == [0.0, 0.0]
    assert graph.saved_s(lambda work: True, 0.5) == 1.0


@pytest.mark.parametrize("seed", range(24))
def test_a_hidden_fault_is_found_by_its_replay(seed):
    case = hidden(seed)
    graph = trace_graph(case.trace)
    assert case.trace.step_s > 1.1 * case.healthy.step_s
    found = straggler(graph)
    if case.cause == "slow_link":
        assert found is None
        messages = [works_of(graph, "message", rank) for rank in range(operating.RANKS)]
        assert max(range(operating.RANKS), key=messages.__getitem__) == case.rank
        return
    assert found.rank == case.rank
    assert found.cause == {"slow_gpu": "gpu", "loss": "unknown"}[case.cause]
    assert graph.step_s - found.saved_s == pytest.approx(case.healthy.step_s, rel=1e-6)


def test_all_causes_are_hidden_by_some_seed():
    assert {hidden(seed).cause for seed in range(24)} == {*operating.CAUSES}


def queue(seed, policy, resize_s):
    jobs = random_jobs(40, nodes=16, mean_gap_s=1800, mean_work_node_s=8 * 3600, seed=seed)
    return simulate_queue(jobs, nodes=16, policy=policy, resize_s=resize_s)


@pytest.mark.parametrize("seed", range(8))
def test_resizing_at_every_change_helps_while_it_takes_minutes_and_loses_much_of_its_gain_at_an_hour(
    seed,
):
    static, *reactive = (
        queue(seed, policy, resize_s).mean_turnaround_s
        for policy, resize_s in (("static", 0), ("reactive", 600), ("reactive", 3600))
    )
    assert reactive[0] < static
    assert reactive[1] > 1.3 * reactive[0]
    predictive = queue(seed, "predictive", 3600)
    assert predictive.resizes < queue(seed, "reactive", 3600).resizes / 3
    assert predictive.mean_turnaround_s < min(static, reactive[1])


def test_in_some_queues_and_not_in_all_an_hour_a_resize_costs_more_than_all_of_the_gain():
    turnaround_s = {
        policy: [queue(seed, policy, 3600).mean_turnaround_s for seed in range(8)]
        for policy in ("static", "reactive")
    }
    worse = [b > a for a, b in zip(*turnaround_s.values())]
    assert worse[0], "the lesson's own queue"
    assert any(worse) and not all(worse)
    assert sum(turnaround_s["reactive"][:4]) < sum(turnaround_s["static"][:4])


# d20: deployment
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [2, 128])
@pytest.mark.parametrize("variables", [{}, {"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "4"}])
@pytest.mark.parametrize("gpus", [(), ("H100",) * 8])
def test_nodes_that_differ_are_in_order_alone_and_are_named_by_a_comparison(cores, variables, gpus):
    here = Machine(
        host="a", system="Linux", python="3.12.1", cores=cores, gpus=gpus, environment=variables,
        versions={} if cores == 2 else {"torch": "2.6.0"},
    )  # fmt: skip
    nodes = operating.unlike_nodes(here)
    assert operating.found_alone(nodes) == 0
    assert operating.found_alone([*nodes, replace(here, port_free=False)]) == 1
    odd = {one.subject: one.found for one in differences(nodes) if one.level != "fine"}
    ranks = {"torch": 1, "NCCL_ and GLOO_ variables": 2, "TF32": 3}
    assert {*odd} == {*ranks}
    assert all(odd[subject].startswith(f"rank {rank} ") for subject, rank in ranks.items())
    assert not [one for one in differences([here] * 4) if one.level != "fine"]


def bill(speed, gpus, *, goodput=0.95, spares=8, price=2.0):
    return training_cost(
        tokens=1e12, tokens_per_s=speed, gpus=gpus, spare_gpus=spares, goodput=goodput,
        prices=Prices(gpu_hour=price),
    ).total  # fmt: skip


@pytest.mark.parametrize("gpus", [8, 64, 512])
@pytest.mark.parametrize("goodput", [0.7, 0.99])
def test_on_the_same_gpus_the_faster_plan_is_cheaper_and_elsewhere_speed_must_grow_more_than_the_bill(
    gpus, goodput
):
    same = [bill(speed, gpus, goodput=goodput) for speed in (1e4, 1.1e4, 2e4)]
    assert same == sorted(same, reverse=True)
    assert same[0] / same[2] == pytest.approx(2)
    for times, grown in ((8, 6.0), (8, 7.9), (8, 8.1), (2, 2.1)):
        more = bill(grown * 1e4, times * gpus, goodput=goodput, spares=times * 8)
        assert (more < same[0]) == (grown > times)
    for slower, price in ((2.7, 1.0), (2.7, 0.7), (1.5, 1.0), (1.5, 1.5)):
        older = bill(1e4 / slower, gpus, goodput=goodput, price=price)
        assert (older < same[0]) == (2.0 / price > slower)


@pytest.mark.parametrize("name", ["megatron-18b", "megatron-7.5b"])
def test_the_best_plan_of_a_batch_on_more_gpus_is_faster_and_its_token_dearer(name):
    model, steps = sl.load_model(name), {}
    for nodes in (8, 64):
        asked = Space(
            model=model, cluster=sl.load_cluster("dgx-h100", nodes=nodes), global_batch=512,
            fixed={"cp": 1, "schedule": "1f1b"},
        )  # fmt: skip
        steps[nodes] = search(asked, kept=1, layered=0).plans[0].step_s
    assert steps[64] < steps[8] < 8 * steps[64]


@pytest.mark.parametrize("nodes", [8, 9])
def test_an_idle_spare_of_a_small_cluster_costs_more_than_waiting(nodes):
    lost = 1 - mean_goodput(operating.months(nodes, 0), seeds=8)[0]
    assert 0.02 < lost < 0.05
    assert 1 / (nodes + 1) > 2 * lost


# d22: the brain
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [32, 64, 128])
def test_a_small_part_of_broken_nodes_costs_a_large_part_of_the_time_of_a_training_that_waits(
    nodes,
):
    rate = failure_rate("llama-3")
    away = rate.per_1000_node_days / 1000 * rate.node_share  # a repair takes a day
    assert 0.003 < away < 0.0035
    lost = 1 - mean_goodput(operating.months(nodes, 0), seeds=4)[0]
    assert lost > 0.25 * nodes * away and lost > 20 * away
    assert mean_goodput(operating.months(nodes, 1), seeds=4)[0] > 1 - lost / 2


def test_a_spare_pays_with_many_nodes_and_shrinking_pays_while_little_must_be_dropped():
    def paid(nodes, *way):
        return operating.work_per_node(nodes, *way, seeds=4)

    assert [paid(nodes, 1) > paid(nodes, 0) for nodes in (8, 12, 32, 64, 128)] == [False] * 2 + [
        True
    ] * 3
    for nodes in (32, 64, 128):
        assert paid(nodes, 0, 4) > paid(nodes, 1) > paid(nodes, 0)
    for nodes in (64, 128):
        assert paid(nodes, 0) < paid(nodes, 0, nodes // 2) < paid(nodes, 1)


def test_a_slow_repair_makes_a_spare_pay_on_few_nodes_too():
    def goodput(spares, repair_s):
        run = operating.months(8, spares)
        return mean_goodput(replace(run, fleet=replace(run.fleet, repair_s=repair_s)), seeds=4)[0]

    for days, pays in ((1, False), (14, True)):
        spare, waits = (goodput(spares, days * DAY_S) for spares in (1, 0))
        assert (spare * 8 / 9 > waits) == pays


@pytest.mark.parametrize("name", ["llama-3-8b", "megatron-7.5b"])
@pytest.mark.parametrize("order", [("dgx-a100", "dgx-h100"), ("dgx-h100", "dgx-a100")])
def test_stages_by_speed_are_faster_and_on_the_wrong_gpus_slower_than_equal_ones(name, order):
    model = sl.load_model(name)
    cluster = sl.Cluster.mixed(*(sl.load_cluster(each, nodes=1) for each in order))
    half = model.layers // 2
    plan = sl.Plan(
        dp=2, tp=4, pp=2, microbatches=16, sequence_parallel=True, stage_layers=(half, half)
    )
    equal = sl.predict(model, plan, cluster)
    layers = layers_by_speed([stage.forward.compute / half for stage in equal.stages], model.layers)
    best, wrong = (
        sl.predict(model, replace(plan, stage_layers=its), cluster).step_s
        for its in (layers, layers[::-1])
    )
    assert best < 0.85 * equal.step_s and wrong > 1.15 * equal.step_s


@pytest.mark.parametrize(("zero", "microbatch_size"), [(3, 2), (2, 1)])
@pytest.mark.parametrize("nodes", [4, 8])
def test_the_same_plan_loses_more_speed_than_gpus_where_the_batch_does_not_divide_and_short_repairs_are_waited_for(
    zero, microbatch_size, nodes
):
    plan = sl.Plan(
        dp=8 * nodes, zero=zero, microbatch_size=microbatch_size,
        microbatches=512 // (8 * nodes * microbatch_size),
    )  # fmt: skip
    cluster = sl.load_cluster("dgx-h100", nodes=nodes)
    found = replan(sl.load_model("megatron-18b"), plan, cluster, resize_s=600)
    fewer = [way for way in found.ways if way.name == "fewer replicas"]
    assert all(way.speed < 0.55 and way.nodes == nodes // 2 for way in fewer)
    assert fewer or nodes == 4, "on 2 of 4 nodes there may be too little memory"
    assert found.advice(600) == "wait" and found.advice(1200) != "wait"


def test_the_speeds_that_d20_gives_are_those_of_its_plans():
    text = entry("d20.prediction", tongue="en")["text"]
    (given,) = re.findall(r"train ([\d,]+) and ([\d,]+) tokens/s", text)
    small = sl.Plan(dp=64, zero=2, microbatch_size=2, microbatches=4)
    large = sl.Plan(dp=256, tp=2, zero=1, microbatch_size=2, sequence_parallel=True)
    for number, plan in zip(given, (small, large)):
        cluster = sl.load_cluster("dgx-h100", nodes=plan.gpus // 8)
        step = sl.predict(sl.load_model("megatron-18b"), plan, cluster)
        assert step.tokens_per_s == pytest.approx(float(number.replace(",", "")), rel=0.005)
