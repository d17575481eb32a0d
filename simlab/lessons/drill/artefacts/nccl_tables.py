"""A table of nccl-tests, made: all-reduces of growing size over four nodes, of a cluster that may have a
fault."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import log
from random import Random

from simlab.collectives import busbw_factor
from simlab.cost import GroupShape, collective_s
from simlab.lessons.drill.artefacts.artefact import Artefact
from simlab.lessons.prediction import Choice
from simlab.spec.cluster import Cluster, load_cluster

FAULTS = ("healthy", "half", "latency", "nvlink")
"""Nothing; NICs at half their bandwidth; a network of high latency; NVLink that is not used."""
NODES, GPUS = 4, 8
SIZES = tuple(2**power for power in range(16, 34, 2))
NOISE = 0.04


def nccl_table(random: Random) -> Artefact:
    """A table of nccl-tests to read."""
    times = measured(random, random.choice(FAULTS))
    found = diagnosis(times)
    return Artefact(
        rows=_rows(times),
        fields={"cause": Choice(*FAULTS)},
        answer={"cause": found},
        faults=(found,),
    )


def measured(random: Random, fault: str) -> list[float]:
    """The times of all-reduces of `SIZES` bytes, in seconds, with noise."""
    return [one * random.uniform(1 - NOISE, 1 + NOISE) for one in _times(fault)]


def diagnosis(times_s: Sequence[float]) -> str:
    """The fault whose predicted times, of all-reduces of `SIZES` bytes, are nearest to those measured."""

    def distance(fault: str) -> float:
        return sum(abs(log(time / its)) for time, its in zip(times_s, _times(fault)))

    return min(FAULTS, key=distance)


@cache
def _times(fault: str) -> list[float]:
    group = GroupShape(NODES * GPUS, GPUS)
    return [collective_s("all_reduce", size, group, _cluster(fault)) for size in SIZES]


def _cluster(fault: str) -> Cluster:
    good = load_cluster("dgx-h100", NODES)
    inter, intra = good.inter, good.intra
    if fault == "half":
        inter = replace(inter, bandwidth_bytes_per_s=inter.bandwidth_bytes_per_s / 2)
    if fault == "latency":
        inter = replace(inter, hop_s=10 * inter.hop_s)
    if fault == "nvlink":
        intra = replace(intra, bandwidth_bytes_per_s=good.known("pcie_bytes_per_s") / 8)
    return replace(good, inter=inter, intra=intra)


def _rows(times_s: Sequence[float]) -> list[list[str]]:
    rows = [["size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)"]]
    factor = busbw_factor("all-reduce", NODES * GPUS)
    for size, seconds in zip(SIZES, times_s):
        rate = size / seconds / 1e9
        rows.append([str(size), f"{1e6 * seconds:.1f}", f"{rate:.2f}", f"{factor * rate:.2f}"])
    return rows
