"""Clusters: nodes of GPUs, what joins them, and the catalogue of those that come with simlab (data/clusters.json, data/gpus.json)."""

import json
import re
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from simlab.errors import InputError, did_you_mean, require_positive, require_seconds, require_source, require_whole
from simlab.hardware import Efficiency, Fabric, Gpu

_A = {str: "a text", Gpu: "a Gpu", Fabric: "a Fabric"}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`nodes` equal nodes of `gpus_per_node` GPUs. Ranks fill one node after the other."""

    name: str
    gpu: Gpu
    gpus_per_node: int
    nodes: int = 1
    intra: Fabric
    """Between the GPUs of a node: one port per GPU."""
    inter: Fabric
    """Between nodes: one port per NIC."""
    nics_per_node: int
    pcie_bytes_per_s: float
    """Between a GPU and its host's memory, one direction."""
    nvme_bytes_per_s: float
    """What a node writes to its own drives; reading is at least as fast."""
    host_memory_bytes: float
    """Of a node."""
    host_op_s: float | None = None
    """What a host needs to dispatch one op of torch's, s; None: `simlab.cost.stage_times.HOST_OP_S`."""
    measured: dict = field(default_factory=dict, hash=False, compare=False, repr=False)
    """Of a cluster that `python -m realrun measure` wrote: device, versions, threads, every sample. Nothing is computed from it."""
    more: tuple["Cluster", ...] = ()
    """Further nodes, of another kind: see `Cluster.mixed`."""
    source: str
    """Where the figures are from that no GPU and no fabric accounts for."""

    def __post_init__(self):
        for name, kind in (("name", str), ("gpu", Gpu), ("intra", Fabric), ("inter", Fabric)):
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"{self.name}: {name} = {getattr(self, name)!r}: give {_A[kind]}")
        for name in ("gpus_per_node", "nodes", "nics_per_node"):
            require_whole(f"{self.name}: {name}", getattr(self, name))
        for name in ("pcie_bytes_per_s", "nvme_bytes_per_s", "host_memory_bytes"):
            require_positive(f"{self.name}: {name}", getattr(self, name))
        if self.host_op_s is not None:
            require_seconds(f"{self.name}: host_op_s", self.host_op_s)
        if not isinstance(self.more, (list, tuple)) or not all(isinstance(part, Cluster) for part in self.more):
            raise InputError(f"{self.name}: more = {self.more!r}: give clusters, or nothing: Cluster.mixed joins nodes of several kinds")
        object.__setattr__(self, "more", tuple(self.more))
        require_source(self.name, self.source)

    @property
    def parts(self):
        """The clusters of one kind of node that this one is made of."""
        return (replace(self, more=()), *self.more) if self.more else (self,)

    def check_alike(self, what):
        """`InputError` if it has several kinds of nodes: `what` is not told for such."""
        if self.more:
            raise InputError(f"{what} on {self.name}: give a cluster of one kind of node, or take `predict`")

    @property
    def gpus(self):
        """How many GPUs, and so ranks, there are."""
        return sum(part.gpus_per_node * part.nodes for part in self.parts)

    def gpu_of(self, rank):
        """The `Gpu` of `rank`."""
        return self._place(rank)[0].gpu

    def node_of(self, rank):
        """The node of `rank`, counted from 0."""
        return self._place(rank)[1]

    def _place(self, rank):
        """(the part that `rank` is in, its node)"""
        left, node = rank, 0
        for part in self.parts:
            if 0 <= left < part.gpus_per_node * part.nodes:
                return part, node + left // part.gpus_per_node
            left -= part.gpus_per_node * part.nodes
            node += part.nodes
        raise InputError(f"rank {rank} of {self.name}: it has ranks 0 to {self.gpus - 1}")

    @staticmethod
    def mixed(*clusters):
        """One cluster of several kinds of nodes: the ranks of the first come first. All must have as many GPUs per node.

        A collective goes at the pace of the slowest kind, which is exact where one kind is slower in everything that the collective uses.
        """
        parts = [part for cluster in clusters for part in cluster.parts]
        sizes = sorted({part.gpus_per_node for part in parts})
        if len(clusters) < 2 or len(sizes) != 1:
            raise InputError(
                f"a mixed cluster of {', '.join(c.name for c in clusters)}, {sizes} GPUs per node: give two or more with as many in each"
            )
        return replace(parts[0], name="+".join(cluster.name for cluster in clusters), more=tuple(parts[1:]))


# the catalogue --------------------------------------------------------------------------------------------


def _data(name):
    return json.loads((files("simlab") / "data" / name).read_text(encoding="utf-8"))


@cache
def gpus():
    """{name: `Gpu`} of data/gpus.json."""
    return {name: Gpu(name=name, **facts) for name, facts in _data("gpus.json").items()}


@cache
def clusters():
    """{name: `Cluster`} of data/clusters.json, each of one node."""
    return {name: _cluster(name, facts) for name, facts in _data("clusters.json").items()}


def load_cluster(name, nodes=None):
    """The `Cluster` called `name` in the catalogue, or of a JSON file if `name` is a path to one, with `nodes` nodes.

    The file has the keys of an entry of data/clusters.json; `gpu` is a name of data/gpus.json, or an object with a `Gpu`'s fields
    (whose `efficiency` is one with an `Efficiency`'s). `python -m realrun measure` writes such a file of the machine that it runs on.
    nodes: None: as many as the file says; 1 of the catalogue's.
    """
    if _is_path(name):
        cluster = _from_file(Path(name))
    elif name in clusters():
        cluster = clusters()[name]
    else:
        hint = did_you_mean(name, clusters()) or ";"
        raise InputError(f"unknown cluster {name!r}{hint} there is {', '.join(clusters())}, or give the path of a JSON file")
    return cluster if nodes is None else replace(cluster, nodes=nodes)


def nodes_of_file(name):
    """How many nodes the file that `load_cluster` reads has; None for one that does not say it, and for a name of the catalogue."""
    return json.loads(Path(name).read_text(encoding="utf-8")).get("nodes") if _is_path(name) else None


def _is_path(name):
    return isinstance(name, Path) or str(name).endswith(".json") or "/" in str(name)


def cluster_of_gpu(text):
    """The name of the catalogue's cluster whose GPU `text` spells (\"A100-SXM4-80GB\", \"NVIDIA H100 80GB HBM3\"), or None.

    data/gpu_spellings.json has words that must all occur in the text; of several that fit, the one with most words is taken.
    """
    text = re.sub(r"(\d)\s+(gb|gib|w)\b", r"\1\2", str(text).lower())
    words = set(re.findall(r"[a-z0-9]+", text))
    fitting = [(len(spelling.split()), name) for spelling, name in _spellings().items() if words >= set(spelling.split())]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


@cache
def _spellings():
    return _data("gpu_spellings.json")


def _from_file(path):
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return _cluster(facts.pop("name", path.stem), facts)
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        if isinstance(error, InputError):
            raise InputError(f"{path}: {error}") from error
        raise InputError(f"{path}: not a cluster's JSON: {error}") from error


def _cluster(name, facts):
    facts = dict(facts)
    gpu = facts.get("gpu")
    if isinstance(gpu, dict):
        efficiency = gpu.get("efficiency")
        reached = {"efficiency": _made(Efficiency, f"{name}: gpu: efficiency", efficiency)} if efficiency is not None else {}
        facts["gpu"] = _made(Gpu, f"{name}: gpu", {"name": f"{name}'s", **gpu, **reached})
    elif isinstance(gpu, str) and gpu in gpus():
        facts["gpu"] = gpus()[gpu]
    else:
        raise InputError(f"{name}: gpu {gpu!r}: give one of {', '.join(gpus())}, or an object with its figures")
    for level in ("intra", "inter"):
        facts[level] = _made(Fabric, f"{name}: {level}", facts.get(level, {}))
    return _made(Cluster, name, {"name": name, **facts})


def _made(kind, what, facts):
    if not isinstance(facts, dict):
        raise InputError(f"{what} = {facts!r}: give an object with its figures")
    known = {f.name for f in fields(kind)}
    if unknown := sorted(set(facts) - known):
        raise InputError(f"{what}: unknown {', '.join(unknown)}; there is {', '.join(sorted(known))}")
    try:
        return kind(**facts)
    except TypeError as error:
        raise InputError(f"{what}: {str(error).split('__init__() ')[-1]}") from error
