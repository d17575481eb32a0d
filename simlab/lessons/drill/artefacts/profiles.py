"""Profiles of four ranks, made: data parallelism in which something makes the step long."""

from random import Random
from typing import Any

from simlab.diagnosis import diagnose, profile_graph
from simlab.diagnosis.diagnosis import COMMUNICATION, STRAGGLER
from simlab.diagnosis.graph import DATA, HOST
from simlab.lessons.drill.artefacts.artefact import Artefact
from simlab.lessons.prediction import Choice, Number

FAULTS = ("gpu", DATA, "network", HOST)
"""A GPU that is slow, a rank that loads its data slowly, a slow network, and hosts that launch slowly."""
RANKS, STEPS, KERNELS = 4, 3, 24
OF_ALL = -1
"""Who is to blame where no rank is."""
MS, US = 1000.0, 1e-3


def profile(random: Random) -> Artefact:
    """A profile to read."""
    fault, culprit = random.choice(FAULTS), random.randrange(RANKS)
    profiles = made(random, fault, culprit)
    cause, rank = diagnosis(profiles)
    return Artefact(
        rows=_rows(profiles),
        fields={"cause": Choice(*FAULTS), "rank": Number()},
        answer={"cause": cause, "rank": float(rank)},
        faults=(cause,),
        given={"rank": rank},
    )


def diagnosis(profiles: list[dict[str, Any]]) -> tuple[str, int]:
    """What makes the step long, and which rank; `OF_ALL` where no single one."""
    found = diagnose(profile_graph(profiles))
    if found.straggler and found.bottleneck == STRAGGLER:
        return found.straggler.cause, found.straggler.rank
    return {COMMUNICATION: "network"}.get(found.bottleneck, found.bottleneck), OF_ALL


def made(random: Random, fault: str, culprit: int) -> list[dict[str, Any]]:
    """The profile of each rank as torch.profiler writes it: steps, loading, kernels and all-reduces."""
    kernel = random.uniform(1.5, 3.0) * MS
    slower = random.uniform(1.5, 2.0)
    wire = random.uniform(0.1, 0.2) * KERNELS * kernel * (12 if fault == "network" else 1)
    gap = kernel * random.uniform(1.2, 1.6) if fault == HOST else 0.01 * kernel
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    now = 0.0
    for step in range(STEPS):
        entered = []
        for rank, its in enumerate(events):
            mine = rank == culprit
            load = (KERNELS * kernel if mine and fault == DATA else 0.02 * kernel) + 1
            its.append(
                _slice("enumerate(DataLoader)#_Iter.__next__", "user_annotation", 1, now, load)
            )
            at = now + load
            for _ in range(KERNELS):
                takes = kernel * (slower if mine and fault == "gpu" else 1.0)
                takes *= random.uniform(0.99, 1.01)
                its.append(_slice("sm90_xmma_gemm_bf16", "kernel", 7, at, takes))
                at += takes + gap
            entered.append(at)
        done = max(entered) + wire
        for rank, its in enumerate(events):
            its.append(
                _slice(
                    "ncclDevKernel_AllReduce_Sum", "kernel", 20, entered[rank], done - entered[rank]
                )
            )
            its.append(_slice("multi_tensor_adam", "kernel", 7, done, kernel))
            its.append(
                _slice(f"ProfilerStep#{step}", "user_annotation", 1, now, done + kernel - now)
            )
        now = done + kernel
    return [
        {
            "traceEvents": its,
            "distributedInfo": {"rank": rank, "world_size": RANKS},
            "deviceProperties": [{"id": 0}],
        }
        for rank, its in enumerate(events)
    ]


def _slice(name: str, category: str, thread: int, start: float, takes: float) -> dict[str, Any]:
    arguments = {"stream": thread, "device": 0} if category == "kernel" else {}
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread,
        "ts": start, "dur": takes, "args": arguments,
    }  # fmt: skip


def _rows(profiles: list[dict[str, Any]]) -> list[list[str]]:
    """Sums of each rank's slices by name, for one step, as a profiler's table has them."""
    names = {
        "enumerate": "data loader, ms",
        "sm90": "products, ms",
        "multi": "Adam, ms",
        "nccl": "NCCL kernels, ms",
    }
    rows = [["for one step", *(f"rank {rank}" for rank in range(RANKS))]]
    for begin, label in names.items():
        rows.append([label, *(f"{_sum(each, begin):.1f}" for each in profiles)])
    whole = [_sum(each, "ProfilerStep") for each in profiles]
    rest = [step - sum(_sum(each, begin) for begin in names) for step, each in zip(whole, profiles)]
    rows.append(["nothing on the GPU, ms", *(f"{max(0.0, one):.1f}" for one in rest)])
    rows.append(["step, ms", *(f"{one:.1f}" for one in whole)])
    return rows


def _sum(profile: dict[str, Any], begin: str) -> float:
    its = (event["dur"] for event in profile["traceEvents"] if event["name"].startswith(begin))
    return sum(its) * US / STEPS
