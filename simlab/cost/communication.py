"""How long a collective takes on a cluster: NCCL's algorithms and protocols, as its tuner estimates them, on links as they measure.

Every time is latency + bytes / bandwidth. The tuner's own model (NCCL 2.30, src/graph/tuning.cc) gives the form and the ratios of the
protocols' latencies; the fabric of a cluster (data/clusters.json) gives the machine. S is the whole buffer in bytes, as nccl-tests count
it, n the ranks of the group, N its nodes, k = n / N its ranks per node, h and h' the latency of a hop within and between nodes,
m what one message of many costs.

    ring         all-reduce       base + 2(n-N) h + 2(N-1) h' + 2(n-1)/n S / B     (N > 1: max((k-1)/k / B, 1 / B') for 1 / B)
                 all-gather, reduce-scatter (and broadcast's pipeline, S / B)   half of that
    tree         all-reduce       base + 2(k-1) h + 2 ceil(lg N) h' + max(2 S / B, 2(N-1)/N S / B') / .9
    nvls         all-reduce       base + 2 h + (1 + 1/n) S / B of the switch                       (one node, more than 2 ranks)
    hierarchical all-reduce       base + 2(k-1) h + 2(N-1) h' + 2(k-1)/k S / B + 2(N-1)/N S / B'   (only if asked for)
    pairwise     all-to-all       base + h or h' + (n-1) m + max(S (k-1)/n / B, S (n-k)/n / (B' / k))

B is what a rank's port within a node carries, B' what the group's share of the node's NICs does. To the bytes through the port come those
that a rank copies, S / `copy_bytes_per_s`; where NICs are the narrower, the copy is hidden behind them. Leaves out: what else is on the
links (`IN_TRAINING`), NVLSTree, PAT and CollNet, tuning mistakes (the fastest is always chosen here), channels and the SMs that they take.
"""

from dataclasses import dataclass
from math import ceil, log2
from typing import NamedTuple

from simlab.collectives import busbw_factor
from simlab.errors import InputError, require_whole

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
ALGORITHMS = ("ring", "tree", "nvls")
"""What NCCL chooses from for an all-reduce; "hierarchical" can be asked for."""

IN_TRAINING = 1.3
"""What a collective takes in a training step over what it takes alone: it shares SMs and memory with the kernels beside it, and its
ranks do not arrive together. "About 30% slower": vTrain (Bang et al. 2024, arXiv 2312.12391). Callers apply it; nothing here does."""

# NCCL 2.30, src/graph/tuning.cc, in seconds, by protocol Simple, LL128, LL. Of each fabric only Simple's are measured; the others' are
# in the proportion that these have.
_RING_HOP_S = {"nvlink": (3.4e-6, 1.9e-6, 0.6e-6), "pcie": (5.7e-6, 2.5e-6, 1.0e-6), "network": (14e-6, 4.0e-6, 2.7e-6)}
_TREE_HOP_S = {"nvlink": (4.0e-6, 1.25e-6, 0.6e-6), "pcie": (4.0e-6, 1.9e-6, 1.0e-6), "network": (14e-6, 8.5e-6, 5.0e-6)}
_RING_HOP_S["loopback"], _TREE_HOP_S["loopback"] = (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)
_BASE_S = {"ring": (8.4e-6, 14e-6, 6.6e-6), "tree": (8.4e-6, 14e-6, 6.8e-6)}
_NVLS_BASE_S = 16e-6
"""Besides a ring's: the tuner has 24 µs for NVLS in the protocol Simple."""
_BANDWIDTH = {"Simple": 1.0, "LL128": 0.92, "LL": 0.25}
"""Of a ring's bandwidth. LL128 carries 120 bytes of 128; LL 4 of 8, and is slower than that half: older versions of the tuner have 1/4,
newer ones a ceiling (llMaxBws), .3 to .4 of the ring of a V100, A100 or H100 node. The rest are flags that save a synchronisation."""
_TREE_BANDWIDTH = 0.9
_TREE_CORRECTION = {
    "Simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9, 1),
    "LL128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1, 1),
    "LL": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1, 1),
}  # fmt: skip
"""What medium sizes reach of a tree's bandwidth, for 64 bytes and each doubling up to 1 GiB: NCCL 2.30's
treeCorrectionFactor (src/graph/tuning.cc)."""
_PROTOCOL = {"Simple": 0, "LL128": 1, "LL": 2}


@dataclass(frozen=True)
class Group:
    """The ranks of a communicator. All GPUs of a node are in such groups at the same time, each with its share of the NICs."""

    size: int
    """n"""
    per_node: int
    """k, how many of them sit in one node."""

    def __post_init__(self):
        for name in ("size", "per_node"):
            require_whole(f"group: {name}", getattr(self, name))
        if self.size % self.per_node:
            raise InputError(f"group of {self.size} ranks, {self.per_node} per node: give a divisor of {self.size} per node")

    @property
    def nodes(self):
        """N"""
        return self.size // self.per_node

    @classmethod
    def of(cls, size, stride, cluster):
        """`size` ranks that are `stride` apart (1: neighbours), on nodes filled one after the other.

        Where they do not fill their nodes evenly: as many in each as a divisor of `size` allows.
        """
        require_whole("group: stride", stride)
        per_node = max(1, min(size, cluster.gpus_per_node // stride))
        while size % per_node:
            per_node -= 1
        return cls(size, per_node)


class CollectiveTime(NamedTuple):
    """A collective's time, and what NCCL would use for it."""

    seconds: float
    algorithm: str
    """ring, tree, nvls, hierarchical, pairwise; "none" of one rank."""
    protocol: str
    """Simple, LL128, LL; "none" of one rank."""
    busbw_bytes_per_s: float
    """Bus bandwidth, as nccl-tests define it: what each link carries, whatever the number of ranks."""


def collective(kind, size_bytes, group, cluster, *, algorithms=ALGORITHMS):
    """The `CollectiveTime` of `kind` on the ranks of `group`: of `algorithms` and the fabric's protocols, the fastest.

    size_bytes: the whole buffer: what every rank has in the end (all-gather), or has at first (reduce-scatter, all-to-all).
    On a mixed cluster, that of its slowest kind of node.
    """
    if kind not in KINDS:
        raise InputError(f"collective {kind!r}: give one of {', '.join(KINDS)}")
    if not 0 <= size_bytes < float("inf"):
        raise InputError(f"{kind} of {size_bytes!r} bytes: give a finite number, 0 or more")
    if unknown := set(algorithms) - {*ALGORITHMS, "hierarchical"}:
        raise InputError(f"algorithm {min(unknown)!r}: give some of {', '.join(ALGORITHMS)}, hierarchical")
    _check_fits(group, cluster)
    if group.size == 1:
        return CollectiveTime(0.0, "none", "none", 0.0)
    choices = [min(_choices(kind, size_bytes, group, part, algorithms)) for part in cluster.parts]
    seconds, algorithm, protocol = max(choices)
    factor = busbw_factor(kind.replace("_", "-"), group.size)
    return CollectiveTime(seconds, algorithm, protocol, factor * size_bytes / seconds if seconds else 0.0)


def collective_s(kind, size_bytes, group, cluster):
    """Seconds of `collective`."""
    return collective(kind, size_bytes, group, cluster).seconds


def p2p_s(size_bytes, cluster, *, same_node=True, share=None):
    """Seconds of one message from a GPU to another.

    share: what part it has of its GPU's port, or of a NIC. None: what is left when all GPUs of a node send: all of the port; of
    the NICs each its part, and of that what an oversubscribed fabric lets through.
    """
    if not 0 <= size_bytes < float("inf"):
        raise InputError(f"a message of {size_bytes!r} bytes: give a finite number, 0 or more")
    if share is not None and not 0 < share <= 1:
        raise InputError(f"share = {share!r} of a link: give a fraction above 0, up to 1")

    def seconds(part):
        fabric, part_of_port = (part.intra, 1.0) if same_node else (part.inter, min(1.0, part.nics_per_node / part.gpus_per_node))
        part_of_port = part_of_port / fabric.oversubscription if share is None else share
        return fabric.base_s + fabric.hop_s + size_bytes / (part_of_port * _message_bandwidth(fabric, 2))

    return max(seconds(part) for part in cluster.parts)


# the algorithms -------------------------------------------------------------------------------------------


def _choices(kind, size_bytes, group, cluster, algorithms):
    """[(seconds, algorithm, protocol)] of all that can be used."""
    if kind == "all_to_all":
        return [(_pairwise_s(size_bytes, group, cluster), "pairwise", "Simple")]
    across = group.nodes > 1
    usable = {"ring": _ring_s} if "ring" in algorithms or kind != "all_reduce" else {}
    if kind == "all_reduce":
        if "tree" in algorithms and across:
            usable["tree"] = _tree_s
        if "hierarchical" in algorithms and across:
            usable["hierarchical"] = _hierarchical_s
        if "nvls" in algorithms and not across and group.size > 2 and cluster.intra.multicast_efficiency:
            usable["nvls"] = _nvls_s
    if not usable:
        raise InputError(f"no algorithm of {', '.join(algorithms)} can do an {kind} of {group.size} ranks on {group.nodes} nodes")
    protocols = [p for p in cluster.intra.protocols if not across or p in cluster.inter.protocols]
    return [
        (time(kind, size_bytes, group, cluster, protocol), name, protocol)
        for name, time in usable.items()
        for protocol in protocols
        if protocol == "Simple" or name in ("ring", "tree")
    ]


def _ring_s(kind, size_bytes, group, cluster, protocol):
    """One ring per GPU of a node, each leaving it by another: a GPU's port carries k - 1 of them, its NIC the k-th."""
    n, k, across = group.size, group.per_node, group.nodes > 1
    hops = {"all_reduce": 2}.get(kind, 1)
    moved = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(kind, (n - 1) / n) * size_bytes
    latency_s = hops * (n - group.nodes) * _hop_s(cluster.intra, "ring", protocol)
    copied = size_bytes / n if kind == "all_gather" else size_bytes  # summing touches all of it
    bytes_s = _inside_s(moved * (k - 1) / k if across else moved, copied, group, cluster, _BANDWIDTH[protocol])
    if across:
        latency_s += hops * (group.nodes - 1) * _hop_s(cluster.inter, "ring", protocol)
        bytes_s = max(bytes_s, moved / (_nics_bytes_per_s(group, cluster) * _BANDWIDTH[protocol]))
    return _base_s(group, cluster, "ring", protocol) + latency_s + bytes_s


def _tree_s(kind, size_bytes, group, cluster, protocol):
    """A chain within each node, two binary trees between nodes: all edges carry S up and S down, 2(N-1)/N S per node on average."""
    latency_s = 2 * (group.per_node - 1) * _hop_s(cluster.intra, "tree", protocol)
    latency_s += 2 * ceil(log2(group.nodes)) * _hop_s(cluster.inter, "tree", protocol)
    share = _TREE_BANDWIDTH * _BANDWIDTH[protocol] * _tree_correction(size_bytes, protocol)
    moved = 2 * size_bytes if group.per_node > 1 else 0.0
    bytes_s = 2 * (group.nodes - 1) / group.nodes * size_bytes / (_nics_bytes_per_s(group, cluster) * share)
    bytes_s = max(bytes_s, _inside_s(moved, size_bytes, group, cluster, share))
    return _base_s(group, cluster, "tree", protocol) + latency_s + bytes_s


def _tree_correction(size_bytes, protocol):
    """`_TREE_CORRECTION` at a size, straight from one doubling to the next, so that more bytes are never faster."""
    factors, doublings = _TREE_CORRECTION[protocol], log2(max(64, size_bytes) / 64)
    at = min(len(factors) - 2, int(doublings))
    return factors[at] + min(1.0, doublings - at) * (factors[at + 1] - factors[at])


def _nvls_s(kind, size_bytes, group, cluster, protocol):
    """The switch reads each GPU's buffer and adds (S out, S/n in), then writes the sum to all (S/n out, S in)."""
    fabric = cluster.intra
    bandwidth = fabric.bandwidth_bytes_per_s * fabric.multicast_efficiency
    return fabric.base_s + _NVLS_BASE_S + 2 * fabric.hop_s + (1 + 1 / group.size) * size_bytes / bandwidth


def _hierarchical_s(kind, size_bytes, group, cluster, protocol):
    """Reduce-scatter in each node, all-reduce of each part between nodes at the same time, all-gather in each node."""
    k, nodes = group.per_node, group.nodes
    latency_s = 2 * (k - 1) * _hop_s(cluster.intra, "ring", protocol) + 2 * (nodes - 1) * _hop_s(cluster.inter, "ring", protocol)
    between_s = 2 * (nodes - 1) / nodes * size_bytes / (_nics_bytes_per_s(group, cluster) * _BANDWIDTH[protocol])
    inside_s = _inside_s(2 * (k - 1) / k * size_bytes, size_bytes, group, cluster, _BANDWIDTH[protocol])
    return _base_s(group, cluster, "ring", protocol) + latency_s + between_s + inside_s


def _pairwise_s(size_bytes, group, cluster):
    """S/n to each other rank, to those of the node and the others at the same time; one hop at the end, before that one per message."""
    n, k = group.size, group.per_node
    level = cluster.intra if n == k else cluster.inter
    latency_s = max(cluster.intra.base_s, level.base_s) + level.hop_s + (k - 1) * cluster.intra.message_s + (n - k) * level.message_s
    bytes_s = size_bytes * (k - 1) / n / _message_bandwidth(cluster.intra, k)
    if n > k:
        per_rank = _nics_bytes_per_s(group, cluster) / k * cluster.inter.message_efficiency / cluster.inter.efficiency
        bytes_s = max(bytes_s, size_bytes * (n - k) / n / per_rank)
    return latency_s + bytes_s


# the machine ----------------------------------------------------------------------------------------------


def _base_s(group, cluster, algorithm, protocol):
    base_s = cluster.intra.base_s if group.nodes == 1 else max(cluster.intra.base_s, cluster.inter.base_s)
    of_nccl = _BASE_S[algorithm]
    return max(0.0, base_s + of_nccl[_PROTOCOL[protocol]] - of_nccl[0])


def _hop_s(fabric, algorithm, protocol):
    """The measured latency of a ring's hop in the protocol Simple, in NCCL's proportion to those of others."""
    of_nccl = {"ring": _RING_HOP_S, "tree": _TREE_HOP_S}[algorithm][fabric.kind]
    return fabric.hop_s * of_nccl[_PROTOCOL[protocol]] / _RING_HOP_S[fabric.kind][0]


def _inside_s(moved_bytes, size_bytes, group, cluster, share):
    """What `moved_bytes` over a rank's port at `share` of its bandwidth take, and copying its buffer of `size_bytes`."""
    copy_s = size_bytes / cluster.intra.copy_bytes_per_s
    return copy_s + (moved_bytes / (cluster.intra.ring_bandwidth_bytes_per_s(group.per_node) * share) if moved_bytes else 0.0)


def _nics_bytes_per_s(group, cluster):
    """What the group's share of its node's NICs carries: per_node / gpus_per_node of them."""
    fabric = cluster.inter
    node = cluster.nics_per_node * fabric.bandwidth_bytes_per_s * fabric.efficiency / fabric.oversubscription
    return node * group.per_node / cluster.gpus_per_node


def _message_bandwidth(fabric, ranks):
    return fabric.ring_bandwidth_bytes_per_s(ranks) / fabric.efficiency * fabric.message_efficiency


def _check_fits(group, cluster):
    if group.per_node > cluster.gpus_per_node:
        raise InputError(f"group with {group.per_node} ranks per node: {cluster.name} has {cluster.gpus_per_node} GPUs per node")
    nodes = sum(part.nodes for part in cluster.parts)
    if group.nodes > nodes:
        raise InputError(f"group of {group.size} ranks, {group.per_node} per node, is on {group.nodes} nodes: {cluster.name} has {nodes}")
