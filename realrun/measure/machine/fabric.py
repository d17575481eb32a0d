"""The `Fabric` that explains the samples of links best."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from realrun.measure.machine.comparison import node_s
from realrun.measure.machine.regression import nonnegative_fit
from realrun.measure.machine.sample import Sample
from simlab.spec.cluster import clusters
from simlab.spec.fabric import Fabric
from simlab.spec.hardware import UNSEEN

FASTEST_PCIE = 63e9
"""Bytes per second of PCIe 5.0 x16, one direction: what is faster between two GPUs is NVLink."""


MESSAGES = ("p2p", "all_to_all")
"""Those that go at a fabric's `message_efficiency`, not at a ring's."""


NO_LIMIT = 1e30


def fitted_fabric(samples: Sequence[Sample], about: dict[str, Any], said: str) -> dict[str, Any]:
    """The facts of the `Fabric` inside the machine. Its time is linear in what is fitted, see
    simlab/collectives/nccl.py: the latencies of base, hop and message, and the seconds per byte of
    a ring, of messages and of copying. about: see `node.description`; said: the source of the
    figures."""
    used = [
        sample
        for sample in samples
        if not (about["backend"] == "gloo" and sample.kind == "reduce_scatter")
    ]
    if not used:
        return _facts_of_fabric(
            "loopback" if about["sms"] == 1 else "pcie",
            [0.0] * 6,
            "not measured: there is one rank",
        )
    rows = [_columns(sample) for sample in used]
    solution = nonnegative_fit(rows, [sample.seconds for sample in used])
    fast = max(
        sample.sizes["size_bytes"] / sample.seconds for sample in used if sample.kind == "p2p"
    )
    kind = "loopback" if about["backend"] == "gloo" else "nvlink" if fast > FASTEST_PCIE else "pcie"
    note = (
        "; gloo's reduce-scatter is an all-reduce and a copy, not a ring's: measured, not fitted"
        if about["backend"] == "gloo"
        else ""
    )
    return _facts_of_fabric(
        kind, solution, said + "; one straight line for all protocols and sizes" + note
    )


def _facts_of_fabric(kind: str, solution: Sequence[float], source: str) -> dict[str, Any]:
    base_s, hop_s, message_s, *per_byte = solution
    ring, message, copy = (
        min(1 / seconds, UNSEEN) if seconds > 0 else UNSEEN for seconds in per_byte
    )
    # larger messages took no longer: noise, for a wire they have
    message = ring if message == UNSEEN else message
    top = max(ring, message)
    facts = {
        "kind": kind,
        "bandwidth_bytes_per_s": top,
        "efficiency": ring / top,
        "message_efficiency": message / top,
        "base_s": base_s,
        "hop_s": hop_s,
        "message_s": message_s,
        "protocols": ["Simple"],
        "source": source,
    }
    return facts | ({"copy_bytes_per_s": copy} if copy < UNSEEN else {})


def _columns(sample: Sample) -> list[float]:
    """The seconds of `sample` for a second of base, of a hop and of a message, and for a second per
    byte of a ring, of messages and of copying."""
    nothing: dict[str, Any] = {
        "kind": "loopback",
        "bandwidth_bytes_per_s": NO_LIMIT,
        "message_s": 0.0,
        "protocols": ("Simple",),
        "source": "a unit",
    }
    latencies = [
        _link_s(sample, Fabric(**nothing | {name: 1.0}))
        for name in ("base_s", "hop_s", "message_s")
    ]
    byte_s = _link_s(sample, Fabric(**nothing | {"bandwidth_bytes_per_s": 1.0}))
    copy_s = _link_s(sample, Fabric(**nothing | {"copy_bytes_per_s": 1.0}))
    return [*latencies, *((0.0, byte_s) if sample.kind in MESSAGES else (byte_s, 0.0)), copy_s]


def _link_s(sample: Sample, fabric: Fabric) -> float:
    ranks = sample.sizes["ranks"]
    return node_s(sample, replace(clusters()["laptop"], gpus_per_node=ranks, intra=fabric))
