"""Clusters: nodes of GPUs, what joins them, and the catalogue of those that come with simlab
(data/clusters.json, data/gpus.json)."""

import json
import re
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from math import inf, isfinite
from pathlib import Path
from typing import Any

from simlab.display import plain
from simlab.errors import (
    InputError,
    did_you_mean,
    require_positive,
    require_seconds,
    require_source,
    require_whole,
    shortened,
)
from simlab.input_files import MOST_MEASURED_BYTES, read_text
from simlab.spec.fabric import Fabric
from simlab.spec.fields import documented, with_field_docs
from simlab.spec.hardware import Efficiency, Gpu, require_plausible
from simlab.units import GIB

_KINDS = {
    "name": str,
    "intra": Fabric,
    "inter": Fabric,
    "measured": dict,
    "checks_collectives": bool,
}
NOT_KNOWN = "0 stands for not known: a plan that uses it is refused."
_A = {str: "a text", bool: "True or False", Fabric: "a Fabric", dict: "an object"}


@with_field_docs
@dataclass(frozen=True, kw_only=True, repr=False)
class Cluster:
    """Equal nodes of GPUs and the links between them. Ranks fill one node after the other."""

    name: str = documented("The name under which the cluster is shown.")
    gpu: Gpu = documented("The kind of GPU in every node, or its name in the catalogue.")
    gpus_per_node: int = documented("The number of GPUs in a node.")
    nodes: int = documented("The number of nodes.", default=1)
    intra: Fabric = documented("The fabric between the GPUs of a node, with one port per GPU.")
    inter: Fabric = documented("The fabric between nodes, with one port per NIC.")
    nics_per_node: int = documented("The number of network interfaces of a node.")
    pcie_bytes_per_s: float = documented(
        f"The bandwidth between a GPU and its host's memory in one direction. {NOT_KNOWN}",
        default=0.0,
    )
    nvme_bytes_per_s: float = documented(
        f"The rate at which a node writes to its own drives. Reading is at least as fast. {NOT_KNOWN}",
        default=0.0,
    )
    host_memory_bytes: float = documented(f"The memory of a node's host. {NOT_KNOWN}", default=0.0)
    host_op_s: float | None = documented(
        """The time that a host needs to dispatch one op of torch's. None stands for
        `simlab.cost.communication_times.HOST_OP_S`.""",
        default=None,
    )
    checks_collectives: bool = documented(
        """Whether torch's hosts compare what they are about to communicate before each collective
        inside a layer, as TORCH_DISTRIBUTED_DEBUG=DETAIL makes them do. Those of data parallelism,
        a few in a step, are not charged for it.""",
        default=False,
    )
    measured: dict[str, Any] = documented(
        """The samples, versions and device of a cluster that `python -m realrun measure` wrote.
        Nothing is computed from them.""",
        default_factory=dict,
        hash=False,
        compare=False,
        repr=False,
    )
    more: tuple["Cluster", ...] = documented(
        "Further nodes of another kind; `Cluster.mixed` makes such a cluster.", default=()
    )
    source: str = documented("Where the figures are from that belong to no GPU and no fabric.")

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{part.nodes} x {part.gpus_per_node} {part.gpu.name}" for part in self.parts
        )
        return f"Cluster({self.name!r}: {parts})"

    def to_dict(self) -> dict[str, Any]:
        """{field: value} in the types that JSON knows; a GPU, a fabric and further nodes are such
        dictionaries, too."""
        return plain(self)

    def __post_init__(self) -> None:
        if not isinstance(self.gpu, Gpu):
            object.__setattr__(self, "gpu", gpu_called(self.gpu, f"{self.name}: gpu"))
        for name, kind in _KINDS.items():
            if not isinstance(given := getattr(self, name), kind):
                raise InputError(f"{self.name}: {name} = {shortened(given)}: give {_A[kind]}")
        for name in ("gpus_per_node", "nodes", "nics_per_node"):
            require_whole(f"{self.name}: {name}", getattr(self, name))
        for name in ("pcie_bytes_per_s", "nvme_bytes_per_s", "host_memory_bytes"):
            if (given := getattr(self, name)) != 0 or isinstance(given, bool):
                require_positive(f"{self.name}: {name}", given)
        if self.host_op_s is not None:
            require_seconds(f"{self.name}: host_op_s", self.host_op_s)
        if not isinstance(self.more, (list, tuple)) or not all(
            isinstance(part, Cluster) for part in self.more
        ):
            raise InputError(
                f"{self.name}: more = {self.more!r}: give clusters, or nothing: Cluster.mixed joins nodes of several kinds"
            )
        object.__setattr__(self, "more", tuple(self.more))
        require_source(self.name, self.source)

    @property
    def gpu_memory_bytes(self) -> float:
        """The memory of a GPU in bytes; of the smallest where there are several kinds."""
        return min(part.gpu.memory_bytes for part in self.parts)

    @property
    def node_memory_bytes(self) -> float:
        """The memory of a node's host in bytes; of the smallest where there are several kinds."""
        return min(part.known("host_memory_bytes") for part in self.parts)

    def known(self, name: str) -> float:
        """The figure called `name`; `InputError` if it is not known."""
        self.require_known(name)
        return float(getattr(self, name))

    def require_known(self, *names: str) -> None:
        """`InputError` that names those of the figures which are not known."""
        if lacking := [name for name in names if not getattr(self, name)]:
            are, they = ("is", "it") if len(lacking) == 1 else ("are", "them")
            raise InputError(
                f"{self.name}: {' and '.join(lacking)} {are} not known, and this plan uses {they}: give {they}"
            )

    @property
    def parts(self) -> tuple["Cluster", ...]:
        """The clusters of one kind of node that this one is made of."""
        return (replace(self, more=()), *self.more) if self.more else (self,)

    def check_alike(self, what: str) -> None:
        """`InputError` if it has several kinds of nodes: `what` is not told for such."""
        if self.more:
            raise InputError(
                f"{what} on {self.name}: give a cluster of one kind of node, or take `predict`"
            )

    @property
    def gpus(self) -> int:
        """How many GPUs, and so ranks, there are."""
        return sum(part.gpus_per_node * part.nodes for part in self.parts)

    def gpu_of(self, rank: int) -> Gpu:
        """The `Gpu` of `rank`."""
        return self._place(rank)[0].gpu

    def node_of(self, rank: int) -> int:
        """The node of `rank`, counted from 0."""
        return self._place(rank)[1]

    def _place(self, rank: int) -> tuple["Cluster", int]:
        """(the part that `rank` is in, its node)"""
        left, node = rank, 0
        for part in self.parts:
            if 0 <= left < part.gpus_per_node * part.nodes:
                return part, node + left // part.gpus_per_node
            left -= part.gpus_per_node * part.nodes
            node += part.nodes
        raise InputError(f"rank {rank} of {self.name}: it has ranks 0 to {self.gpus - 1}")

    @staticmethod
    def mixed(*clusters: "Cluster") -> "Cluster":
        """One cluster of several kinds of nodes: the ranks of the first come first. All must have
        as many GPUs per node.

        A collective goes at the pace of the slowest kind, which is exact where one kind is slower
        in everything that the collective uses.
        """
        parts = [part for cluster in clusters for part in cluster.parts]
        sizes = sorted({part.gpus_per_node for part in parts})
        if len(clusters) < 2 or len(sizes) != 1:
            raise InputError(
                f"a mixed cluster of {', '.join(c.name for c in clusters)}, {sizes} GPUs per node: give two or more with as many in each"
            )
        return replace(
            parts[0], name="+".join(cluster.name for cluster in clusters), more=tuple(parts[1:])
        )


# the catalogue
# --------------------------------------------------------------------------------------------


def _data(name: str) -> dict[str, Any]:
    return json.loads((files("simlab.spec") / "data" / name).read_text(encoding="utf-8"))


@cache
def gpus() -> dict[str, Gpu]:
    """{name: `Gpu`} of data/gpus.json."""
    return {name: Gpu(name=name, **facts) for name, facts in _data("gpus.json").items()}


@cache
def clusters() -> dict[str, Cluster]:
    """{name: `Cluster`} of data/clusters.json, each of one node."""
    return {name: _cluster(name, facts) for name, facts in _data("clusters.json").items()}


def load_cluster(name: str | Path | Cluster, nodes: int | None = None) -> Cluster:
    """The `Cluster` called `name` in the catalogue, or of a JSON file if `name` is a path to one,
    with `nodes` nodes.

    The file has the keys of an entry of data/clusters.json; `gpu` is a name of data/gpus.json, or
    an object with a `Gpu`'s fields (whose `efficiency` is a name, or one with an `Efficiency`'s). `python -m
    realrun measure` writes such a file of the machine that it runs on.
    nodes: None: as many as the file says; 1 of the catalogue's. A `Cluster` is one already.
    """
    if isinstance(name, Cluster):
        cluster = name
    elif _is_path(name):
        cluster = _from_file(Path(name))
    elif isinstance(name, str) and name in clusters():
        cluster = clusters()[name]
    else:
        hint = _with_gpu(name) or did_you_mean(name, clusters()) or ";"
        raise InputError(
            f"unknown cluster {shortened(name)}{hint} there is {', '.join(clusters())}, or give the path of a JSON file"
        )
    return cluster if nodes is None else replace(cluster, nodes=nodes)


def _with_gpu(name: Any) -> str:
    """', a GPU of dgx-h100, aws-p5;' for the name of a GPU, else ''."""
    try:
        gpu = gpu_called(name)
    except InputError:
        return ""
    having = [each for each, its in clusters().items() if its.gpu == gpu]
    return f", a GPU of {', '.join(having)};" if having else ""


def nodes_of_file(name: str | Path) -> int | None:
    """How many nodes the file that `load_cluster` reads has; None for one that does not say it, and
    for a name of the catalogue."""
    return facts_of_file(Path(name)).get("nodes") if _is_path(name) else None


def _is_path(name: Any) -> bool:
    return isinstance(name, Path) or str(name).endswith(".json") or "/" in str(name)


def cluster_of_gpu(text: str) -> str | None:
    """The name of the catalogue's cluster whose GPU `text` spells (\"A100-SXM4-80GB\", \"NVIDIA
    H100 80GB HBM3\"), or None.

    data/gpu_spellings.json has words that must all occur in the text; of several that fit, the one
    with most words is taken.
    """
    return _spellings().get(_spelling_in(text))


def _spelling_in(text: str) -> str:
    """The longest of the spellings whose words all occur in `text`; '' if there is none."""
    text = re.sub(r"(\d)\s+(gb|gib|w)\b", r"\1\2", str(text).lower())
    words = set(re.findall(r"[a-z0-9]+", text))
    fitting = (each for each in _spellings() if words >= set(each.split()))
    return max(fitting, key=lambda each: len(each.split()), default="")


def cluster_with_gpu(text: Any, what: str = "gpu") -> Cluster:
    """The cluster of the catalogue with the GPU that `text` names, as the catalogue does or as nvidia-smi
    does: "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB".

    Raises `InputError` that begins with `what` if there is none with that memory, or if there are several
    memories and none is named.
    """
    for its in clusters().values():
        if its.gpu.name == text:
            return its
    spelling = _spelling_in(text) if isinstance(text, str) else ""
    if name := _spellings().get(spelling):
        size = re.search(r"(\d{1,4})\s*gi?b\b", text.lower())
        low, high = (0.9e9 * int(size[1]), 1.1 * GIB * int(size[1])) if size else (0.0, inf)
        begin = f"{spelling.replace(' ', '-')}-"
        sizes = [gpu.memory_bytes for each, gpu in gpus().items() if each.startswith(begin)]
        is_told = size or not sizes or max(sizes) <= 1.1 * min(sizes)
        if is_told and low <= clusters()[name].gpu.memory_bytes <= high:
            return clusters()[name]
    hint = did_you_mean(spelling or text, gpus()) or ":"
    raise InputError(
        f"{what} {shortened(text)}{hint} give one of {', '.join(gpus())}, or its figures"
    )


def gpu_called(text: Any, what: str = "gpu") -> Gpu:
    """The `Gpu` of the catalogue that `text` names; see `cluster_with_gpu`."""
    if isinstance(text, str) and text in gpus():
        return gpus()[text]
    return cluster_with_gpu(text, what).gpu


@cache
def _spellings() -> dict[str, Any]:
    return _data("gpu_spellings.json")


def facts_of_file(path: Path) -> dict[str, Any]:
    """The object in the JSON file at `path`. `InputError` if there is none."""
    text = read_text(path, MOST_MEASURED_BYTES)
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a cluster's JSON: {error}") from error
    if not isinstance(facts, dict):
        raise InputError(
            f"{path}: not a cluster's JSON: give an object with its figures, not {shortened(facts)}"
        )
    return facts


def _from_file(path: Path) -> Cluster:
    facts = facts_of_file(path)
    try:
        _require_finite(Cluster, "", facts)
        for part, kind in (("gpu", Gpu), ("intra", Fabric), ("inter", Fabric)):
            _require_finite(kind, f"{part}: ", facts.get(part))
        cluster = _cluster(facts.pop("name", path.stem), facts)
        require_plausible(facts)
        return cluster
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _require_finite(kind: type[Any], part: str, facts: Any) -> None:
    """`InputError` for Infinity and NaN, which Python reads in JSON, and for 1e999, where they are
    not what the field of a `kind` has by itself."""
    endless = {f.name for f in fields(kind) if f.default == inf}
    for key, value in facts.items() if isinstance(facts, dict) else ():
        if isinstance(value, float) and not isfinite(value) and key not in endless:
            raise InputError(f"{part}{key} = {value}: give a finite number")


def _cluster(name: str, facts: dict[str, Any]) -> Cluster:
    facts = dict(facts)
    gpu = facts.get("gpu")
    if isinstance(gpu, dict):
        efficiency = gpu.get("efficiency")
        if efficiency is not None and not isinstance(efficiency, str):
            efficiency = _made(Efficiency, f"{name}: gpu: efficiency", efficiency)
        named = {"name": f"{name}'s", **gpu, "efficiency": efficiency}
        facts["gpu"] = _made(Gpu, f"{name}: gpu", named)
    else:
        facts["gpu"] = gpu_called(gpu, f"{name}: gpu")
    for level in ("intra", "inter"):
        facts[level] = _made(Fabric, f"{name}: {level}", facts.get(level, {}))
    return _made(Cluster, name, {"name": name, **facts})


def _made(kind: type[Any], what: str, facts: Any) -> Any:
    if not isinstance(facts, dict):
        raise InputError(f"{what} = {shortened(facts)}: give an object with its figures")
    known = {f.name for f in fields(kind)}
    if unknown := sorted(set(facts) - known):
        raise InputError(
            f"{what}: unknown {', '.join(unknown)}; there is {', '.join(sorted(known))}"
        )
    needed = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]
    if lacking := [name for name in needed if name not in facts]:
        raise InputError(
            f"{what}: there is no {' and no '.join(lacking)}, which is needed: give it"
        )
    try:
        return kind(**facts)
    except TypeError as error:
        raise InputError(f"{what}: {error}") from error
