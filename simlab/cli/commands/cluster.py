"""The command cluster: a file of one's own cluster from a few facts, and a check of such a file."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, print_text, write_file
from simlab.cost.roofline import assumptions, nearest
from simlab.errors import InputError, did_you_mean, require_positive, require_whole, shortened
from simlab.spec.cluster import Cluster, clusters, gpus, load_cluster
from simlab.spec.hardware import PLAUSIBLE

FAR = 3
"""How many times as large, or as small, a figure is that is named."""
GIGABIT = 1e9 / 8


class Answer(TypedDict):
    """A cluster of one's own beside the nearest of the catalogue."""

    cluster: str
    nearest: str
    far: list[str]
    assumptions: list[str]


def cluster(arguments: argparse.Namespace) -> int:
    """Write the file of a cluster from a few facts (`new`), or check one (`check`).

    What a new file is not told is taken from the nearest cluster of the catalogue, and each source in it
    says so: correct it where you know better. A check compares the figures of a file with those of the
    nearest cluster of the catalogue, names those that are three times as large or as small, and then exits
    with 1.
    """
    if arguments.action == "new":
        _write(arguments)
    own = load_cluster(arguments.file)
    near = _nearest(own)
    far = [*_far(own, near)]
    told: Answer = {
        "cluster": own.name,
        "nearest": near.name,
        "far": far,
        "assumptions": assumptions(own),
    }
    if arguments.json:
        print_json(told)
    else:
        _print(own, told)
    return int(bool(far) and arguments.action == "check")


def _print(own: Cluster, told: Answer) -> None:
    near = told["nearest"]
    print_text(
        f"{own.name}: {own.gpus_per_node} x {own.gpu.name} a node; the nearest of the catalogue is {near}"
    )
    for one in told["assumptions"]:
        print_text(f"assumed: {one}")
    for one in told["far"]:
        print_text(f"far from {near}: {one}")
    if not told["far"]:
        print_text(f"no figure is {FAR} times as large or as small as one of {near}")


def _write(arguments: argparse.Namespace) -> None:
    """The file of a new cluster: the nearest one's, with what is given. One that is there was corrected."""
    if Path(arguments.file).exists():
        raise InputError(f"cannot write {arguments.file!r}: it is there: give another name")
    if (name := arguments.gpu) not in gpus():
        hint = did_you_mean(name, gpus()) or ";"
        raise InputError(f"--gpu {shortened(name)}{hint} there is {', '.join(gpus())}")
    base = next(its for its in clusters().values() if its.gpu.name == name)
    facts = {key: value for key, value in base.to_dict().items() if key not in LEFT_OUT}
    facts |= {"gpu": name, "name": arguments.file.rsplit("/", 1)[-1].removesuffix(".json")}
    source = f"as {base.name}, to be corrected: {{}}"
    for part in (facts, facts["intra"], facts["inter"]):
        part["source"] = source.format(part["source"])
    given = {"gpus_per_node": arguments.gpus_per_node, "nics_per_node": arguments.nics_per_node}
    for key, value in given.items():
        if value is not None:
            require_whole(f"--{key.replace('_', '-')}", value)
            facts[key] = value
    if (speed := arguments.nic_gbit) is not None:
        require_positive("--nic-gbit", speed)
        if speed > MOST_GBIT:
            raise InputError(f"--nic-gbit {speed:g}: no interface has that; give Gb/s, such as 400")
        facts["inter"]["bandwidth_bytes_per_s"] = speed * GIGABIT
    kept = {key: value for key, value in facts.items() if value is not None}
    for part in ("intra", "inter"):  # what is infinite is so by default
        kept[part] = {k: v for k, v in kept[part].items() if v != float("inf")}
    text = json.dumps(kept, indent=1, allow_nan=False) + "\n"
    write_file(arguments.file, lambda path: path.write_text(text, encoding="utf-8"))


MOST_GBIT = 10_000
LEFT_OUT = ("more", "measured", "nodes", "checks_collectives")


def _nearest(own: Cluster) -> Cluster:
    """The cluster of the catalogue that has the same GPU, or the nearest, and of these the most like it."""
    name = own.gpu.name if own.gpu.name in {its.gpu.name for its in clusters().values()} else None
    named = name or nearest(own.gpu)
    alike = [its for its in clusters().values() if its.gpu.name == named]
    return min(alike, key=lambda its: len([*_far(own, its)]))


def _far(own: Cluster, near: Cluster) -> Iterator[str]:
    """A sentence about each figure that is far from the other one's."""
    others = dict(_figures(near.to_dict()))
    for name, value in _figures(own.to_dict()):
        other = others.get(name)
        if other and value and not 1 / FAR <= value / other <= FAR:
            yield f"{name} = {value:g} is {value / other:.2g} times {other:g}"


def _figures(facts: dict[str, Any], within: str = "") -> Iterator[tuple[str, float]]:
    for name, value in facts.items():
        if isinstance(value, dict) and name in ("gpu", "intra", "inter", "peak_flops"):
            yield from _figures(value, f"{within}{name}: ")
        elif name in PLAUSIBLE or "peak_flops" in within:
            yield f"{within}{name}", value


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `cluster`."""
    command.add_argument("action", choices=("new", "check"), help="write a file, or check one")
    command.add_argument("file", metavar="X.json", help="the file of the cluster")
    new = command.add_argument_group("new: what is known of it")
    new.add_argument("--gpu", default="", metavar="NAME", help="a GPU of the catalogue (needed)")
    new.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs of a node")
    new.add_argument("--nics-per-node", type=int, metavar="N", help="network interfaces of a node")
    new.add_argument("--nic-gbit", type=float, metavar="X", help="Gb/s of a network interface")
    add_json_options(command, Answer)
