"""The command catalog: the models and clusters that come with simlab, as text and as JSON."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from simlab.cli.output import print_text
from simlab.spec.cluster import clusters
from simlab.spec.model import catalogue
from simlab.units import GIB


def catalog(arguments: argparse.Namespace) -> int:
    """List the models and the clusters that come with simlab."""
    if arguments.json:
        print(catalog_json())
    else:
        print_text(catalog_text())
    return 0


def add_catalog(command: argparse.ArgumentParser) -> None:
    """`catalog` has no arguments of its own."""


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


def catalog_json() -> str:
    """{"models": {name: facts}, "clusters": {name: facts}} as JSON; a figure that is infinite is
    null."""
    models = {
        name: vars(model)
        | {"parameters": model.parameters, "active_parameters": model.active_parameters}
        for name, model in catalogue().items()
    }
    facts = {
        name: _finite(asdict(cluster) | {"gpus": cluster.gpus})
        for name, cluster in clusters().items()
    }
    return json.dumps({"models": models, "clusters": facts}, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _finite(part) for key, part in value.items() if key not in ("more", "measured")
        }
    return None if value == float("inf") else value
