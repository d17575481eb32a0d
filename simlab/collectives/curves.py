"""All-reduce time against size: every algorithm that a group of ranks can use, and which of them
NCCL takes."""

from collections.abc import Sequence
from typing import NamedTuple

from simlab.collectives.group_shape import GroupShape
from simlab.collectives.nccl import ALGORITHMS, CollectiveTime, collective
from simlab.errors import InputError
from simlab.spec.cluster import Cluster
from simlab.spec.named import AnyCluster, cluster_of
from simlab.units import GIB, KIB

SIZES = tuple(KIB * 2**k for k in range(25))
"""1 KiB to 16 GiB, by octaves."""


class CurvePoint(NamedTuple):
    """One size."""

    size_bytes: float
    times: dict[str, CollectiveTime]
    """{algorithm: its time with the best protocol}; 'hierarchical' is there for comparison: NCCL
    does not choose it."""
    chosen: CollectiveTime
    """What NCCL takes."""


def all_reduce_curve(
    group: GroupShape, cluster: AnyCluster, sizes: Sequence[float] = SIZES
) -> list[CurvePoint]:
    """[`CurvePoint`] of an all-reduce on `group` of `cluster`, for each of `sizes` (bytes)."""
    cluster = cluster_of(cluster, nodes=group.nodes)
    if group.size == 1:
        raise InputError("an all-reduce of 1 rank moves nothing: give a group of 2 or more")
    algorithms = [name for name in (*ALGORITHMS, "hierarchical") if _usable(name, group, cluster)]
    return [
        CurvePoint(
            size,
            {
                name: collective("all_reduce", size, group, cluster, algorithms=(name,))
                for name in algorithms
            },
            collective("all_reduce", size, group, cluster),
        )
        for size in sizes
    ]


def choices(points: Sequence[CurvePoint]) -> list[tuple[str, float]]:
    """[(algorithm and protocol that NCCL takes, the first of the sizes that it takes them for)], in
    the order of `points`."""
    found: list[tuple[str, float]] = []
    for point in points:
        name = f"{point.chosen.algorithm} {point.chosen.protocol}"
        if not found or found[-1][0] != name:
            found.append((name, point.size_bytes))
    return found


def _usable(name: str, group: GroupShape, cluster: Cluster) -> bool:
    try:
        collective("all_reduce", GIB, group, cluster, algorithms=(name,))
    except InputError as error:
        if "no algorithm" in str(error):
            return False
        raise
    return True
