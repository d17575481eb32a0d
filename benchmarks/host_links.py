"""It measures the links of two hosts by themselves and describes them as a cluster."""

import json
import os
from dataclasses import replace

from simlab import Fabric, load_cluster

MEASURED_BYTES = (4_096, 65_536, 262_144)
"""The sizes of the messages and buffers that are timed."""
BUDGET_S = 0.3
"""The time for which each kind of sample is taken."""
LEAST = 1e-12
"""Seconds per byte, where larger buffers took no longer, which is noise. Such a bandwidth is reported
as None."""


def print_links():
    """Measure the links as one rank that torchrun has started; rank 0 prints the samples."""
    from datetime import timedelta

    import torch.distributed as dist

    from realrun.launch.worker import Rank

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))
    member = Rank(rank, world, int(os.environ["LOCAL_RANK"]), store, "cpu")
    samples = member.links(MEASURED_BYTES, BUDGET_S, say=lambda text: None)
    member.leave()
    if samples is not None:
        print(json.dumps(samples))


def link_facts(samples, kind):
    """The fields of a `Fabric` from timed messages and all-reduces of two ranks.

    Each of them is a straight line over the number of bytes S:

    message           = base + hop + S / (message efficiency x bandwidth)
    all-reduce of two = base + 2 hop + S / bandwidth
    """
    from realrun.measure.machine.regression import nonnegative_fit

    lines = {}
    for name in ("p2p", "all_reduce"):
        points = [
            (sample["size_bytes"], sample["seconds"])
            for sample in samples
            if sample["kind"] == name
        ]
        lines[name] = nonnegative_fit(
            [[1.0, size] for size, _ in points], [seconds for _, seconds in points]
        )
    (message_s, message_byte_s), (reduce_s, reduce_byte_s) = (
        (start_s, max(byte_s, LEAST)) for start_s, byte_s in lines.values()
    )
    hop_s = min(message_s, max(0.0, reduce_s - message_s))
    return {
        "kind": kind,
        "bandwidth_bytes_per_s": 1 / reduce_byte_s,
        "message_efficiency": min(1.0, reduce_byte_s / message_byte_s),
        "base_s": max(0.0, reduce_s - 2 * hop_s),
        "hop_s": hop_s,
        "protocols": ["Simple"],
        "source": "measured, two processes",
    }


def measured_cluster(hosts, out):
    """The `Cluster` of two hosts with two processes each, from measured links.

    The samples are written to links.json in the folder `out`.
    """
    inside = json.loads(
        hosts.launch("--links", on=(0,), processes=2, module="benchmarks.two_hosts")
    )
    across = json.loads(
        hosts.launch("--links", on=(0, 1), processes=1, module="benchmarks.two_hosts")
    )
    blank = load_cluster("laptop")
    cluster = replace(
        blank,
        name="two hosts",
        nodes=2,
        gpus_per_node=2,
        nics_per_node=1,
        intra=Fabric(**link_facts(inside, "loopback")),
        inter=Fabric(**link_facts(across, "network")),
        source="benchmarks/two_hosts.py",
    )
    (out / "links.json").write_text(
        json.dumps({"inside": inside, "across": across}, indent=1), encoding="utf-8"
    )
    return cluster
