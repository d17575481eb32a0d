"""What NCCL's tuner knows of its algorithms and protocols: latencies, and the part of a link's
bandwidth that each reaches.

The figures are those of NCCL 2.30, src/graph/tuning.cc, in seconds, by protocol: Simple, LL128 and
LL. Of each fabric only the latencies of Simple are measured (data/clusters.json). Those of the
other two protocols are taken in NCCL's proportion to them.
"""

from math import log2

from simlab.collectives.group_shape import GroupShape
from simlab.spec.cluster import Cluster
from simlab.spec.fabric import Fabric

_PROTOCOL = {"Simple": 0, "LL128": 1, "LL": 2}
"""{protocol: its place in the tuples below}."""

_RING_HOP_S = {
    "nvlink": (3.4e-6, 1.9e-6, 0.6e-6),
    "pcie": (5.7e-6, 2.5e-6, 1.0e-6),
    "network": (14e-6, 4.0e-6, 2.7e-6),
    "loopback": (1.0, 1.0, 1.0),
}
"""{kind of fabric: seconds of a ring's hop}. Processes of one machine (loopback) have one
protocol."""

_TREE_HOP_S = {
    "nvlink": (4.0e-6, 1.25e-6, 0.6e-6),
    "pcie": (4.0e-6, 1.9e-6, 1.0e-6),
    "network": (14e-6, 8.5e-6, 5.0e-6),
    "loopback": (1.0, 1.0, 1.0),
}
"""{kind of fabric: seconds of a tree's hop}."""

_BASE_S = {"ring": (8.4e-6, 14e-6, 6.6e-6), "tree": (8.4e-6, 14e-6, 6.8e-6)}
"""{algorithm: seconds that a collective takes besides its hops and bytes}."""

PROTOCOL_BANDWIDTH = {"Simple": 1.0, "LL128": 0.92, "LL": 0.25}
"""{protocol: the part of a ring's bandwidth that it reaches}.

The rest of what is sent are flags that save a synchronisation. LL128 carries 120 bytes of 128. LL
carries 4 bytes of 8, and is slower than that half: older versions of the tuner have 1/4, newer ones
a ceiling (llMaxBws) of .3 to .4 of the ring of a V100, A100 or H100 node.
"""

TREE_BANDWIDTH = 0.9
"""The part of a ring's bandwidth that a tree reaches at most."""

NVLS_BASE_S = 16e-6
"""What NVLS takes besides a ring's base, s: the tuner has 24 µs for it in the protocol Simple."""

_TREE_CORRECTION = {
    "Simple": (0.9,) * 7
    + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7)
    + (0.6,) * 6
    + (0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1, 1),
    "LL": (1,) * 4
    + (0.9, 0.8)
    + (0.7,) * 4
    + (0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    + (1,) * 6,
}
"""{protocol: what each size reaches of a tree's bandwidth}, for 64 bytes and each doubling up to
1 GiB. NCCL 2.30's treeCorrectionFactor (src/graph/tuning.cc)."""


def tree_correction(size_bytes: float, protocol: str) -> float:
    """The part of a tree's bandwidth that a buffer of `size_bytes` reaches.

    Between one doubling and the next the factor is interpolated, so that more bytes are never
    faster.
    """
    factors, doublings = _TREE_CORRECTION[protocol], log2(max(64, size_bytes) / 64)
    at = min(len(factors) - 2, int(doublings))
    return factors[at] + min(1.0, doublings - at) * (factors[at + 1] - factors[at])


def base_s(group: GroupShape, cluster: Cluster, algorithm: str, protocol: str) -> float:
    """Seconds that a collective takes besides its hops and its bytes."""
    measured_s = (
        cluster.intra.base_s
        if group.nodes == 1
        else max(cluster.intra.base_s, cluster.inter.base_s)
    )
    of_nccl = _BASE_S[algorithm]
    return max(0.0, measured_s + of_nccl[_PROTOCOL[protocol]] - of_nccl[0])


def hop_s(fabric: Fabric, algorithm: str, protocol: str) -> float:
    """Seconds of a hop: the measured latency of a ring's hop in the protocol Simple, times NCCL's
    ratio of this algorithm and protocol to that."""
    of_nccl = {"ring": _RING_HOP_S, "tree": _TREE_HOP_S}[algorithm][fabric.kind]
    return fabric.hop_s * of_nccl[_PROTOCOL[protocol]] / _RING_HOP_S[fabric.kind][0]
