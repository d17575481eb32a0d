"""The clusters and models whose times a job takes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simlab.errors import InputError
from simlab.spec.cluster import Cluster, load_cluster, nodes_of_file
from simlab.spec.model import Model, load_model

BOX_MODEL = "megatron-7.5b"
"""The model whose layers' times a box takes unless it names one."""


def filled_machine(name: str, ranks: int) -> Cluster:
    """The cluster called `name`, with as many nodes as `ranks` fill."""
    cluster = load_cluster(name)
    return replace(cluster, nodes=-(-ranks // cluster.gpus_per_node))


def filled_cluster(name: str, nodes: int | None, ranks: int) -> Cluster:
    """`nodes` nodes of the cluster called `name`, with as many GPUs a node as `ranks` fill, and their
    share of its NICs. nodes None: what the cluster's file says, else as many as the ranks take.

    `InputError` if the ranks are not as many on each node, or more than a node has GPUs.
    """
    cluster = load_cluster(name)
    nodes = nodes or nodes_of_file(name) or -(-ranks // cluster.gpus_per_node)
    if ranks % nodes:
        raise InputError(
            f"{ranks} ranks on {nodes} nodes: give a number of nodes that divides them"
        )
    filled = ranks // nodes
    if filled > cluster.gpus_per_node:
        raise InputError(
            f"{filled} ranks on a node of {cluster.name}, which has {cluster.gpus_per_node} GPUs: give more nodes"
        )
    nics = max(1, cluster.nics_per_node * filled // cluster.gpus_per_node)
    return replace(cluster, nodes=nodes, gpus_per_node=filled, nics_per_node=nics)


def cut_model(name: str | Mapping[str, Any] | None, layers: int) -> Model:
    """The model called `name`, or of such fields (None: `BOX_MODEL`) with so many `layers`, all of the kind that most are
    (of those with experts, where some have them), and with a head of its own, as what runs has one."""
    model = load_model(name or BOX_MODEL)
    kinds = {kind: (model.of_kind(kind).experts > 0, n) for kind, n in model.counts.items()}
    alike = model.of_kind(max(kinds, key=lambda kind: kinds[kind]))
    alike = replace(alike, kinds=(), pattern=(), dense_layers=0)
    return replace(alike, layers=layers, tied_head=False)
