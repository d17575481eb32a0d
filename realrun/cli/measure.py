"""The command `realrun measure`: time this machine's kernels, host and links, and write a cluster
that the simulator loads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

from realrun.cli.machine_file import check_writable, write
from realrun.cli.machine_text import text
from realrun.cli.options import Option, add_device_options, add_options, add_switches
from realrun.cli.run_command import say
from realrun.launch.pool import Pool, RunError
from simlab.cli.output import print_json, print_text
from simlab.errors import InputError
from simlab.spec.fabric import Fabric
from simlab.spec.fields import as_written
from simlab.spec.hardware import Gpu
from simlab.spec.plan import Plan
from simlab.units import KIB

if TYPE_CHECKING:
    from realrun.measure.machine.sample import Sample

EPILOG = """what is timed: matrix products (forward and both gradients' layouts), attention,
kernels that the memory bounds, what the host takes to dispatch an op, on a CPU
in all processes at once, as they train; messages and collectives between them
(gloo between processes of this machine, NCCL between GPUs), on loopback only.
One file comes of it: a cluster with its own kernel efficiencies, and every
sample.

examples:
  realrun measure --quick --compare
  simlab simulate --model gpt2 --cluster machine.json --precision fp32 \\
    --microbatches 4

exit status: 0 done, 1 something could not be measured or written,
2 bad arguments"""
SIZES = {quick: [KIB * 4**power for power in range(7 if quick else 9)] for quick in (True, False)}
"""{quick: bytes}: 1 KiB to 64 MiB (quick: 4 MiB); every second one is kept apart for --compare."""
BUDGET_S = {True: 0.03, False: 0.3}
MOST_RANKS = 8
OPTIONS = {
    "out": Option(str, "FILE", "where the cluster is written (default machine.json)"),
    "ranks": Option(
        int, "N", "processes, one GPU each on CUDA (default: as many as GPUs, or else cores)"
    ),
    "threads": Option(int, "N", "threads of a kernel on the CPU (default 1, as a rank has)"),
}
SWITCHES = {
    "quick": "in less than 20 s: fewer rounds, and messages up to 4 MiB, not 64",
    "compare": "also measure at other sizes than those fitted, and print the error there",
}
KERNELS, KERNELS_TIMEOUT_S = "realrun.measure.machine.kernels:OF_A_RANK", 900


class Row(TypedDict):
    """One sample that no fit has seen. Its error is relative."""

    sizes: dict[str, int]
    predicted_s: float
    measured_s: float
    error: float


class Compared(TypedDict):
    """The samples of one kind."""

    median_error: float
    rows: list[Row]


class MachineFacts(TypedDict):
    """A cluster of one node, as the file has it that was written."""

    gpu: Annotated[dict[str, Any], as_written(Gpu)]
    gpus_per_node: int
    nics_per_node: int
    intra: Annotated[dict[str, Any], as_written(Fabric)]
    inter: Annotated[dict[str, Any], as_written(Fabric)]
    pcie_bytes_per_s: float
    nvme_bytes_per_s: float
    host_memory_bytes: float
    host_op_s: float
    source: str


class About(TypedDict):
    """What was measured, with what and when."""

    device: str
    device_kind: str
    ranks: int
    precision: str
    threads: int
    torch: str
    cuda: str | None
    backend: str
    sms: int
    measured_at: str
    waited: float
    quick: bool


class Answer(TypedDict):
    """The measurement of this machine."""

    ok: Literal[True]
    file: str
    cluster: MachineFacts
    measured: About
    comparison: NotRequired[dict[str, Compared]]
    """{label: what the simulator says of the samples that no fit has seen}, with `--compare`."""


def measure_command(arguments: argparse.Namespace) -> int:
    """Time this machine's kernels, host and links, and write a cluster that simlab
    loads."""
    result = run(arguments)
    if arguments.json:
        print_json(result)
    else:
        print_text(text(result))
    return 0


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure, fit, write, and with --compare hold the written file against the samples kept apart:
    the facts to report."""
    from realrun.launch.ranks import under_torchrun

    if under_torchrun():
        raise InputError(
            "RANK and WORLD_SIZE are set: `measure` starts its own processes, on one machine; run it without torchrun"
        )
    if arguments.threads < 1:
        raise InputError(f"--threads {arguments.threads}: give at least 1")
    ranks, device = choose_ranks(arguments.ranks, arguments.device)
    return measured_file(
        arguments.out,
        ranks,
        device,
        threads=arguments.threads,
        quick=arguments.quick,
        compare=arguments.compare,
        port=arguments.port,
    )


def measured_file(
    path: str,
    ranks: int,
    device: str,
    *,
    threads: int = 1,
    quick: bool = False,
    compare: bool = False,
    port: int = 0,
) -> dict[str, Any]:
    """Measure this machine and write its cluster at `path`: the facts to report, of the type `Answer`."""
    from realrun.measure.machine.cluster import machine_cluster
    from realrun.measure.machine.comparison import comparison
    from simlab.spec.cluster import load_cluster

    check_writable(path)
    samples, node, about = measure(
        ranks,
        device,
        threads=threads,
        quick=quick,
        check=compare,
        port=port,
        folder=Path(path).absolute().parent,
        say=say,
    )
    facts = machine_cluster(samples, node, about)
    write(path, json.dumps(facts, indent=1, allow_nan=False))
    cluster = load_cluster(Path(path))  # what is compared is what anybody loads
    result = {
        "ok": True,
        "file": str(path),
        "cluster": {key: value for key, value in facts.items() if key != "measured"},
    }
    result["measured"] = {
        key: value for key, value in facts["measured"].items() if key != "samples"
    }
    if compare:
        result["comparison"] = comparison(samples, cluster, about["precision"])
    return result


def choose_ranks(asked: int | None, device: str) -> tuple[int, str]:
    """(ranks, 'cpu' or 'cuda'): unless asked for, as many as there are GPUs, or else cores; at most
    `MOST_RANKS`."""
    from realrun.launch.ranks import choose_device
    from realrun.measure.cores import usable_cores

    if asked is not None and asked < 1:
        raise InputError(f"--ranks {asked}: give at least 1")
    if asked is None:
        import torch

        gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
        asked = min(MOST_RANKS, gpus or (1 if device == "cuda" else usable_cores()))
    return asked, choose_device(device, asked)


def measure(
    ranks: int,
    device: str,
    *,
    threads: int = 1,
    quick: bool = False,
    check: bool = False,
    port: int = 0,
    folder: Path | str = ".",
    say: Callable[[str], Any] = lambda text: None,
) -> tuple[list[Sample], dict[str, float], dict[str, Any]]:
    """([`Sample`], {figures of the node}, {what was measured}) of this machine.

    threads: of the kernels on a CPU. check: also at the sizes that no fit shall see. folder: on the
    drive that is timed.
    """
    import torch

    from realrun.measure.machine import kernels
    from realrun.measure.machine.node import description, host_copy_bytes_per_s, memory_sizes
    from realrun.measure.stopwatch import Stopwatch

    where, before = (
        torch.device("cuda", 0) if device == "cuda" else torch.device("cpu"),
        torch.get_num_threads(),
    )
    torch.set_num_threads(threads)
    try:
        watch = Stopwatch(where, BUDGET_S[quick])
        at_once = ranks > 1 and device == "cpu"
        samples = [] if at_once else kernels.kernel_samples(watch, check=check, say=say)
        memory_bytes, host_bytes = memory_sizes(where, ranks)
        node = {
            "pcie_bytes_per_s": host_copy_bytes_per_s(watch),
            "nvme_bytes_per_s": drive_speed(folder),
            "memory_bytes": memory_bytes,
            "host_memory_bytes": host_bytes,
        }
        about = description(where, ranks)
    finally:
        torch.set_num_threads(before)
    waited = watch.waited
    if ranks > 1:
        with Pool(ranks, device=device, port=port, say=say) as pool:
            if at_once:
                say(f"timing kernels in {ranks} processes at once")
                samples, waited = samples_at_once(pool, quick, check, threads)
            samples += link_samples(pool, quick, check)
    return samples, node, about | {"waited": waited, "quick": quick}


def samples_at_once(
    pool: Pool, quick: bool, check: bool, threads: int
) -> tuple[list[Sample], float]:
    """([`Sample`] of kernels that all processes of `pool` compute at the same time, each the median of
    theirs; `Stopwatch.waited` of the one that waited most)."""
    from realrun.measure.machine.sample import Sample

    asked = {"budget_s": BUDGET_S[quick], "check": check, "threads": threads}
    plan = Plan(dp=pool.ranks)
    found = pool.call(KERNELS, "kernels", plan, KERNELS_TIMEOUT_S, **asked)
    samples = [
        Sample(*of_all[0])._replace(seconds=median(each[3] for each in of_all))
        for of_all in zip(*(one["samples"] for one in found))
    ]
    return samples, max(one["waited"] for one in found)


def link_samples(pool: Pool, quick: bool, check: bool) -> list[Sample]:
    """[`Sample`] of messages and collectives between the processes of `pool`."""
    from realrun.measure.machine.sample import Sample

    fitted = set(SIZES[quick][::2])
    sizes = SIZES[quick] if check else sorted(fitted)
    found = pool.links(sizes, BUDGET_S[quick])
    # what was sent is a multiple of the ranks
    asked = [size for _ in range(len(found) // len(sizes)) for size in sizes]
    return [
        Sample(
            one["kind"],
            "",
            {"size_bytes": one["size_bytes"], "ranks": pool.ranks},
            one["seconds"],
            size in fitted,
        )
        for one, size in zip(found, asked)
    ]


def drive_speed(folder: Path | str) -> float:
    """Bytes per second of the drive that `folder` is on; `RunError` if nothing can be written
    there."""
    from realrun.measure.machine.node import drive_bytes_per_s

    try:
        return drive_bytes_per_s(folder)
    except OSError as error:
        raise RunError(f"cannot time the drive of {str(folder)!r}: {error.strerror}") from error


def add_measure(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `measure`."""
    command.description, command.epilog = cleandoc(measure_command.__doc__ or ""), EPILOG
    add_options(command, OPTIONS)
    command.set_defaults(out="machine.json", threads=1)
    add_switches(command, SWITCHES)
    add_device_options(command, Answer)
