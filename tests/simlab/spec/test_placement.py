"""Rank order: which dimension stays within a node, what it sends there and over the network."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.cost.groups import Groups
from simlab.lowering.traffic import crossing, traffic

MODEL = sl.load_model("llama-3-70b")
PLAN = sl.Plan(dp=2, tp=8, pp=4, sequence_parallel=True, microbatches=16)
CLUSTER = sl.load_cluster("dgx-h100", nodes=8)


def test_tensor_parallel_traffic_is_the_textbooks():
    tokens, n = MODEL.seq, PLAN.tp
    for shape in (PLAN, replace(PLAN, sequence_parallel=False)):
        sent = traffic(MODEL, shape)[1]  # a rank of the middle: no embedding, no head
        # with it, two gathers are done again in backward: half an all-reduce each
        reduces = 4 if not shape.sequence_parallel else 5
        each = 2 * (n - 1) / n * tokens * MODEL.hidden * 2
        # their gradients, of each rank's own tokens, summed
        norms = MODEL.layers / shape.pp * 2 * MODEL.hidden * 4 * 2 * (n - 1) / n
        # a tp-th of each message came, the rest is gathered
        received = 2 * shape.microbatches * each / 2
        more = norms if shape.sequence_parallel else received
        assert sent.tp == pytest.approx(
            shape.microbatches * MODEL.layers / shape.pp * reduces * each + more
        )
        assert sent.pp == pytest.approx(2 * shape.microbatches * tokens * MODEL.hidden * 2 / n)


@pytest.mark.parametrize(
    ("order", "inside"),
    [
        ("tp-cp-dp-pp", "tp"),
        ("dp-pp-cp-tp", "dp pp"),
        ("pp-cp-dp-tp", "dp pp"),
        ("cp-tp-pp-dp", "tp"),
    ],
)
def test_order_decides_which_groups_are_inside_a_node(order, inside):
    plan = replace(PLAN, order=order)
    at, crosses = Groups.of(plan, CLUSTER), crossing(plan, 8)
    for name in ("tp", "dp"):
        expected = {rank // 8 for rank in plan.layout.offsets(name)}
        assert getattr(at, name).nodes == len(expected)
        assert (getattr(crosses, name) == 0) == (name in inside.split())
    assert plan.layout.in_nodes("pp", 8) == ("pp" in inside.split()) == (crosses.pp == 0)


def test_order_changes_no_volume_and_no_computing_but_the_step():
    orders = ["tp-cp-dp-pp", "pp-cp-dp-tp", "dp-cp-pp-tp"]
    steps = [sl.predict(MODEL, replace(PLAN, order=order), CLUSTER) for order in orders]
    assert len({tuple(traffic(MODEL, replace(PLAN, order=order))) for order in orders}) == 1
    # but for what runs beside it
    assert steps[0].waterfall_s.compute == pytest.approx(steps[1].waterfall_s.compute, rel=0.1)
    assert steps[0].step_s < min(steps[1].step_s, steps[2].step_s) / 2


def test_order_that_is_none():
    with pytest.raises(sl.InputError, match="once each"):
        sl.Plan(order="tp-dp-pp")
