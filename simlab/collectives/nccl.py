"""How long a collective takes on a cluster, and which algorithm and protocol NCCL chooses for it.

The fastest of the algorithms (`simlab.collectives.nccl_algorithms`) and protocols is always chosen.
Leaves out: what else is on the links (`IN_TRAINING`), the algorithms NVLSTree, PAT and CollNet, the
mistakes that NCCL's tuner makes, and the channels and SMs that a collective takes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from simlab.collectives import busbw_factor
from simlab.collectives.group_shape import GroupShape
from simlab.collectives.nccl_algorithms import (
    hierarchical_s,
    message_bytes_per_s,
    nvls_s,
    pairwise_s,
    ring_s,
    tree_s,
)
from simlab.errors import InputError, number
from simlab.spec.cluster import Cluster
from simlab.spec.named import AnyCluster, cluster_of

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")

ALGORITHMS = ("ring", "tree", "nvls")
"""The algorithms that NCCL chooses from for an all-reduce. "hierarchical" is used only where a
caller asks for it."""

IN_TRAINING = 1.3
"""How many times as long a collective takes in a training step as it takes alone. It shares SMs
and memory with the kernels beside it, and its ranks do not arrive together. The source is "about
30% slower" of vTrain (Bang et al. 2024, arXiv 2312.12391). Callers apply it; nothing here does."""


class CollectiveTime(NamedTuple):
    """A collective's time, and what NCCL would use for it."""

    seconds: float
    algorithm: str
    """ring, tree, nvls, hierarchical, pairwise; "none" of one rank."""
    protocol: str
    """Simple, LL128, LL; "none" of one rank."""
    busbw_bytes_per_s: float
    """Bus bandwidth, as nccl-tests define it: what each link carries, whatever the number of
    ranks."""


def collective(
    kind: str,
    size_bytes: float,
    group: GroupShape,
    cluster: AnyCluster,
    *,
    algorithms: Sequence[str] = ALGORITHMS,
) -> CollectiveTime:
    """The `CollectiveTime` of `kind` on the ranks of `group`: of `algorithms` and the fabric's
    protocols, the fastest.

    size_bytes: the whole buffer: what every rank has in the end (all-gather), or has at first
    (reduce-scatter, all-to-all). On a mixed cluster, that of its slowest kind of node.
    """
    if kind not in KINDS:
        raise InputError(f"collective {kind!r}: give one of {', '.join(KINDS)}")
    if not number(size_bytes) or not 0 <= size_bytes < float("inf"):
        raise InputError(f"{kind} of {size_bytes!r} bytes: give a finite number, 0 or more")
    if unknown := set(algorithms) - {*ALGORITHMS, "hierarchical"}:
        raise InputError(
            f"algorithm {min(unknown)!r}: give some of {', '.join(ALGORITHMS)}, hierarchical"
        )
    cluster = cluster_of(cluster, nodes=group.nodes)
    _check_fits(group, cluster)
    if group.size == 1:
        return CollectiveTime(0.0, "none", "none", 0.0)
    choices = [min(_choices(kind, size_bytes, group, part, algorithms)) for part in cluster.parts]
    seconds, algorithm, protocol = max(choices)
    factor = busbw_factor(kind.replace("_", "-"), group.size)
    return CollectiveTime(
        seconds, algorithm, protocol, factor * size_bytes / seconds if seconds else 0.0
    )


def collective_s(kind: str, size_bytes: float, group: GroupShape, cluster: AnyCluster) -> float:
    """Seconds of `collective`."""
    return collective(kind, size_bytes, group, cluster).seconds


def p2p_s(
    size_bytes: float, cluster: AnyCluster, *, same_node: bool = True, share: float | None = None
) -> float:
    """Seconds of one message from a GPU to another.

    share: what part it has of its GPU's port, or of a NIC. None: what is left when all GPUs of a
    node send: all of the port; of the NICs each its part, and of that what an oversubscribed fabric
    lets through.
    """
    if not number(size_bytes) or not 0 <= size_bytes < float("inf"):
        raise InputError(f"a message of {size_bytes!r} bytes: give a finite number, 0 or more")
    if share is not None and (not number(share) or not 0 < share <= 1):
        raise InputError(f"share = {share!r} of a link: give a fraction above 0, up to 1")
    cluster = cluster_of(cluster)

    def seconds(part: Cluster) -> float:
        fabric, part_of_port = (
            (part.intra, 1.0)
            if same_node
            else (part.inter, min(1.0, part.nics_per_node / part.gpus_per_node))
        )
        part_of_port = part_of_port / fabric.oversubscription if share is None else share
        return (
            fabric.base_s
            + fabric.hop_s
            + size_bytes / (part_of_port * message_bytes_per_s(fabric, 2))
        )

    return max(seconds(part) for part in cluster.parts)


def _choices(
    kind: str, size_bytes: float, group: GroupShape, cluster: Cluster, algorithms: Sequence[str]
) -> list[tuple[float, str, str]]:
    """[(seconds, algorithm, protocol)] of all that can be used."""
    if kind == "all_to_all":
        return [(pairwise_s(size_bytes, group, cluster), "pairwise", "Simple")]
    across = group.nodes > 1
    usable = {"ring": ring_s} if "ring" in algorithms or kind != "all_reduce" else {}
    if kind == "all_reduce":
        if "tree" in algorithms and across:
            usable["tree"] = tree_s
        if "hierarchical" in algorithms and across:
            usable["hierarchical"] = hierarchical_s
        if (
            "nvls" in algorithms
            and not across
            and group.size > 2
            and cluster.intra.multicast_efficiency
        ):
            usable["nvls"] = nvls_s
    if not usable:
        raise InputError(
            f"no algorithm of {', '.join(algorithms)} can do an {kind} of {group.size} ranks on {group.nodes} nodes"
        )
    protocols = [p for p in cluster.intra.protocols if not across or p in cluster.inter.protocols]
    return [
        (time(kind, size_bytes, group, cluster, protocol), name, protocol)
        for name, time in usable.items()
        for protocol in protocols
        if protocol == "Simple" or name in ("ring", "tree")
    ]


def _check_fits(group: GroupShape, cluster: Cluster) -> None:
    if group.per_node > cluster.gpus_per_node:
        raise InputError(
            f"group with {group.per_node} ranks per node: {cluster.name} has {cluster.gpus_per_node} GPUs per node"
        )
    nodes = sum(part.nodes for part in cluster.parts)
    if group.nodes > nodes:
        raise InputError(
            f"group of {group.size} ranks, {group.per_node} per node, is on {group.nodes} nodes: {cluster.name} has {nodes}"
        )
