"""The command cluster: a file of one's own cluster from a few facts, and a check of such a file."""

import argparse
import json
from pathlib import Path
from typing import TypedDict

from simlab.cli.options import add_json_options, flag
from simlab.cli.output import print_json, print_text, write_file
from simlab.cost.own_cluster import (
    FAR,
    cluster_like,
    copied,
    doubtful,
    left_out,
    nearest_cluster,
)
from simlab.cost.roofline import assumptions
from simlab.errors import InputError, require_positive, require_whole
from simlab.spec.cluster import Cluster, facts_of_file, load_cluster

GIGABIT = 1e9 / 8


class Answer(TypedDict):
    """A cluster of one's own beside the nearest of the catalogue."""

    cluster: str
    nearest: str
    nodes: int | None
    """How many the file says; nothing if it does not."""
    far: list[str]
    """What is doubtful: far from the nearest, or a usual mistake."""
    assumptions: list[str]
    copied: dict[str, list[str]]
    """{'', 'gpu', 'intra' or 'inter': [figures that are the same as the nearest one's]}"""


def cluster(arguments: argparse.Namespace) -> int:
    """Write the file of a cluster from a few facts (`new`), or check one (`check`).

    What a new file is not told is taken from the nearest cluster of the catalogue, and each source in it
    says so: correct it where you know better. A check says what a file leaves out, with the value that is
    then taken and where to get a measured one, and which figures are the same as those of the nearest
    cluster of the catalogue, as copies are. It exits with 1 if a figure is doubtful beside the nearest one's:
    a peak with sparsity, both directions of a link together, bits for bytes, or three times as large or as
    small.
    """
    given = _write(arguments) if arguments.action == "new" else []
    own, path = load_cluster(arguments.file), Path(arguments.file)
    near = nearest_cluster(own)
    facts = facts_of_file(path) if path.is_file() else own.to_dict()
    far = [*doubtful(own, near)]
    own_gpu = f"{own.gpu.name} is, in the words of its source: {own.gpu.source}"
    taken = [*assumptions(own), *([own_gpu] if own.gpu.efficiency and own.gpu.source else [])]
    told: Answer = {
        "cluster": own.name,
        "nearest": near.name,
        "nodes": facts.get("nodes"),
        "far": far,
        "assumptions": [*taken, *left_out(facts, own, near)],
        "copied": copied(facts, near, given),
    }
    if arguments.json:
        print_json(told)
    else:
        _print(own, told)
    return int(bool(far) and arguments.action == "check")


def _print(own: Cluster, told: Answer) -> None:
    near, nodes = told["nearest"], told["nodes"]
    print_text(
        f"{own.name}: {own.gpus_per_node} x {own.gpu.name} a node; the nearest of the catalogue is {near}"
    )
    if nodes is None:
        print_text(
            "nodes: not said, so that a command takes as many as --nodes says; without it `simlab plan` "
            "searches for one, and a plan that is given takes as many as it needs"
        )
    else:
        print_text(f"nodes: {nodes}, with {own.gpus} GPUs, unless --nodes says another number")
    for one in told["assumptions"]:
        print_text(f"assumed: {one}")
    if told["copied"]:
        print_text(f"the same as {near}'s, as a copy is; correct what your cluster has otherwise:")
    for level, figures in told["copied"].items():
        print_text(f"  {level or 'a node'}: {', '.join(figures)}")
    for one in told["far"]:
        print_text(f"doubtful beside {near}: {one}")
    if not told["far"]:
        print_text(f"no figure is doubtful beside {near}: none is {FAR} times as large or as small")


def _write(arguments: argparse.Namespace) -> list[str]:
    """The file of a new cluster: the nearest one's, with what is given, whose places are returned. One that
    is there was corrected."""
    if Path(arguments.file).exists():
        raise InputError(f"cannot write {arguments.file!r}: it is there: give another name")
    if not arguments.file.endswith(".json"):
        raise InputError(f"cannot write {arguments.file!r}: a cluster's file ends in .json")
    base = cluster_like(arguments.gpu)
    facts = {key: value for key, value in base.to_dict().items() if key not in LEFT_OUT}
    facts |= {"gpu": base.gpu.name, "name": Path(arguments.file).stem}
    counts = {name: getattr(arguments, name) for name in COUNTS}
    given = {name: value for name, value in counts.items() if value is not None}
    for key, value in given.items():
        require_whole(flag(key), value)
    facts |= given
    if (speed := arguments.nic_gbit) is not None:
        require_positive("--nic-gbit", speed)
        if speed > MOST_GBIT:
            raise InputError(f"--nic-gbit {speed:g}: no interface has that; give Gb/s, such as 400")
        facts["inter"]["bandwidth_bytes_per_s"] = speed * GIGABIT
    for part, said in (
        (facts, ", ".join(given)),
        (facts["intra"], ""),
        (facts["inter"], f"bandwidth of {speed:g} Gb/s" if speed is not None else ""),
    ):
        rest = f"{said}: as given; the rest " * bool(said)
        part["source"] = f"{rest}as {base.name}, to be corrected: {part['source']}"
    kept = {key: value for key, value in facts.items() if value is not None}
    for part in ("intra", "inter"):  # what is infinite is so by default
        kept[part] = {k: v for k, v in kept[part].items() if v != float("inf")}
    text = json.dumps(kept, indent=1, allow_nan=False) + "\n"
    write_file(arguments.file, lambda path: path.write_text(text, encoding="utf-8"))
    return [*given, *["inter: bandwidth_bytes_per_s"] * (speed is not None)]


MOST_GBIT = 10_000
COUNTS = "gpus_per_node", "nics_per_node", "nodes"
LEFT_OUT = ("more", "measured", "nodes", "checks_collectives")


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `cluster`."""
    command.add_argument("action", choices=("new", "check"), help="write a file, or check one")
    command.add_argument("file", metavar="X.json", help="the file of the cluster")
    new = command.add_argument_group("new: what is known of it")
    new.add_argument(
        "--gpu",
        default="",
        metavar="NAME",
        help="a GPU of the catalogue, or as nvidia-smi names it (needed)",
    )
    new.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs of a node")
    new.add_argument("--nics-per-node", type=int, metavar="N", help="network interfaces of a node")
    new.add_argument("--nodes", type=int, metavar="N", help="nodes (default: not said)")
    new.add_argument("--nic-gbit", type=float, metavar="X", help="Gb/s of a network interface")
    add_json_options(command, Answer)
