"""A cluster's two levels as links that messages share: for executing a collective's rounds, several
at once, on `Network`."""

from collections.abc import Hashable
from typing import Any

from simlab.engine.network import Network
from simlab.spec.cluster import Cluster
from simlab.spec.hardware import Link


def network_of(cluster: Cluster) -> Network:
    """The `Network` of `cluster`, for all its ranks.

    ("gpu", rank, "up" or "down")       a GPU's port within its node
    ("nic", node, index, "up", "down")  a NIC; the GPUs of a node divide them among themselves, one
                                        after the other
    ("node", node, "up" or "down")      what a node's NICs get of the spine: all of it, over the
                                        fabric's oversubscription

    A message within a node goes up one port and down another, `hop_s` after its last byte it is
    there; one between nodes takes a NIC and the spine at either end. Ports and NICs have their
    efficiency taken off. Leaves out: the switches' own limits, PCIe between GPU and NIC, protocols
    (all is Simple), what a collective takes at its start, `rings`: a port is a single ring's link.
    """
    links: dict[Hashable, Link] = {}
    place: dict[int, Any] = {}
    rank = node = 0
    for part in cluster.parts:
        intra, inter = part.intra, part.inter
        port = intra.bandwidth_bytes_per_s * intra.efficiency
        nic = inter.bandwidth_bytes_per_s * inter.efficiency
        for _ in range(part.nodes):
            _add(links, ("node", node), part.nics_per_node * nic / inter.oversubscription, 0.0)
            for index in range(part.nics_per_node):
                _add(links, ("nic", node, index), nic, inter.hop_s)
            for at in range(part.gpus_per_node):
                _add(links, ("gpu", rank), port, intra.hop_s)
                place[rank] = (node, at * part.nics_per_node // part.gpus_per_node)
                rank += 1
            node += 1

    def route(source: int, destination: int) -> list[tuple[Any, ...]]:
        here, there = place[source], place[destination]
        if here[0] == there[0]:
            return [("gpu", source, "up"), ("gpu", destination, "down")]
        return [
            ("nic", *here, "up"),
            ("node", here[0], "up"),
            ("node", there[0], "down"),
            ("nic", *there, "down"),
        ]

    return Network(links, route)


def _add(
    links: dict[Hashable, Link],
    name: tuple[Any, ...],
    bandwidth_bytes_per_s: float,
    latency_s: float,
) -> None:
    """Both directions of a port; a message has its latency on the way up."""
    links[*name, "up"] = Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s)
    links[*name, "down"] = Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s)
