"""What the file of a cluster of one's own leaves out, and which of its figures are doubtful beside the
catalogue."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from math import log
from typing import Any, NamedTuple

from simlab.cost.roofline import nearest
from simlab.errors import number
from simlab.spec.cluster import Cluster, cluster_of_gpu, cluster_with_gpu, clusters, gpus
from simlab.spec.fabric import Fabric
from simlab.spec.hardware import PLAUSIBLE, Gpu

FAR = 3
"""How many times as large, or as small, a figure is that is named."""
FAR_OF_GPU = 1.9
"""The same of a GPU's own figures, where its name is that of one in the catalogue."""
TWICE = 1.9, 2.1
"""Between these a figure is twice another one."""
EIGHT_TIMES = 7.5, 8.5


class _Ideal(NamedTuple):
    """A field of a fabric that is taken as ideal where a file leaves it out."""

    name: str
    value: str
    measure: str
    """Where a measured value comes from."""
    is_asked: Callable[[str, Fabric], bool] = lambda level, its: True
    """Whether it is a matter of the fabric of a level, "intra" or "inter"."""


IDEAL = (
    _Ideal(
        "efficiency",
        "1, all of the bandwidth",
        "busbw of large messages in nccl-tests' all_reduce_perf, by the bandwidth",
    ),
    _Ideal("base_s", "0 s", "time of 8 bytes on 2 GPUs in nccl-tests' all_reduce_perf"),
    _Ideal("hop_s", "0 s", "how much of that time each further GPU adds"),
    _Ideal(
        "islands",
        "0, all GPUs behind one root complex",
        "`nvidia-smi topo -m`, in which NODE and SYS are borders",
        lambda level, its: its.kind == "pcie",
    ),
    _Ideal(
        "island_bandwidth_bytes_per_s",
        "as much between islands as within one",
        "bandwidth of p2pBandwidthLatencyTest in CUDA's samples between GPUs of two of them",
        lambda level, its: its.islands > 1,
    ),
    _Ideal(
        "oversubscription",
        "1, a network that never blocks",
        "uplinks of a switch by its ports, which who built it knows",
        lambda level, its: level == "inter",
    ),
)


def left_out(facts: Mapping[str, Any], own: Cluster, near: Cluster) -> Iterator[str]:
    """A sentence about each figure that the file of a cluster, `facts`, leaves out and that is thus taken
    as ideal: the value, that of the `near` cluster, and where to get a measured one."""
    for level in ("intra", "inter"):
        if level == "intra" and own.gpus_per_node == 1:
            continue  # nothing uses it
        its, other = getattr(own, level), getattr(near, level)
        for name, value, measure, is_asked in IDEAL:
            if name not in facts.get(level, {}) and is_asked(level, its):
                differs = other.kind == its.kind and getattr(other, name) != getattr(its, name)
                has = f"; {near.name} has {getattr(other, name):g}" * differs
                yield f"{level}: {name} is left out, so {value}{has}. To measure it: {measure}"
    names = ("pcie_bytes_per_s", "nvme_bytes_per_s", "host_memory_bytes")
    if missing := [name for name in names if not getattr(own, name)]:
        yield f"{', '.join(missing)}: not known, as left out; plans that offload are refused"


def cluster_like(name: str) -> Cluster:
    """The cluster of the catalogue with the GPU of that name, see `cluster_with_gpu`; of a GPU that is in none
    of them, the one with the nearest GPU, and this GPU in its place."""
    if name not in gpus() or name in _built():
        return cluster_with_gpu(name, "--gpu")
    near = nearest(gpus()[name], _built())
    return replace(
        next(its for its in clusters().values() if its.gpu.name == near), gpu=gpus()[name]
    )


def _built() -> frozenset[str]:
    """The names of the GPUs of the catalogue's clusters."""
    return frozenset(its.gpu.name for its in clusters().values())


def copied(
    facts: Mapping[str, Any], near: Cluster, given: Collection[str] = ()
) -> dict[str, list[str]]:
    """{'', 'gpu', 'intra' or 'inter': [name = value of each figure that the file of a cluster, `facts`, has
    and that is the same as that of the `near` cluster]}: whoever wrote it may have copied it.

    given: where those stand that are known to be one's own, as in 'inter: bandwidth_bytes_per_s'.
    """
    parts = {"": (facts, near.to_dict())}
    for level in ("gpu", "intra", "inter"):
        its = facts.get(level)
        parts[level] = its if isinstance(its, dict) else {}, parts[""][1][level]
    found: dict[str, list[str]] = {}
    for level, (its, others) in parts.items():
        for name, value in its.items():
            where = f"{level}: {name}" if level else name
            if number(value) and value == others.get(name) and where not in given:
                found.setdefault(level, []).append(f"{name} = {value:g}")
    return found


def nearest_cluster(own: Cluster) -> Cluster:
    """The cluster of the catalogue that has the same GPU, or the nearest, and of these the most like it."""
    named = _namesake(own.gpu)
    if named is None and _sparse(own.gpu, _built_alike(own.gpu)):
        named = _built_alike(own.gpu)  # by its peaks it is nearest to one that is twice as fast
    name = named.name if named and named.name in _built() else nearest(own.gpu, _built())
    alike = [its for its in clusters().values() if its.gpu.name == name]

    def apart(other: Cluster) -> tuple[int, float]:
        figures = dict(_figures(own, own.gpus_per_node))
        shared = [(value, figures.get(name)) for name, value in _figures(other, own.gpus_per_node)]
        logs = [abs(log(one / value)) for value, one in shared if value and one]
        return len([*doubtful(own, other)]), sum(logs)

    return min(alike, key=apart)


def doubtful(own: Cluster, near: Cluster) -> Iterator[str]:
    """A sentence about each figure that is far from that of the `near` cluster, or is probably a usual
    mistake: a peak with sparsity, both directions of a link added, bits for bytes."""
    if sparse := _sparse(own.gpu, near.gpu):
        yield _sparse_text(sparse, own.gpu, near.gpu)
    others = dict(_figures(near, own.gpus_per_node))
    is_known, is_one_kind = bool(_namesake(own.gpu)), own.intra.kind == near.intra.kind
    for place, value in _figures(own, own.gpus_per_node):
        level, name = place[0], place[-1]
        other = others.get(place)
        if not other or not value or (level == "intra" and not is_one_kind) or name in sparse:
            continue
        ratio, it_is = value / other, f"{': '.join(place)} = {value:g} is"
        far = FAR_OF_GPU if is_known and level == "gpu" and name != "memory_bytes" else FAR
        if place in BOTH_WAYS and _between(ratio, TWICE):
            yield f"{it_is} twice the {other:g} of one direction: are both added? Give one"
        elif level == "inter" and _between(ratio, EIGHT_TIMES):
            yield f"{it_is} 8 times {other:g}: are these bits per second? Give bytes"
        elif not 1 / far <= ratio <= far:
            yield f"{it_is} {ratio:.2g} times {other:g}"


Place = tuple[str, ...]
"""Where a figure stands in a file: the names of the objects around it, and its own."""
INTRA_BANDWIDTH = "intra", "bandwidth_bytes_per_s"
BOTH_WAYS: tuple[Place, ...] = (INTRA_BANDWIDTH, ("pcie_bytes_per_s",))
"""Figures that data sheets give for both directions together."""


def _between(ratio: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= ratio <= bounds[1]


def _figures(its: Cluster, ranks: int) -> Iterator[tuple[Place, float]]:
    """(where it stands, its value) of each figure that is compared. The bandwidth within a node is that of
    all rings among so many ranks, for one kind of GPU is described by one fast ring or by several."""

    def within(facts: Mapping[str, Any], where: Place) -> Iterator[tuple[Place, float]]:
        for name, value in facts.items():
            if isinstance(value, dict) and name in ("gpu", "intra", "inter", "peak_flops"):
                yield from within(value, (*where, name))
            elif name in PLAUSIBLE or where == ("gpu", "peak_flops"):
                yield (*where, name), value

    rings = replace(its.intra, efficiency=1.0, islands=0).ring_bandwidth_bytes_per_s(ranks)
    yield from {**dict(within(its.to_dict(), ())), INTRA_BANDWIDTH: rings}.items()


def _namesake(gpu: Gpu) -> Gpu | None:
    """The GPU of the catalogue that has the same name or one that is spelt otherwise."""
    spelt = cluster_of_gpu(gpu.name)
    return gpus().get(gpu.name) or (clusters()[spelt].gpu if spelt else None)


def _built_alike(gpu: Gpu) -> Gpu:
    """The GPU of the catalogue that is nearest in what no data sheet counts with sparsity."""

    def figures(its: Gpu) -> dict[str, float]:
        names = "sms", "memory_bytes", "memory_bandwidth_bytes_per_s"
        fp32 = {"fp32": its.peak_flops["fp32"]} if "fp32" in its.peak_flops else {}
        return fp32 | {name: getattr(its, name) for name in names}

    def distance(other: Gpu) -> float:
        own, its = figures(gpu), figures(other)
        return sum(abs(log(value / its[name])) for name, value in own.items())

    return min(gpus().values(), key=distance)


def _sparse(gpu: Gpu, other: Gpu) -> list[str]:
    """The precisions whose peak is twice the dense one of another GPU: as it stands, or beside the peak in
    fp32, which tells multiprocessors and clocks apart and is never counted with sparsity. What has tf32 or
    fp8 can skip zeros; older GPUs cannot."""
    own, dense = gpu.peak_flops, other.peak_flops
    if not {"tf32", "fp8"} & {*dense}:
        return []
    size = own["fp32"] / dense["fp32"] if "fp32" in own else gpu.sms / other.sms
    ratios = {kind: own[kind] / dense[kind] for kind in dense if kind in own and kind != "fp32"}
    return [
        kind
        for kind, ratio in ratios.items()
        if _between(ratio, TWICE) or _between(ratio / size, TWICE)
    ]


def _sparse_text(kinds: list[str], gpu: Gpu, other: Gpu) -> str:
    its = "bf16" if "bf16" in kinds else kinds[0]
    own, dense = gpu.peak_flops[its], other.peak_flops[its]
    size = "" if _between(own / dense, TWICE) else ", for its size,"
    others = ", ".join(kind for kind in kinds if kind != its)
    also = f" ({others}, too)" * bool(others)
    return (
        f"gpu: peak_flops: {its} = {own:g} is{size} twice the dense peak of {other.name}, {dense:g}{also}: is this "
        "the sparse figure? Data sheets print it; give the dense one, half of it"
    )
