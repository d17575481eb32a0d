"""The file of a cluster, made from the samples of one machine."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from realrun.measure.machine.fabric import fitted_fabric
from realrun.measure.machine.gpu import fitted_gpu
from realrun.measure.machine.sample import Sample
from simlab.spec.cluster import clusters
from simlab.spec.hardware import Gpu


def machine_cluster(
    samples: Iterable[Sample], node: dict[str, Any], about: dict[str, Any]
) -> dict[str, Any]:
    """The facts of a cluster of one node as data/clusters.json has them: a JSON object that
    `simlab.load_cluster` reads.

    samples: those with `fitted` are used. node: {"pcie_bytes_per_s", "nvme_bytes_per_s",
    "memory_bytes", "host_memory_bytes"}. about: see `realrun.measure.machine.node.description`.
    """
    fitted = [sample for sample in samples if sample.fitted]
    said = f"measured: {about['device']}, {about['threads']} thread(s), torch {about['torch']}, {about['backend']}, {about['measured_at']}"
    gpu = fitted_gpu(fitted, node["memory_bytes"], about, said)
    links = [sample for sample in fitted if "ranks" in sample.sizes]
    host = next(sample for sample in fitted if sample.kind == "host")
    return {
        "gpu": _facts(gpu),
        "gpus_per_node": about["ranks"],
        "nics_per_node": 1,
        "intra": fitted_fabric(links, about, said),
        "inter": _unmeasured_network(),
        "pcie_bytes_per_s": node["pcie_bytes_per_s"],
        "nvme_bytes_per_s": node["nvme_bytes_per_s"],
        "host_memory_bytes": node["host_memory_bytes"],
        "host_op_s": host.seconds / host.sizes["ops"],
        "source": said,
        "measured": about | {"samples": [sample._asdict() for sample in samples]},
    }


def _facts(gpu: Gpu) -> dict[str, Any]:
    return {name: value for name, value in asdict(gpu).items() if value is not None}


def _unmeasured_network() -> dict[str, Any]:
    fabric = clusters()["laptop"].inter
    return {
        "kind": fabric.kind,
        "bandwidth_bytes_per_s": fabric.bandwidth_bytes_per_s,
        "efficiency": fabric.efficiency,
        "hop_s": fabric.hop_s,
        "protocols": list(fabric.protocols),
        "source": "not measured, and to be replaced: gigabit Ethernet, TCP",
    }
