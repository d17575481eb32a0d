"""Seconds of a collective by each of NCCL's algorithms, on links as they measure.

Every time is latency + bytes / bandwidth. NCCL's tuner (2.30, src/graph/tuning.cc) gives the form,
the fabric of a cluster (data/clusters.json) gives the machine. S is the whole buffer in bytes, as
nccl-tests count it; n are the ranks of the group, N its nodes and k = n / N its ranks per node; h
and h' are the latencies of a hop within and between nodes, and m is what one message of many costs.

    ring         all-reduce       base + 2(n-N) h + 2(N-1) h' + 2(n-1)/n S / B     (N > 1:
                 max((k-1)/k / B, 1 / B') for 1 / B)
                 all-gather, reduce-scatter (and broadcast's pipeline, S / B)   half of that
    tree         all-reduce       base + 2(k-1) h + 2 ceil(lg N) h' + max(2 S / B, 2(N-1)/N S / B')
                                  / .9
    nvls         all-reduce       base + 2 h + (1 + 1/n) S / B of the switch
    (one node, more than 2 ranks)
    hierarchical all-reduce       base + 2(k-1) h + 2(N-1) h' + 2(k-1)/k S / B + 2(N-1)/N S / B'
    (only if asked for)
    pairwise     all-to-all       base + h or h' + (n-1) m + max(S (k-1)/n / B, S (n-k)/n / (B' /
                                  k))

B is what a rank's port carries within a node. B' is what the group's share of the node's NICs
carries. The bytes that a rank copies, S / `copy_bytes_per_s`, are added to those through its port.
Where the NICs are narrower than the port, they hide the copy.
"""

from math import ceil, log2

from simlab.collectives.group_shape import GroupShape
from simlab.collectives.nccl_tuning import (
    NVLS_BASE_S,
    PROTOCOL_BANDWIDTH,
    TREE_BANDWIDTH,
    base_s,
    hop_s,
    tree_correction,
)
from simlab.spec.cluster import Cluster
from simlab.spec.fabric import Fabric


def ring_s(
    kind: str, size_bytes: float, group: GroupShape, cluster: Cluster, protocol: str
) -> float:
    """Seconds of `kind` by rings, one for each GPU of a node.

    Each ring leaves the node by another GPU, so a GPU's port carries k - 1 of them and its NIC the
    k-th.
    """
    n, k, across = group.size, group.per_node, group.nodes > 1
    hops = {"all_reduce": 2}.get(kind, 1)
    moved = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(kind, (n - 1) / n) * size_bytes
    latency_s = hops * (n - group.nodes) * hop_s(cluster.intra, "ring", protocol)
    copied = size_bytes / n if kind == "all_gather" else size_bytes  # summing touches all of it
    bytes_s = _inside_s(
        moved * (k - 1) / k if across else moved,
        copied,
        group,
        cluster,
        PROTOCOL_BANDWIDTH[protocol],
    )
    if across:
        latency_s += hops * (group.nodes - 1) * hop_s(cluster.inter, "ring", protocol)
        bytes_s = max(
            bytes_s, moved / (_nics_bytes_per_s(group, cluster) * PROTOCOL_BANDWIDTH[protocol])
        )
    return base_s(group, cluster, "ring", protocol) + latency_s + bytes_s


def tree_s(
    kind: str, size_bytes: float, group: GroupShape, cluster: Cluster, protocol: str
) -> float:
    """Seconds of an all-reduce by a chain within each node and two binary trees between nodes.

    Every edge carries S up and S down, so a node sends 2(N-1)/N S on average.
    """
    latency_s = 2 * (group.per_node - 1) * hop_s(cluster.intra, "tree", protocol)
    latency_s += 2 * ceil(log2(group.nodes)) * hop_s(cluster.inter, "tree", protocol)
    share = TREE_BANDWIDTH * PROTOCOL_BANDWIDTH[protocol] * tree_correction(size_bytes, protocol)
    moved = 2 * size_bytes if group.per_node > 1 else 0.0
    bytes_s = (
        2
        * (group.nodes - 1)
        / group.nodes
        * size_bytes
        / (_nics_bytes_per_s(group, cluster) * share)
    )
    bytes_s = max(bytes_s, _inside_s(moved, size_bytes, group, cluster, share))
    return base_s(group, cluster, "tree", protocol) + latency_s + bytes_s


def nvls_s(
    kind: str, size_bytes: float, group: GroupShape, cluster: Cluster, protocol: str
) -> float:
    """Seconds of an all-reduce in the switch of a node.

    The switch reads each GPU's buffer and adds them up: S leaves a GPU and S/n enters it. Then it
    writes the sum to all of them: S/n leaves a GPU and S enters it.
    """
    fabric = cluster.intra
    bandwidth = fabric.bandwidth_bytes_per_s * fabric.multicast_efficiency
    return (
        fabric.base_s
        + NVLS_BASE_S
        + 2 * fabric.hop_s
        + (1 + 1 / group.size) * size_bytes / bandwidth
    )


def hierarchical_s(
    kind: str, size_bytes: float, group: GroupShape, cluster: Cluster, protocol: str
) -> float:
    """Seconds of an all-reduce in three steps: a reduce-scatter in each node, all-reduces of the k
    parts between nodes at the same time, and an all-gather in each node."""
    k, nodes = group.per_node, group.nodes
    latency_s = 2 * (k - 1) * hop_s(cluster.intra, "ring", protocol) + 2 * (nodes - 1) * hop_s(
        cluster.inter, "ring", protocol
    )
    between_s = (
        2
        * (nodes - 1)
        / nodes
        * size_bytes
        / (_nics_bytes_per_s(group, cluster) * PROTOCOL_BANDWIDTH[protocol])
    )
    inside_s = _inside_s(
        2 * (k - 1) / k * size_bytes, size_bytes, group, cluster, PROTOCOL_BANDWIDTH[protocol]
    )
    return base_s(group, cluster, "ring", protocol) + latency_s + between_s + inside_s


def pairwise_s(size_bytes: float, group: GroupShape, cluster: Cluster) -> float:
    """Seconds of an all-to-all in which each rank sends S/n to each other rank.

    Messages within the node and between nodes go at the same time. Each message costs m, and the
    last one a hop besides.
    """
    n, k = group.size, group.per_node
    level = cluster.intra if n == k else cluster.inter
    within_s, between_s = cluster.intra.message_s, level.message_s
    assert within_s is not None and between_s is not None  # `Fabric` fills them in
    latency_s = (
        max(cluster.intra.base_s, level.base_s)
        + level.hop_s
        + (k - 1) * within_s
        + (n - k) * between_s
    )
    bytes_s = size_bytes * (k - 1) / n / message_bytes_per_s(cluster.intra, k)
    if n > k:
        bytes_s = max(bytes_s, size_bytes * (n - k) / n / _message_nics_bytes_per_s(group, cluster))
    return latency_s + bytes_s


def token_exchange_s(size_bytes: float, share: float, group: GroupShape, cluster: Cluster) -> float:
    """Seconds of an all-to-all in which what several ranks of a node want crosses to the node once,
    and goes on from there, as DeepEP's kernels do it (deepseek-ai/DeepEP).

    size_bytes: what a rank sends, a copy for each rank that wants it. share: the copies for nodes over
    those for ranks. A copy for a node goes to the rank's like there, which hands it on within the
    node while others arrive: all copies but those for a rank's like move inside nodes, size x (k -
    1) / k, and size x share x (N - 1) / N between N nodes. Both go at the rates that NCCL's messages
    reach. DeepEP's own figures, 45 GB/s of a NIC's 50 and 560 to 635 of a B200's 900 GB/s, are 9 % above
    and 2 % below to 10 % above these. Leaves out: the layout that ranks tell each other first.
    """
    k, inside = group.per_node, cluster.intra
    level = inside if group.nodes == 1 else cluster.inter
    bytes_s = size_bytes * (k - 1) / k / message_bytes_per_s(inside, k)
    if group.nodes > 1:
        crossing = size_bytes * share * (group.nodes - 1) / group.nodes
        bytes_s = max(bytes_s, crossing / _message_nics_bytes_per_s(group, cluster))
    return max(inside.base_s, level.base_s) + level.hop_s + bytes_s


def _message_nics_bytes_per_s(group: GroupShape, cluster: Cluster) -> float:
    """The bytes per second that messages of one rank reach through its share of the NICs."""
    efficiency = cluster.inter.message_efficiency
    assert efficiency is not None  # `Fabric` fills it in
    rate = _nics_bytes_per_s(group, cluster) / group.per_node
    return rate * efficiency / cluster.inter.efficiency


def _inside_s(
    moved_bytes: float, size_bytes: float, group: GroupShape, cluster: Cluster, share: float
) -> float:
    """Seconds in which `moved_bytes` cross a rank's port at `share` of its bandwidth, and the rank
    copies its buffer of `size_bytes`."""
    copy_s = size_bytes / cluster.intra.copy_bytes_per_s
    return copy_s + (
        moved_bytes / (cluster.intra.ring_bandwidth_bytes_per_s(group.per_node) * share)
        if moved_bytes
        else 0.0
    )


def _nics_bytes_per_s(group: GroupShape, cluster: Cluster) -> float:
    """B', the bytes per second that the group's share of its node's NICs carries: per_node /
    gpus_per_node of all of them."""
    fabric = cluster.inter
    node = (
        cluster.nics_per_node
        * fabric.bandwidth_bytes_per_s
        * fabric.efficiency
        / fabric.oversubscription
    )
    return node * group.per_node / cluster.gpus_per_node


def message_bytes_per_s(fabric: Fabric, ranks: int) -> float:
    """The bytes per second that messages reach between `ranks` GPUs of a `fabric`."""
    return fabric.ring_bandwidth_bytes_per_s(ranks) / fabric.efficiency * fabric.message_efficiency
