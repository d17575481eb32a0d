"""A model or a cluster of the catalogue by its name, wherever a function takes the object."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from simlab.errors import InputError, shortened
from simlab.spec.cluster import Cluster, load_cluster, nodes_of_file
from simlab.spec.model import Model, load_model
from simlab.spec.plan import Plan

ORDER = "the arguments are a model, a plan and a cluster, in this order"
AnyModel = Model | str | Path
"""A model, or what `load_model` takes."""
AnyCluster = Cluster | str | Path
"""A cluster, or what `load_cluster` takes."""


def model_of(given: Any, why: str = "") -> Model:
    """The `Model` that is given, or that has the given name."""
    if isinstance(given, (str, Path)):
        return load_model(given)
    if not isinstance(given, Model):
        raise InputError(f"model = {shortened(given)}: give a Model or the name of one{why}")
    return given


def cluster_of(
    given: Any, *, gpus: int | None = None, nodes: int | None = None, why: str = ""
) -> Cluster:
    """The `Cluster` that is given, or that has the given name: then with `nodes` nodes, or as many as
    `gpus` GPUs need, unless its file says how many it has."""
    if isinstance(given, (str, Path)):
        sized = nodes_of_file(given)
        cluster = load_cluster(given, nodes=sized or nodes)
        return cluster if sized or gpus is None else smallest(cluster, gpus)
    if not isinstance(given, Cluster):
        raise InputError(f"cluster = {shortened(given)}: give a Cluster or the name of one{why}")
    return given


def named(model: AnyModel, plan: Plan, cluster: AnyCluster) -> tuple[Model, Plan, Cluster]:
    """The objects of what a function takes as its model, its plan and its cluster. `InputError` says
    which of them is something else, and the order."""
    if not isinstance(plan, Plan):
        raise InputError(f"plan = {shortened(plan)}: give a Plan; {ORDER}")
    why = f"; {ORDER}"
    return model_of(model, why), plan, cluster_of(cluster, gpus=plan.gpus, why=why)


def smallest(cluster: Cluster, gpus: int) -> Cluster:
    """So many GPUs of `cluster`'s kind: part of a node, or whole nodes."""
    if gpus <= cluster.gpus_per_node:
        return replace(cluster, gpus_per_node=gpus)
    if gpus % cluster.gpus_per_node:
        raise InputError(
            f"{gpus} GPUs are not whole nodes of {cluster.gpus_per_node}: say --nodes, or take other degrees"
        )
    return replace(cluster, nodes=gpus // cluster.gpus_per_node)
