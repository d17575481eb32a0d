"""The figures of data/clusters.json against the published collectives they are fitted to.

    python -m benchmarks.fit_collectives              errors per machine, table and number of ranks
    python -m benchmarks.fit_collectives --fit NAME   fit the figures of cluster NAME anew, print
    them

A description of a machine is a handful of numbers (efficiency, latency of a hop, ...), the same for
all sizes and all numbers of ranks; here they are found by coordinate search on the mean error of
the logarithms, each octave of sizes counting the same.
"""

import argparse
import csv
import json
from collections import defaultdict
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from simlab.collectives.group_shape import GroupShape
from simlab.collectives.nccl import collective_s
from simlab.spec.cluster import load_cluster

PUBLISHED = Path(__file__).parents[1] / "tests" / "published"
VTRAIN, SIMAI, SIMUMAX, EFA = (
    "vtrain_nccl_allreduce_intranode.csv",
    "simai_busbw_efficiency.csv",
    "simumax_collective_fits.csv",
    "efa_all_reduce.csv",
)
SMALLEST, LARGEST = 2**20, 2**30
OCTAVES = [2**power for power in range(20, 31)]


class Point(NamedTuple):
    """One published measurement."""

    file: str
    machine: str
    label: str
    kind: str
    size_bytes: float
    group: GroupShape
    seconds: float


def rows(name):
    with open(PUBLISHED / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def vtrain():
    """nccl-tests, out of place: time as it is printed."""
    machine = {"a100": "dgx-a100", "v100": "dgx-v100"}
    for row in rows(VTRAIN):
        n = int(row["n_gpus"])
        seconds = float(row["oop_time_ns"]) * 1e-9
        yield Point(
            VTRAIN,
            machine[row["gpu"]],
            f"{n} ranks",
            "all_reduce",
            float(row["bytes"]),
            GroupShape(n, n),
            seconds,
        )


# SimAI divides by the bandwidth of the narrowest links, as data sheets have it (its calbusbw.cc
# lists what large messages get of them:
# 20.6 of 25 GB/s per NVLink, 48.5 of 50 GB/s per NIC): one GPU's NVLinks within a node and, in
# nvlink_ratio, across nodes; in nic_ratio
# a node's NICs; one NIC in all-to-alls, and where each node has one rank of the group ("Multi 16":
# 16 GPUs, 2 nodes, 8 such groups at
# once). It does not name the machines. NICs of 8 x 400 Gb/s beside NVLinks of an H100, which are
# faster, or of an H800, which are
# slower, are what its code tells apart in that way, and what gives latencies per hop of NCCL's
# size.
NIC = 50e9
SIMAI_TABLES = {
    "nic_ratio": ("dgx-h100", 450e9, 8 * NIC),
    "nvlink_ratio": ("h800", 200e9, 200e9),
    "ata_ratio": ("dgx-h100", 450e9, NIC),
}


def simai():
    for row in rows(SIMAI):
        size, efficiency = float(row["bytes"]), float(row["busbw_efficiency"])
        scale = row["scale"].replace("Muiti", "Multi")
        machine, inside, across = SIMAI_TABLES[row["table"]]
        kind = "all_to_all" if row["table"] == "ata_ratio" else "all_gather"
        if scale == "Multi (NIC)" or (scale.startswith("Multi") and row["table"] != "nic_ratio"):
            continue  # of an unknown number of nodes; and the same column in all three tables
        if scale.startswith("Multi"):
            group, bandwidth = GroupShape(int(scale.split()[1]) // 8, 1), NIC
        elif scale.startswith("1 Node"):
            group, bandwidth = GroupShape(8, 8), inside
        else:
            nodes = int(scale.split("Node")[0])
            group, bandwidth = GroupShape(8 * nodes, 8), across
            if kind == "all_to_all":
                bandwidth *= (8 * nodes - 1) / (8 * nodes - 8)
        seconds = size * (group.size - 1) / group.size / (bandwidth * efficiency)
        yield Point(SIMAI, machine, f"{row['table']} {scale.strip()}", kind, size, group, seconds)


def simumax():
    """Its fits, as its compute_net_op_time reads them: GiB/s, latency per step of a ring, a fixed
    latency on top."""
    kinds = {
        "all_reduce": "all_reduce",
        "all_gather": "all_gather",
        "reduce_scatter": "reduce_scatter",
        "all2all": "all_to_all",
    }
    machine = {"a100_pcie": "a100-pcie", "b200_bf16_ceperm": "dgx-b200"}
    ranks = {
        "intra_node_pcie_8x": [8],
        "intra_node_pcie_4x": [4],
        "intra_node_pcie_2x": [2],
        "high_intra_node": [2, 4, 8],
    }
    for row in rows(SIMUMAX):
        if row["network"] not in ranks or row["op"] not in kinds or not row["efficient_factor"]:
            continue
        for n in ranks[row["network"]]:
            steps = float(row["scale"]) * (n - 1)
            fixed_us = json.loads(row["fixed_latency_us_by_comm_num"] or "{}").get(
                str(n), float(row["fixed_latency_us"] or 0)
            )
            for size in OCTAVES:
                bytes_s = (
                    size
                    * steps
                    / n
                    / (float(row["link_gbps"]) * 2**30 * float(row["efficient_factor"]))
                )
                seconds = bytes_s + (float(row["latency_us"]) * steps + fixed_us) * 1e-6
                yield Point(
                    SIMUMAX,
                    machine[row["system"]],
                    f"{row['op']} {n} ranks",
                    kinds[row["op"]],
                    size,
                    GroupShape(n, n),
                    seconds,
                )


def efa():
    """nccl-tests, as printed, but for two nodes, whose 478 GB/s are more than the NICs carry: NCCL
    sums in the switches of both (NVLSTree), which is left out here. Up to 8 GiB, so it is no part of
    `points`: efficiency and hop_s of aws-p5 make the mean |error| of these smallest on a grid."""
    for row in rows(EFA):
        nodes, size = int(row["nodes"]), int(row["megabytes"]) * 2**20
        if nodes > 2:
            n = 8 * nodes
            seconds = 2 * (n - 1) / n * size / (float(row["busbw_gb_per_s"]) * 1e9)
            group = GroupShape(n, 8)
            yield Point(EFA, "aws-p5", f"{nodes} nodes", "all_reduce", size, group, seconds)


def points(file=None):
    """All measurements of 1 MB to 1 GB, of one file or of all."""
    together = [*vtrain(), *simai(), *simumax()]
    return [p for p in together if SMALLEST <= p.size_bytes <= LARGEST and file in (None, p.file)]


def errors(some, cluster_of=None):
    """[predicted / measured - 1] of some points."""
    cluster_of = cluster_of or {p.machine: load_cluster(p.machine, nodes=128) for p in some}
    return [
        collective_s(p.kind, p.size_bytes, p.group, cluster_of[p.machine]) / p.seconds - 1
        for p in some
    ]


def table():
    """[(file, machine, label, points, median |error|, mean error, worst)] of every curve."""
    curves = defaultdict(list)
    for p in points():
        curves[p.file, p.machine, p.label].append(p)
    lines = []
    for key, some in curves.items():
        its = errors(some)
        lines.append((*key, len(some), median(map(abs, its)), fmean(its), max(its, key=abs)))
    return lines


# fitting
# --------------------------------------------------------------------------------------------------

FITTED = {  # figures within a node, figures between nodes
    "dgx-a100": (("efficiency", "base_s", "hop_s", "copy_bytes_per_s"), ()),
    "dgx-v100": (("efficiency", "base_s", "hop_s"), ()),
    # SimAI's tables begin at 16 MB, which says nothing of base_s
    "dgx-h100": (
        ("efficiency", "hop_s", "message_s", "message_efficiency"),
        ("efficiency", "message_efficiency", "hop_s", "message_s"),
    ),
    "h800": (("efficiency", "hop_s"), ("hop_s",)),
    "a100-pcie": (
        (
            "efficiency",
            "message_efficiency",
            "base_s",
            "hop_s",
            "message_s",
            "island_bandwidth_bytes_per_s",
        ),
        (),
    ),
    "dgx-b200": (("efficiency", "message_efficiency", "base_s", "hop_s"), ()),
}


def fit(name):
    """The `FITTED` figures of cluster `name` that make the mean |log error| smallest, by coordinate
    search."""
    cluster, some = load_cluster(name, nodes=128), [p for p in points() if p.machine == name]
    octaves = defaultdict(list)
    for p in some:
        octaves[p.label, int(log(p.size_bytes, 2))].append(p)
    # vTrain has a point every MB
    octaves = {key: its[:: max(1, len(its) // 8)] for key, its in octaves.items()}

    def cost(candidate):
        return fmean(
            fmean(abs(log(1 + e)) for e in errors(its, {name: candidate}))
            for its in octaves.values()
        )

    figures = [
        (level, figure)
        for level, of_level in zip(("intra", "inter"), FITTED[name])
        for figure in of_level
    ]
    best, step = cost(cluster), 0.3
    while step > 0.003:
        better = False
        for level, figure in figures:
            for factor in (1 + step, 1 / (1 + step)):
                fabric = getattr(cluster, level)
                value = getattr(fabric, figure) * factor
                if "efficiency" in figure and value > 1:
                    continue
                candidate = replace(cluster, **{level: replace(fabric, **{figure: value})})
                if (now := cost(candidate)) < best * (1 - 1e-6):
                    best, cluster, better = now, candidate, True
        step = step if better else step / 2
    return {"mean |log error|": best} | {
        f"{level}.{figure}": getattr(getattr(cluster, level), figure) for level, figure in figures
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", metavar="NAME", choices=FITTED)
    name = parser.parse_args().fit
    if name:
        print(json.dumps(fit(name), indent=1))
        return
    lines = table()
    for file in (VTRAIN, SIMAI, SIMUMAX):
        print(f"{file}: median |error| {median(map(abs, errors(points(file)))):.1%}")
        for of, machine, label, count, middle, mean, worst in lines:
            if of == file:
                its = f"median |error| {middle:>6.1%}, mean {mean:>+7.1%}, worst {worst:>+7.1%}"
                print(f"  {machine:<9} {label:<31} {count:>5} points: {its}")


if __name__ == "__main__":
    main()
