"""The figures of NCCL's tuner, against those that NCCL's source publishes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simlab.collectives.group_shape import GroupShape
from simlab.collectives.nccl_tuning import base_s, hop_s, tree_correction
from simlab.spec.cluster import load_cluster

PUBLISHED = json.loads(
    (Path(__file__).parents[2] / "published" / "nccl_tuner.json").read_text(encoding="utf-8")
)
PROTOCOLS = PUBLISHED["order"]
CLUSTER = load_cluster("dgx-a100", nodes=2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_tree_reaches_what_nccl_says_at_each_doubling_and_all_of_it_from_1_gib_on(protocol):
    tenths = PUBLISHED["tree_tenths"][protocol]
    sizes = [64 * 2**doubling for doubling in range(len(tenths))]
    reached = [tree_correction(size, protocol) for size in sizes]
    assert reached == pytest.approx([tenth / 10 for tenth in tenths], rel=1e-12)
    assert tree_correction(1, protocol) == reached[0]
    assert tree_correction(2**30, protocol) == tree_correction(2**40, protocol) == 1
    halfway_in_log2 = 64 * 2**10.5
    assert tree_correction(halfway_in_log2, protocol) == pytest.approx(
        (tenths[10] + tenths[11]) / 20
    )


@pytest.mark.parametrize("kind", PUBLISHED["hop_us"])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_hops_are_in_nccls_proportion_to_a_rings_in_the_protocol_simple(kind, algorithm):
    fabric = replace(CLUSTER.intra, kind=kind, hop_s=1e-5)
    simple_us = PUBLISHED["hop_us"][kind]["ring"][PROTOCOLS.index("Simple")]
    for protocol, its_us in zip(PROTOCOLS, PUBLISHED["hop_us"][kind][algorithm]):
        assert hop_s(fabric, algorithm, protocol) == pytest.approx(1e-5 * its_us / simple_us)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_protocols_begin_as_much_later_as_nccl_says(algorithm):
    published_us = PUBLISHED["base_us"][algorithm]
    cluster = replace(CLUSTER, intra=replace(CLUSTER.intra, base_s=30e-6))
    simple_s = base_s(GroupShape(8, 8), cluster, algorithm, "Simple")
    assert simple_s == pytest.approx(30e-6)
    for protocol, its_us in zip(PROTOCOLS, published_us):
        later_us = its_us - published_us[PROTOCOLS.index("Simple")]
        begun_s = base_s(GroupShape(8, 8), cluster, algorithm, protocol)
        assert begun_s == pytest.approx(30e-6 + later_us * 1e-6)
