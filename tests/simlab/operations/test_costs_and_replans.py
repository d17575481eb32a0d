"""What a token costs, and how a training goes on with fewer nodes, or with unlike ones."""

import pytest

import simlab as sl
from simlab.errors import InputError
from simlab.operations import (
    Prices,
    layers_by_speed,
    replan,
    training_cost,
)

MODEL = sl.load_model("gpt2")
NODES = sl.load_cluster("dgx-a100", nodes=4)


def test_a_token_costs_what_a_calculation_by_hand_says():
    """1e12 tokens at 1e6 a second are 1e6 s, 1.25e6 s at a goodput of 0.8: 347.2 h on 1,000 GPUs."""
    cost = training_cost(
        tokens=1e12, tokens_per_s=1e6, gpus=1000, goodput=0.8, spare_gpus=40, kept_bytes=5e12,
        prices=Prices(gpu_hour=3.0, kwh=0.1, gpu_kw=1.2, tb_month=20.0),
    )  # fmt: skip
    hours = 1.25e6 / 3600
    assert cost.gpus == pytest.approx(3000 * hours) and cost.spares == pytest.approx(120 * hours)
    assert cost.power == pytest.approx(120 * hours)
    assert cost.storage == pytest.approx(100 * hours / 730)
    assert cost.per_million_tokens == pytest.approx(cost.total / 1e6)
    assert cost.of_failures == pytest.approx((120 + 0.2 * 3120) * hours / cost.total)
    assert len(repr(cost)) < 80


def test_goodput_and_price_change_the_cost_in_proportion():
    whole = training_cost(tokens=1e9, tokens_per_s=1e5, gpus=8)
    assert training_cost(tokens=1e9, tokens_per_s=1e5, gpus=8, goodput=0.5).total == pytest.approx(
        2 * whole.total
    )
    with pytest.raises(InputError, match=r"goodput = 1\.2"):
        training_cost(tokens=1e9, tokens_per_s=1e5, gpus=8, goodput=1.2)
    with pytest.raises(InputError, match="gpu_hour = -1"):
        Prices(gpu_hour=-1)


def test_a_training_that_lost_a_node_keeps_its_batch_on_fewer_replicas():
    plan = sl.Plan(dp=32, microbatches=6, microbatch_size=2)
    found = replan(MODEL, plan, NODES)
    fewer = next(way for way in found.ways if way.name == "fewer replicas")
    assert fewer.plan.dp == 24 and fewer.nodes == 3  # 24 divides 192 microbatches
    assert fewer.plan.global_batch == plan.global_batch
    assert fewer.step_s == pytest.approx(
        sl.predict(MODEL, fewer.plan, sl.load_cluster("dgx-a100", nodes=3)).step_s, rel=1e-3
    )
    assert fewer.speed == pytest.approx(3 / 4, abs=0.02)
    assert found.ways[0].step_s <= fewer.step_s
    assert len(found.to_dict()["ways"]) == len(found.ways)


@pytest.mark.parametrize("repair_s", [60.0, 299.0, 301.0, 450.0, 700.0, 86_400.0])
def test_the_advice_is_what_loses_less_where_who_waits_restarts_too(repair_s):
    found = replan(MODEL, sl.Plan(dp=32, microbatches=6, microbatch_size=2), NODES, resize_s=300.0)
    best = found.ways[0]
    waiting_s = repair_s + 300.0
    going_on_s = 2 * 300.0 + (1 - best.speed) * (repair_s - 300.0)
    assert best.speed > 0.5
    assert found.advice(repair_s) == ("wait" if waiting_s < going_on_s else best.name)


def test_no_node_left_and_mixed_clusters_are_refused():
    with pytest.raises(InputError, match="lost_nodes = 4: the cluster has 4 nodes"):
        replan(MODEL, sl.Plan(dp=32), NODES, lost_nodes=4)
    mixed = sl.Cluster.mixed(sl.load_cluster("dgx-h100"), sl.load_cluster("dgx-a100"))
    with pytest.raises(InputError):
        replan(MODEL, sl.Plan(dp=16), mixed)


def test_layers_by_speed_make_a_mixed_pipeline_faster():
    """A node of H100s and one of A100s, a stage on each: the slower one has fewer layers."""
    model = sl.load_model("llama-3-8b")
    cluster = sl.Cluster.mixed(sl.load_cluster("dgx-h100"), sl.load_cluster("dgx-a100"))
    values = {"dp": 2, "tp": 4, "pp": 2, "microbatches": 16, "sequence_parallel": True}
    even = sl.predict(model, sl.Plan(**values), cluster)
    layer_s = [stage.forward.compute / (model.layers / 2) for stage in even.stages]
    layers = layers_by_speed(layer_s, model.layers)
    assert sum(layers) == model.layers and layers[0] > layers[1] > 0
    assert (
        sl.predict(model, sl.Plan(**values, stage_layers=layers), cluster).step_s
        < 0.8 * even.step_s
    )
    with pytest.raises(InputError):
        layers_by_speed([1.0, 1.0, 1.0], 2)
