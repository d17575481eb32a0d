"""NCCL's times beside the textbook's rounds: as many hops as a collective has rounds that follow
each other, whatever the number of nodes."""

from dataclasses import replace
from math import inf

import pytest

from simlab.collectives.all_reduce import tree_all_reduce
from simlab.collectives.group_shape import GroupShape
from simlab.collectives.nccl import collective, p2p_s
from simlab.spec.cluster import load_cluster

A100 = load_cluster("dgx-a100", nodes=64)
HOP_S = 1e-3
ONLY_HOPS = replace(
    A100,
    intra=replace(A100.intra, base_s=0.0, hop_s=0.0, copy_bytes_per_s=inf, protocols=("Simple",)),
    inter=replace(A100.inter, base_s=0.0, hop_s=HOP_S, protocols=("Simple",)),
)


def reached(nodes):
    """Rounds after which a message that everybody who has it hands on has reached all nodes."""
    rounds, have = 0, 1
    while have < nodes:
        rounds, have = rounds + 1, 2 * have
    return rounds


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 31, 32, 33, 48, 63])
def test_a_tree_over_any_number_of_nodes_has_the_hops_of_its_rounds_up_and_down(nodes):
    time = collective("all_reduce", 0, GroupShape(8 * nodes, 8), ONLY_HOPS, algorithms=("tree",))
    rounds = tree_all_reduce(range(nodes), 1)
    assert time.seconds == pytest.approx(len(rounds) * HOP_S, rel=1e-9)
    assert len(rounds) == 2 * reached(nodes)


@pytest.mark.parametrize("nodes", [3, 5, 6, 7, 11])
def test_every_node_of_such_a_tree_is_added_once_and_told_once(nodes):
    holds, rounds = [{rank} for rank in range(nodes)], tree_all_reduce(range(nodes), 1)
    assert sum(map(len, rounds)) == 2 * (nodes - 1), "a link of the tree carries it twice each way"
    for transfers in rounds:
        before = [set(its) for its in holds]
        for t in transfers:
            if t.adds:
                assert not before[t.source] & holds[t.destination], "counted twice"
                holds[t.destination] |= before[t.source]
            else:
                holds[t.destination] = before[t.source]
    assert all(its == set(range(nodes)) for its in holds)


@pytest.mark.parametrize("nodes", [3, 5, 7])
@pytest.mark.parametrize(
    "kind, passes", [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)]
)
def test_a_ring_over_any_number_of_nodes_crosses_each_gap_but_one_in_each_pass(nodes, kind, passes):
    time = collective(kind, 0, GroupShape(8 * nodes, 8), ONLY_HOPS, algorithms=("ring",))
    assert time.seconds == pytest.approx(passes * (nodes - 1) * HOP_S, rel=1e-9)


@pytest.mark.parametrize("nodes", [3, 5, 6])
def test_a_tree_carries_every_byte_up_and_down_but_at_its_root(nodes):
    """2 (N-1) edges-with-direction over N nodes, at nine tenths of the NICs."""
    size = 2.0**34
    wide = replace(ONLY_HOPS, intra=replace(ONLY_HOPS.intra, bandwidth_bytes_per_s=1e20))
    time = collective("all_reduce", size, GroupShape(8 * nodes, 8), wide, algorithms=("tree",))
    inter = wide.inter
    node_bytes_per_s = wide.nics_per_node * inter.bandwidth_bytes_per_s * inter.efficiency
    carried = 2 * (nodes - 1) * size / nodes
    hops_s = 2 * reached(nodes) * HOP_S
    assert time.seconds - hops_s == pytest.approx(carried / (0.9 * node_bytes_per_s), rel=1e-6)


@pytest.mark.parametrize("protocol, whole, base_s", [("LL128", 0.92, 14e-6), ("LL", 0.25, 6.6e-6)])
def test_other_protocols_have_nccls_proportions(protocol, whole, base_s):
    """src/graph/tuning.cc of NCCL 2.30: base latencies of a ring, its hops over NVLink, and the
    part of the bandwidth; the proportions are to the protocol Simple."""
    ring_hop_s = {"LL128": 1.9, "LL": 0.6}[protocol] / 3.4
    intra = replace(
        A100.intra, base_s=1e-4, hop_s=1e-5, copy_bytes_per_s=inf, protocols=(protocol,)
    )
    cluster = replace(A100, intra=intra)
    empty, full = (
        collective("all_gather", size, GroupShape(4, 4), cluster).seconds for size in (0, 2.0**30)
    )
    assert empty == pytest.approx(1e-4 + base_s - 8.4e-6 + 3 * 1e-5 * ring_hop_s, rel=1e-9)
    bandwidth = intra.ring_bandwidth_bytes_per_s(4)
    assert full - empty == pytest.approx(3 / 4 * 2**30 / (whole * bandwidth), rel=1e-9)


def test_an_empty_message_to_another_node_takes_a_hop():
    assert p2p_s(0, ONLY_HOPS, same_node=False) == pytest.approx(HOP_S)


@pytest.mark.parametrize("per_node, carried", [(1, 0.0), (2, 2.0), (8, 2.0)])
def test_within_its_nodes_a_tree_carries_all_up_and_all_down_where_there_is_a_node_to_cross(
    per_node, carried
):
    """A chain of the node's ranks, at nine tenths of a port, that is narrower than the NICs."""
    size, port = 2.0**34, 1e9
    intra = replace(ONLY_HOPS.intra, bandwidth_bytes_per_s=port, efficiency=1.0)
    inter = replace(ONLY_HOPS.inter, bandwidth_bytes_per_s=1e20, hop_s=0.0)
    cluster = replace(ONLY_HOPS, intra=intra, inter=inter)
    group = GroupShape(4 * per_node, per_node)
    time = collective("all_reduce", size, group, cluster, algorithms=("tree",))
    rings = intra.ring_bandwidth_bytes_per_s(per_node) / port if carried else 1.0
    assert time.seconds == pytest.approx(carried * size / (0.9 * rings * port), rel=1e-6, abs=1e-6)
