"""The command catalog: the models and clusters that come with simlab, as text and as JSON."""

import argparse
from typing import Annotated, Any, TypedDict

from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, print_text
from simlab.schema import object_schema
from simlab.spec.cluster import Cluster, clusters
from simlab.spec.model import Model, catalogue
from simlab.units import GIB

LEFT_OUT = ("more", "measured")
"""Fields of a cluster that those of the catalogue leave empty."""


class OfModel(TypedDict):
    """What is said of a model beside its fields."""

    parameters: float
    active_parameters: float


class OfCluster(TypedDict):
    """What is said of a cluster beside its fields."""

    gpus: int


class Answer(TypedDict):
    """The catalogue. A figure that is infinite is null."""

    models: dict[str, Annotated[dict[str, Any], Model, OfModel]]
    clusters: dict[str, Annotated[dict[str, Any], object_schema(Cluster, LEFT_OUT), OfCluster]]


def catalog(arguments: argparse.Namespace) -> int:
    """List the models and the clusters that come with simlab."""
    if arguments.json:
        print_json(catalog_facts())
    else:
        print_text(catalog_text())
    return 0


def add_catalog(command: argparse.ArgumentParser) -> None:
    """`catalog` has no arguments of its own."""
    add_json_options(command, Answer)


def catalog_text() -> str:
    """Two tables: models, clusters."""
    lines = ["models"]
    for name, model in catalogue().items():
        experts = (
            f", {model.experts} experts, {model.active_parameters / 1e9:.3g} B active"
            if model.experts
            else ""
        )
        sizes = f"{model.layers} layers, hidden {model.hidden}, {model.heads} heads ({model.kv_heads} kv), vocabulary {model.vocab}"
        lines.append(
            f"{name:<16} {model.parameters / 1e9:>8.4g} B parameters: {sizes}{experts} [{model.source}]"
        )
    lines += ["", "clusters, per node; GB/s in one direction"]
    for name, cluster in clusters().items():
        gpu = cluster.gpu
        precision = "bf16" if "bf16" in gpu.peak_flops else [*gpu.peak_flops][-1]
        peak = f"{gpu.peak(precision) / 1e12:.4g} TFLOP/s {precision}"
        of_gpu = f"{cluster.gpus_per_node} x {gpu.name}: {gpu.memory_bytes / GIB:.0f} GiB, {peak}"
        intra = f"{cluster.intra.kind} {cluster.intra.bandwidth_bytes_per_s / 1e9:g} GB/s per {'ring' if cluster.intra.rings else 'GPU'}"
        inter = f"{cluster.nics_per_node} x {cluster.inter.bandwidth_bytes_per_s / 1e9:g} GB/s between nodes"
        lines.append(f"{name:<16} {of_gpu}; {intra}, {inter} [{cluster.source}]")
    return "\n".join(lines)


def catalog_facts() -> Answer:
    """{"models": {name: facts}, "clusters": {name: facts}}."""
    models = {
        name: model.to_dict()
        | {"parameters": model.parameters, "active_parameters": model.active_parameters}
        for name, model in catalogue().items()
    }
    facts = {
        name: cluster.to_dict() | {"gpus": cluster.gpus} for name, cluster in clusters().items()
    }
    for name in LEFT_OUT:
        for its in facts.values():
            del its[name]
    return {"models": models, "clusters": facts}
