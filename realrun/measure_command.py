"""python -m realrun measure: time this machine's kernels, host and links, and write a cluster that the simulator loads."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from realrun.pool import Pool, RunError
from simlab.errors import InputError
from simlab.exit_status import exit_status
from simlab.units import KIB, bytes_text, percent_text, seconds_text

EPILOG = """what is timed: matrix products (forward and both gradients' layouts), attention, kernels that the memory bounds, what the host
takes to dispatch an op; messages and collectives between processes (gloo between processes of this machine, NCCL between GPUs), on
loopback only. One file comes of it: a cluster with its own kernel efficiencies, and every sample.

examples:
  python -m realrun measure --quick --compare
  python -m simlab simulate --model gpt2 --cluster machine.json --precision fp32 --microbatches 4

exit status: 0 done, 1 something could not be measured or written, 2 bad arguments"""
SIZES = {quick: [KIB * 4**power for power in range(7 if quick else 9)] for quick in (True, False)}
"""{quick: bytes}: 1 KiB to 64 MiB (quick: 4 MiB); every second one is kept apart for --compare."""
BUDGET_S = {True: 0.03, False: 0.3}
MOST_RANKS = 8
BUSY = 0.05


def main(argv):
    """Run the command; returns the exit status. Results go to stdout, progress and messages to stderr."""
    return exit_status(report, parser().parse_args(argv))


def report(arguments):
    """`run`, printed; 0."""
    result = run(arguments)
    print(json.dumps(result) if arguments.json else text(result))
    return 0


def run(arguments):
    """Measure, fit, write, and with --compare hold the written file against the samples kept apart: the facts to report."""
    from realrun.launch import under_torchrun

    if under_torchrun():
        raise InputError("RANK and WORLD_SIZE are set: `measure` starts its own processes, on one machine; run it without torchrun")
    if arguments.threads < 1:
        raise InputError(f"--threads {arguments.threads}: give at least 1")
    ranks, device = choose_ranks(arguments.ranks, arguments.device)
    check_writable(arguments.out)
    samples, node, about = measure(
        ranks, device, threads=arguments.threads, quick=arguments.quick, check=arguments.compare, port=arguments.port,
        folder=Path(arguments.out).absolute().parent, say=_say,
    )  # fmt: skip
    from realrun.machine_fit import comparison, machine_cluster
    from simlab.cluster import load_cluster

    facts = machine_cluster(samples, node, about)
    write(arguments.out, json.dumps(facts, indent=1, allow_nan=False))
    cluster = load_cluster(Path(arguments.out))  # what is compared is what anybody loads
    result = {"ok": True, "file": str(arguments.out), "cluster": {key: value for key, value in facts.items() if key != "measured"}}
    result["measured"] = {key: value for key, value in facts["measured"].items() if key != "samples"}
    if arguments.compare:
        result["comparison"] = comparison(samples, cluster, about["precision"])
    return result


def choose_ranks(asked, device):
    """(ranks, 'cpu' or 'cuda'): unless asked for, as many as there are GPUs, or else cores; at most `MOST_RANKS`."""
    from realrun.job import usable_cores
    from realrun.launch import choose_device

    if asked is not None and asked < 1:
        raise InputError(f"--ranks {asked}: give at least 1")
    if asked is None:
        import torch

        gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
        asked = min(MOST_RANKS, gpus or (1 if device == "cuda" else usable_cores()))
    return asked, choose_device(device, asked)


def measure(ranks, device, *, threads=1, quick=False, check=False, port=0, folder=".", say=lambda text: None, pool=None):
    """([`Sample`], {figures of the node}, {what was measured}) of this machine.

    threads: of the kernels on a CPU. check: also at the sizes that no fit shall see. folder: on the drive that is timed.
    pool: a warm `Pool` of so many ranks; None: one is started, if there are links to time.
    """
    import torch

    from realrun import machine
    from realrun.stopwatch import Stopwatch

    where, before = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu"), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        watch = Stopwatch(where, BUDGET_S[quick])
        samples = machine.kernel_samples(watch, check=check, say=say)
        memory_bytes, host_bytes = machine.memory_sizes(where, ranks)
        node = {
            "pcie_bytes_per_s": machine.host_copy_bytes_per_s(watch), "nvme_bytes_per_s": drive_speed(folder),
            "memory_bytes": memory_bytes, "host_memory_bytes": host_bytes,
        }  # fmt: skip
        about = machine.description(where, ranks) | {"waited": watch.waited, "quick": quick}
    finally:
        torch.set_num_threads(before)
    if ranks > 1:
        samples += link_samples(ranks, device, quick, check, port, say, pool)
    return samples, node, about


def link_samples(ranks, device, quick, check, port, say, pool):
    """[`Sample`] of messages and collectives between `ranks` processes."""
    from realrun.machine import Sample

    fitted = set(SIZES[quick][::2])
    sizes = SIZES[quick] if check else sorted(fitted)
    if pool is None:
        with Pool(ranks, device=device, port=port, say=say) as own:
            found = own.links(sizes, BUDGET_S[quick])
    else:
        found = pool.links(sizes, BUDGET_S[quick])
    asked = [size for _ in range(len(found) // len(sizes)) for size in sizes]  # what was sent is a multiple of the ranks
    return [
        Sample(one["kind"], {"size_bytes": one["size_bytes"], "ranks": ranks}, one["seconds"], size in fitted)
        for one, size in zip(found, asked)
    ]


def drive_speed(folder):
    """Bytes per second of the drive that `folder` is on; `RunError` if nothing can be written there."""
    from realrun.machine import drive_bytes_per_s

    try:
        return drive_bytes_per_s(folder)
    except OSError as error:
        raise RunError(f"cannot time the drive of {str(folder)!r}: {error.strerror}") from error


# the file ---------------------------------------------------------------------------------------------------


def check_writable(path):
    """`RunError` if no file can be written at `path`: before anything is measured. `InputError` if it would not be found as a cluster."""
    if Path(path).suffix != ".json":
        raise InputError(f"--out {str(path)!r}: give a name that ends in .json, by which --cluster tells a file from a catalogue's name")
    if Path(path).is_dir():
        raise RunError(f"cannot write {str(path)!r}: it is a folder")
    try:
        with tempfile.TemporaryFile(dir=Path(path).absolute().parent):
            pass
    except OSError as error:
        raise RunError(f"cannot write {str(path)!r}: {error.strerror}") from error


def write(path, content):
    """`content` into `path`, all of it or nothing."""
    part = Path(f"{path}.part")
    try:
        part.write_text(content, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunError(f"cannot write {str(path)!r}: {error.strerror}") from error


# the report -------------------------------------------------------------------------------------------------


def text(result):
    """The result for reading."""
    about, cluster = result["measured"], result["cluster"]
    gpu, reached, links = cluster["gpu"], cluster["gpu"]["efficiency"], cluster["intra"]
    flash = reached["attention"]["flash"]
    peaks = ", ".join(f"{precision} {flops / 1e9:.4g}" for precision, flops in gpu["peak_flops"].items())
    lines = [
        f"{about['device']}, {about['ranks']} rank(s), {about['threads']} thread(s), {about['precision']}, torch {about['torch']}",
        f"products      {peaks} GFLOP/s at most; of it " + ", ".join(f"{role} {part:.2f}" for role, part in reached["matmul"].items()),
        f"attention     forward {flash[0]:.2f}, backward {flash[1]:.2f} of it, counting the unmasked half",
        f"memory        {gpu['memory_bandwidth_bytes_per_s'] / 1e9:.3g} GB/s copied; other kernels {reached['memory']:.2f} of it",
        f"kernel, host  {seconds_text(reached['kernel_s'])} a kernel; {cluster['host_op_s'] * 1e6:.1f} µs an op dispatched",
        f"links         {_links_text(links)}" if about["ranks"] > 1 else "links         not measured: one rank",
        f"to host       {cluster['pcie_bytes_per_s'] / 1e9:.3g} GB/s; drive {cluster['nvme_bytes_per_s'] / 1e9:.3g} GB/s written",
    ]
    if about["waited"] > BUSY:
        lines.append(f"note          for {about['waited']:.0%} of the time something else had the core: measure again on a quiet machine")
    if "comparison" in result:
        lines += comparison_lines(result["comparison"])
        if about["backend"] == "gloo" and about["ranks"] > 1:
            lines.append("gloo's collectives do not follow latency + bytes / bandwidth, least of all where ranks outnumber idle cores")
    return "\n".join([*lines, f"wrote {result['file']}"])


def _links_text(links):
    top = links["bandwidth_bytes_per_s"]
    ring, message = (_rate_text(top * links[name]) for name in ("efficiency", "message_efficiency"))
    copy = f", copies {_rate_text(links['copy_bytes_per_s'])}" if "copy_bytes_per_s" in links else ""
    return f"base {seconds_text(links['base_s'])}, hop {seconds_text(links['hop_s'])}; ring {ring}, messages {message}{copy}"


def _rate_text(bytes_per_s):
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s < 1e14 else "as fast as could be seen"


def comparison_lines(kinds):
    """Predicted against measured at the sizes that no fit has seen."""
    lines = ["", "predicted from the fit against measured, at other sizes than those fitted:"]
    for kind, its in kinds.items():
        lines.append(f"{kind:<20} median error {its['median_error']:.1%} of {len(its['rows'])}")
        for row in its["rows"]:
            times = f"{seconds_text(row['predicted_s']):>10} {seconds_text(row['measured_s']):>10} {percent_text(row['error']):>9}"
            lines.append(f"  {_sizes_text(row['sizes']):<44} {times}")
    return lines


def _sizes_text(sizes):
    return ", ".join(bytes_text(value) if name == "size_bytes" else f"{name} {value}" for name, value in sizes.items())


def _say(line):
    print(line, file=sys.stderr, flush=True)


def parser():
    """The argument parser."""
    top = argparse.ArgumentParser(
        prog="python -m realrun measure",
        description=__doc__.split(": ", 1)[1],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--out", default="machine.json", metavar="FILE", help="where the cluster is written (default machine.json)")
    top.add_argument("--ranks", type=int, metavar="N", help="processes, one GPU each on CUDA (default: as many as GPUs, or else cores)")
    top.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what is timed (default auto)")
    top.add_argument("--threads", type=int, default=1, metavar="N", help="threads of a kernel on the CPU (default 1, as a rank has)")
    top.add_argument("--quick", action="store_true", help="in less than 20 s: fewer rounds, and messages up to 4 MiB, not 64")
    top.add_argument("--compare", action="store_true", help="also measure at other sizes than those fitted, and print the error there")
    top.add_argument("--port", type=int, default=0, metavar="N", help="port of the rendezvous on 127.0.0.1 (default: a free one)")
    top.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return top
