"""python -m tests.two_hosts [--mbit N] [--out DIR] [--write FILE]: two hosts on this machine, a slow cable, and what simlab says of it.

Two network namespaces stand for two hosts, a veth pair whose ends are shaped (tc's tbf) for the cable; torchrun runs an agent in each,
with two processes. Needs root, `ip` and `tc`. Nothing of it touches the network of the machine itself.

1. The links are measured by themselves, with messages and all-reduces of two processes: inside a host, and across (`link_facts`).
2. What computing takes is measured by itself: the same plan with all four processes on one host. Where they are more than the cores, a
   rank also waits for a core, which no computation's time shows: all are stretched until the simulated step on one host is the measured.
3. The step of each of `PLANS` is predicted: `simlab.playback` with 2's times and 1's links. Then it runs on the two hosts, over gloo's
   own collectives, and the two are compared: tensor parallelism, or pipelines, inside each host or across the cable.

Promise: the ranking is right, and the step is predicted to `WORST`. Of the pipelines, one has its replicas on different hosts: two groups
that reduce over one cable, partly at the same time and partly in turns.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median

from simlab import Fabric, Trace, load_cluster
from simlab.cost.stage_times import StageCost
from simlab.instructions import COMPUTE
from simlab.playback import playback, transfer, whole_step_s

ROOT = Path(__file__).parents[1]
MBIT = 20  # slow enough that the cable decides, and not what else this machine does
WORST = 0.15
BURST_BYTES = 6_000  # that pass at once: small, or short messages would not meet the link's rate at all
SOCKET_BYTES = 65_536  # in flight on a connection: with megabytes queued at the cable TCP takes waiting for loss, and sends all again
PLANS = {  # ranks fill one host after the other: the first dimension of the order that has two ranks stays inside
    "dp 2 x tp 2, tp inside": {"dp": 2, "tp": 2, "order": "tp-cp-dp-pp"},
    "dp 2 x tp 2, tp across": {"dp": 2, "tp": 2, "order": "dp-cp-tp-pp"},
    "dp 2 x pp 2, pp inside": {"dp": 2, "pp": 2, "order": "tp-cp-pp-dp"},
    "dp 2 x pp 2, pp across": {"dp": 2, "pp": 2, "order": "tp-cp-dp-pp"},
}
BATCH = {"microbatches": 2, "microbatch_size": 2}
SIZES = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128}
STEPS, ALONE = 2, 10  # measured of each plan: on two hosts, and on one, where a step is short and what else the machine does counts
MEASURED_BYTES = (4_096, 65_536, 262_144)
BUDGET_S = 0.3
LEAST = 1e-12  # seconds per byte: where larger buffers took no longer, which is noise. Such a bandwidth is reported as None.


# the hosts --------------------------------------------------------------------------------------------------


def why_not():
    """Why there can be no two hosts here; '' if there can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid():
        return "needs root"
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"needs {' and '.join(missing)}"
    try:
        with Hosts(MBIT):
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


class Hosts:
    """Two network namespaces with a cable of `mbit` million bits per second each way; gone at the end, with all that runs in them."""

    def __init__(self, mbit):
        self.mbit, self.names = mbit, [f"host{number}-{os.getpid()}" for number in range(2)]
        self.addresses, self.port = [f"10.77.0.{number + 1}" for number in range(2)], 29400

    def __enter__(self):
        with ExitStack() as made:
            for name in self.names:
                _run("ip", "netns", "add", name)
                made.callback(_run, "ip", "netns", "del", name)
            _run("ip", "link", "add", "cable", "netns", self.names[0], "type", "veth", "peer", "name", "cable", "netns", self.names[1])
            for name, address in zip(self.names, self.addresses):
                _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    _run("ip", "-n", name, "link", "set", device, "up")
                for end in ("rmem", "wmem"):
                    limit = f"echo 4096 {SOCKET_BYTES} {SOCKET_BYTES} > /proc/sys/net/ipv4/tcp_{end}"
                    _run("ip", "netns", "exec", name, "sh", "-c", limit)
                shaped = "rate", f"{self.mbit}mbit", "burst", f"{BURST_BYTES}b", "latency", "2s"
                _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "cable", "root", "tbf", *shaped)
            self._made = made.pop_all()
        return self

    def __exit__(self, *exception):
        self._made.close()

    def launch(self, *arguments, on=(0, 1), processes=2, timeout_s=300, module="realrun"):
        """What rank 0 of `python -m module arguments` prints: assets/launch/nodes.sh with so many processes on each of the hosts `on`."""
        self.port += 1
        agents = []
        for rank, host in enumerate(on):
            environment = {
                "NODE": rank, "NODES": len(on), "RANKS": processes, "FIRST": self.addresses[on[0]], "PORT": self.port, "INTERFACE": "cable",
                "PYTHON": sys.executable, "PYTHONPATH": _search_path(), "MODULE": module,
            }  # fmt: skip
            line = "ip", "netns", "exec", self.names[host], "sh", ROOT / "assets" / "launch" / "nodes.sh", *arguments
            agents.append(subprocess.Popen(
                list(map(str, line)), env=os.environ | {name: str(value) for name, value in environment.items()},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            ))  # fmt: skip
        try:
            said = [agent.communicate(timeout=timeout_s) for agent in agents]
        finally:
            for agent in agents:
                if agent.poll() is None:
                    os.killpg(agent.pid, 9)
        failed = [err for agent, (_, err) in zip(agents, said) if agent.returncode]
        if failed:
            raise RuntimeError(f"{module} {' '.join(map(str, arguments))}:\n" + "\n".join(failed))
        return said[0][0]


def _run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _search_path():
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


# 1: the links -----------------------------------------------------------------------------------------------


def print_links():
    """A rank's part of the measurement, started by torchrun: rank 0 prints the samples."""
    from datetime import timedelta

    import torch.distributed as dist

    from realrun.worker import Rank

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))
    member = Rank(rank, world, int(os.environ["LOCAL_RANK"]), store, "cpu")
    samples = member.links(MEASURED_BYTES, BUDGET_S, say=lambda text: None)
    member.leave()
    if samples is not None:
        print(json.dumps(samples))


def link_facts(samples, kind):
    """A `Fabric`'s fields from messages and all-reduces of two ranks, each a straight line over its bytes S:

    message = base + hop + S / (message efficiency x bandwidth)        all-reduce of two = base + 2 hop + S / bandwidth
    """
    from realrun.machine_fit import nonnegative_fit

    lines = {}
    for name in ("p2p", "all_reduce"):
        points = [(sample["size_bytes"], sample["seconds"]) for sample in samples if sample["kind"] == name]
        lines[name] = nonnegative_fit([[1.0, size] for size, _ in points], [seconds for _, seconds in points])
    (message_s, message_byte_s), (reduce_s, reduce_byte_s) = ((start_s, max(byte_s, LEAST)) for start_s, byte_s in lines.values())
    hop_s = min(message_s, max(0.0, reduce_s - message_s))
    return {
        "kind": kind, "bandwidth_bytes_per_s": 1 / reduce_byte_s, "message_efficiency": min(1.0, reduce_byte_s / message_byte_s),
        "base_s": max(0.0, reduce_s - 2 * hop_s), "hop_s": hop_s, "protocols": ["Simple"], "source": "measured, two processes",
    }  # fmt: skip


def measured_cluster(hosts, out):
    """The `Cluster` of two hosts with two processes each, from measured links; kept as JSON in `out`."""
    inside = json.loads(hosts.launch("--links", on=(0,), processes=2, module="tests.two_hosts"))
    across = json.loads(hosts.launch("--links", on=(0, 1), processes=1, module="tests.two_hosts"))
    blank = load_cluster("laptop")
    cluster = replace(
        blank, name="two hosts", nodes=2, gpus_per_node=2, nics_per_node=1, intra=Fabric(**link_facts(inside, "loopback")),
        inter=Fabric(**link_facts(across, "network")), source="tests/two_hosts.py",
    )  # fmt: skip
    (out / "links.json").write_text(json.dumps({"inside": inside, "across": across}, indent=1), encoding="utf-8")
    return cluster


# 2 and 3: the plans ------------------------------------------------------------------------------------------


def job_of(plan):
    """The `PlanJob` of one of `PLANS`."""
    from realrun.plan_job import PlanJob

    return PlanJob(plan=plan | BATCH, sizes=SIZES, check=False)


def execute(hosts, plan, out, steps=STEPS, **started):
    """(facts, [traces of the measured steps]) of a plan, as `python -m realrun` runs it."""
    names = {**plan, **BATCH, **SIZES, "steps": steps, "out": out}
    arguments = [text for name, value in names.items() for text in (f"--{name.replace('_', '-')}", value)]
    facts = json.loads(hosts.launch(*arguments, "--json", **started))
    return facts, [Trace.load(path) for path in sorted(Path(facts["folder"]).glob("measured-step-*.json"))]


class MeasuredTimes:
    """Seconds of instructions: computing as in `compute_s`, times `stretch`; communication as the links of `cluster` make it."""

    def __init__(self, job, cluster, compute_s, stretch=1.0):
        self.cost, self.stretch = StageCost(job.model, job.executed, cluster, slower=1.0), stretch
        self._compute_s = compute_s

    def compute_s(self, instruction):
        """See `simlab.playback`."""
        return self.stretch * self._compute_s[instruction]

    def transfer(self, instruction, ranks):
        """See `simlab.playback`."""
        return transfer(self.cost, instruction, ranks)


def compute_s(job, traces):
    """{instruction: seconds} of what `job`'s ranks computed in `traces`."""
    from realrun.measure import typical

    samples = {}
    for trace in traces:
        for rank in range(job.ranks):
            spans = sorted((s for s in trace.spans if s.rank == rank and s.stream in ("compute", "optimizer")), key=lambda s: s.start_s)
            computed = [instruction for instruction in job.instructions(rank) if instruction.action == COMPUTE]
            for instruction, span in zip(computed, spans, strict=True):
                samples.setdefault(instruction, []).append(span.end_s - span.start_s)
    return {instruction: typical(seconds) for instruction, seconds in samples.items()}


def predicted_s(job, cluster, alone):
    """The step on the two hosts of `cluster`. alone: ({instruction: seconds}, step in seconds) of the same plan on one of them."""
    computed_s, measured_s = alone

    def step_s(where, stretch):
        return whole_step_s(playback(job.model, job.executed, job.program, MeasuredTimes(job, where, computed_s, stretch)))

    one_host, least, most = replace(cluster, nodes=1, gpus_per_node=job.ranks), 0.1, 10.0
    for _ in range(20):
        stretch = (least * most) ** 0.5
        least, most = (stretch, most) if step_s(one_host, stretch) < measured_s else (least, stretch)
    return step_s(cluster, stretch)


def compare(mbit, out, plans=PLANS):
    """{"links": {"inside", "across": {"latency_s", "bytes_per_s"}}, "plans": {name: {"predicted_s", "measured_s", "error", "steps_s",
    "waits_s"}}}: error is predicted / measured - 1, waits_s the longest wait of a rank for each dimension."""
    out, alone = Path(out), {}
    out.mkdir(parents=True, exist_ok=True)
    with Hosts(mbit) as hosts:
        cluster = measured_cluster(hosts, out)
        fabrics = {"inside": cluster.intra, "across": cluster.inter}
        told = {name: f.bandwidth_bytes_per_s if f.bandwidth_bytes_per_s * LEAST < 0.99 else None for name, f in fabrics.items()}
        links = {name: {"latency_s": f.base_s + f.hop_s, "bytes_per_s": told[name]} for name, f in fabrics.items()}
        results = {"mbit": mbit, "links": links, "plans": {}}
        for name, plan in plans.items():
            degrees = name.partition(",")[0]
            if degrees not in alone:  # once for both orders: it is one host
                _, traces = execute(hosts, plan, out / "one host" / degrees, steps=ALONE, on=(0,), processes=4)
                alone[degrees] = compute_s(job_of(plan), traces), median(map(whole_step_s, traces))
            foretold_s = predicted_s(job_of(plan), cluster, alone[degrees])
            facts, _ = execute(hosts, plan, out / "two hosts" / name)
            measured_s, waited = facts["measured_step_s"], facts["exposed_s_measured"]
            results["plans"][name] = {
                "predicted_s": foretold_s, "measured_s": measured_s, "error": foretold_s / measured_s - 1, "steps_s": facts["steps_s"],
                "waits_s": {dimension: max(rank[dimension] for rank in waited) for dimension in waited[0]},
            }  # fmt: skip
    return results


def failures(results, worst=WORST):
    """What of the promise is broken, as messages."""
    plans = results["plans"]
    for name, row in plans.items():
        if abs(row["error"]) > worst:
            yield f"{name}: predicted {row['predicted_s']:.2f} s, measured {row['measured_s']:.2f} s, off by more than {worst:.0%}"
    predicted, measured = (sorted(plans, key=lambda name: plans[name][which]) for which in ("predicted_s", "measured_s"))
    if predicted != measured:
        yield f"predicted from the fastest on: {'; '.join(predicted)}. Measured: {'; '.join(measured)}"


def machine():
    """What the figures were measured on, in words that name no machine."""
    import torch

    from realrun.job import usable_cores

    return {"cores": usable_cores(), "gpus": 0, "torch": torch.__version__, "date": date.today().isoformat()}


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mbit", type=float, default=MBIT, help=f"million bits per second of the cable (default {MBIT})")
    parser.add_argument("--out", default=None, help="a folder to keep everything in")
    parser.add_argument("--write", default=None, metavar="FILE", help="where to write the figures as JSON, with what they were measured on")
    parser.add_argument("--links", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.links:
        return print_links()
    if reason := why_not():
        return f"no two hosts here: {reason}"
    with tempfile.TemporaryDirectory() as temporary:
        results = compare(arguments.mbit, arguments.out or temporary)
    for name, link in results["links"].items():
        bandwidth = f"{link['bytes_per_s'] / 1e6:.1f} MB/s" if link["bytes_per_s"] else "no time for bytes that could be told from noise"
        print(f"{name}: {link['latency_s'] * 1e3:.2f} ms, {bandwidth}")
    for name, row in results["plans"].items():
        print(f"{name}: predicted {row['predicted_s']:.3f} s, measured {row['measured_s']:.3f} s, {row['error']:+.1%}")
    if arguments.write:
        Path(arguments.write).write_text(json.dumps({"machine": machine()} | results, indent=1) + "\n", encoding="utf-8")
    return "\n".join(failures(results)) or None


if __name__ == "__main__":
    sys.exit(main())
