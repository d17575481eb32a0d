"""The groups of ranks that a GPU communicates with, and how they lie on the nodes."""

from collections import Counter
from dataclasses import dataclass, fields

from simlab.collectives.group_shape import GroupShape
from simlab.spec.cluster import Cluster
from simlab.spec.plan import Plan


@dataclass(frozen=True)
class Groups:
    """The communicators that a GPU is in: how many ranks each has, and how many of them in its
    node.

    Ranks are laid out in `Plan.order`: unless told otherwise with tp innermost, then cp, dp and pp,
    as Megatron-LM does.
    """

    tp: GroupShape
    cp: GroupShape
    dp: GroupShape
    """All that hold the same part of the model: dp x cp, or twice as many (`Plan.copies`)."""
    shard: GroupShape
    """Over which ZeRO shards: dp, or as many of it as `Plan.hybrid` says."""
    replicas: GroupShape
    """With `hybrid`: the ranks that hold the same shard."""
    pp: GroupShape
    """The stages of a pipeline."""
    ep: GroupShape
    """With expert parallelism: the ranks that share a layer's experts."""
    edp: GroupShape
    """The ranks that hold the same experts: dp without expert parallelism."""

    @classmethod
    def of(cls, plan: Plan, cluster: Cluster) -> "Groups":
        """Those of `plan` on `cluster`."""
        return cls(
            **{one.name: _group(plan.layout.offsets(one.name), cluster) for one in fields(cls)}
        )


def host_sharers(plan: Plan, cluster: Cluster) -> int:
    """GPUs of a node that the plan uses: one host updates what all of them own, and its drives
    carry it."""
    return min(plan.gpus, cluster.gpus_per_node)


def _group(offsets: tuple[int, ...], cluster: Cluster) -> GroupShape:
    """The `GroupShape` of the ranks with these numbers: as many in each node as in the first, or as
    a divisor of their number allows. If that takes more nodes than the cluster has, the group counts
    as if each of its nodes held as many as the fullest one."""
    size = len(offsets)
    stride = offsets[1] if size > 1 else 1
    if offsets == tuple(range(0, size * stride, stride)):
        shape = GroupShape.of(size, stride, cluster)
    else:
        per_node = sum(offset < cluster.gpus_per_node for offset in offsets)
        while size % per_node:
            per_node -= 1
        shape = GroupShape(size, per_node)
    if shape.nodes <= cluster.nodes:
        return shape
    held = Counter(offset // cluster.gpus_per_node for offset in offsets)
    fullest = max(held.values())
    return GroupShape(len(held) * fullest, fullest)
