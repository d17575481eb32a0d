"""python -m benchmarks.two_hosts [--mbit N] [--out DIR] [--write FILE]: predict steps on two hosts.

The predictions are compared with runs on two hosts that a slow cable joins.

Two network namespaces of this machine stand for the hosts, and a veth pair whose ends are shaped
(tc's tbf) for the cable. torchrun runs an agent with two processes in each. This needs root, `ip`
and `tc`. It does not touch the network of the machine itself.

1. The links inside a host and across are measured by themselves, with messages and all-reduces of
   two processes (`benchmarks.host_links`).
2. The computation is measured by itself: the same plan runs with all four processes on one host. If
   there are more processes than cores, a rank also waits for a core, which the time of no
   computation shows. So all times are stretched until the simulated step on one host equals the
   measured one.
3. `simlab.engine.play` predicts the step of each of `PLANS` from these times and links. Then the plan
   runs on the two hosts, over gloo's own collectives, and both times are compared. Tensor
   parallelism or pipelines are inside each host, or across the cable.

It promises that the ranking is right and that each step is predicted to within `WORST`. In one of
the pipelines the replicas are on different hosts. Their two groups reduce over one cable, partly at
the same time and partly one after the other.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median

from benchmarks.host_links import LEAST, measured_cluster, print_links
from benchmarks.namespaces import Hosts, why_not
from simlab import Trace
from simlab.cost.stage_times import StageCost
from simlab.cost.walk import Seconds
from simlab.engine.play import play, transfer
from simlab.lowering.instructions import COMPUTE

ROOT = Path(__file__).parents[1]
MBIT = 20
"""Million bits per second. The cable is so slow that it decides, and not the machine's other work."""
WORST = 0.15
"""The largest relative error of a predicted step."""
# Ranks fill one host after the other, so the first dimension of the order with two ranks stays inside.
PLANS = {
    "dp 2 x tp 2, tp inside": {"dp": 2, "tp": 2, "order": "tp-cp-dp-pp"},
    "dp 2 x tp 2, tp across": {"dp": 2, "tp": 2, "order": "dp-cp-tp-pp"},
    "dp 2 x pp 2, pp inside": {"dp": 2, "pp": 2, "order": "tp-cp-pp-dp"},
    "dp 2 x pp 2, pp across": {"dp": 2, "pp": 2, "order": "tp-cp-dp-pp"},
}
BATCH = {"microbatches": 2, "microbatch_size": 2}
SIZES = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128}
STEPS, ALONE = 2, 10
"""The steps of each plan that are measured on two hosts, and on one host. There a step is short, and
the machine's other work has more influence."""


def job_of(plan):
    """The `Job` of one of `PLANS`."""
    from realrun.run.job import Job

    return Job(plan=plan | BATCH, sizes=SIZES, check=False)


def execute(hosts, plan, out, steps=STEPS, **started):
    """The facts and the traces of the measured steps of a plan that `python -m realrun` runs."""
    names = {**plan, **BATCH, **SIZES, "steps": steps, "out": out}
    arguments = [
        text for name, value in names.items() for text in (f"--{name.replace('_', '-')}", value)
    ]
    (facts,) = json.loads(hosts.launch(*arguments, "--json", **started))["runs"]
    return facts, [
        Trace.load(path) for path in sorted(Path(facts["folder"]).glob("measured-step-*.json"))
    ]


class MeasuredTimes:
    """The seconds of instructions, for `simlab.engine.play`.

    A computation takes `stretch` times its seconds in `compute_s`. A communication takes as long as
    the links of `cluster` make it.
    """

    # The computation was measured beside communication, and sends return at once.
    sends_block = False

    def __init__(self, job, cluster, compute_s, stretch=1.0):
        self.cost, self.stretch = StageCost(job.model, job.executed, cluster, slower=1.0), stretch
        self._compute_s = compute_s

    def computing(self, instruction):
        """See `simlab.engine.play`."""
        seconds = self.stretch * self._compute_s[instruction]
        return Seconds(seconds, seconds)

    def transfer(self, instruction, ranks):
        """See `simlab.engine.play`."""
        return transfer(self.cost, instruction, ranks)


def compute_s(job, traces):
    """{instruction: seconds} of what the ranks of `job` computed in `traces`."""
    from realrun.measure.pings import typical

    samples = {}
    for trace in traces:
        for rank in range(job.ranks):
            spans = sorted(
                (s for s in trace.spans if s.rank == rank and s.stream in ("compute", "optimizer")),
                key=lambda s: s.start_s,
            )
            computed = [
                instruction
                for instruction in job.instructions(rank)
                if instruction.action == COMPUTE
            ]
            for instruction, span in zip(computed, spans, strict=True):
                samples.setdefault(instruction, []).append(span.end_s - span.start_s)
    return {instruction: typical(seconds) for instruction, seconds in samples.items()}


def predicted_s(job, cluster, alone):
    """The predicted step on the two hosts of `cluster`, in seconds.

    alone: ({instruction: seconds}, step in seconds) of the same plan on one host.
    """
    computed_s, measured_s = alone

    def step_s(where, stretch):
        return play(
            job.model, job.executed, job.program, MeasuredTimes(job, where, computed_s, stretch)
        ).whole_step_s

    one_host, least, most = replace(cluster, nodes=1, gpus_per_node=job.ranks), 0.1, 10.0
    for _ in range(20):
        stretch = (least * most) ** 0.5
        least, most = (
            (stretch, most) if step_s(one_host, stretch) < measured_s else (least, stretch)
        )
    return step_s(cluster, stretch)


def compare(mbit, out, plans=PLANS):
    """The figures of the links, and of `plans` as they were predicted and measured.

    Returns {"links": {"inside" and "across": {"latency_s", "bytes_per_s"}}, "plans": {name:
    {"predicted_s", "measured_s", "error", "steps_s", "waits_s"}}}. error is predicted / measured - 1,
    and waits_s has the longest wait of a rank for each dimension.
    """
    out, alone = Path(out), {}
    out.mkdir(parents=True, exist_ok=True)
    with Hosts(mbit) as hosts:
        cluster = measured_cluster(hosts, out)
        fabrics = {"inside": cluster.intra, "across": cluster.inter}
        told = {
            name: f.bandwidth_bytes_per_s if f.bandwidth_bytes_per_s * LEAST < 0.99 else None
            for name, f in fabrics.items()
        }
        links = {
            name: {"latency_s": f.base_s + f.hop_s, "bytes_per_s": told[name]}
            for name, f in fabrics.items()
        }
        results = {"mbit": mbit, "links": links, "plans": {}}
        for name, plan in plans.items():
            degrees = name.partition(",")[0]
            if degrees not in alone:  # once for both orders: it is one host
                _, traces = execute(
                    hosts, plan, out / "one host" / degrees, steps=ALONE, on=(0,), processes=4
                )
                alone[degrees] = (
                    compute_s(job_of(plan), traces),
                    median(trace.whole_step_s for trace in traces),
                )
            foretold_s = predicted_s(job_of(plan), cluster, alone[degrees])
            facts, _ = execute(hosts, plan, out / "two hosts" / name)
            measured_s, waited = facts["measured_step_s"], facts["exposed_s_measured"]
            results["plans"][name] = {
                "predicted_s": foretold_s,
                "measured_s": measured_s,
                "error": foretold_s / measured_s - 1,
                "steps_s": facts["steps_s"],
                "waits_s": {
                    dimension: max(rank[dimension] for rank in waited) for dimension in waited[0]
                },
            }
    return results


def failures(results, worst=WORST):
    """A message for each part of the promise that is not kept."""
    plans = results["plans"]
    for name, row in plans.items():
        if abs(row["error"]) > worst:
            yield f"{name}: predicted {row['predicted_s']:.2f} s, measured {row['measured_s']:.2f} s, off by more than {worst:.0%}"
    predicted, measured = (
        sorted(plans, key=lambda name: plans[name][which])
        for which in ("predicted_s", "measured_s")
    )
    if predicted != measured:
        yield f"predicted from the fastest on: {'; '.join(predicted)}. Measured: {'; '.join(measured)}"


def machine():
    """What the figures were measured on, without the name of the machine."""
    import torch

    from realrun.measure.cores import usable_cores

    return {
        "cores": usable_cores(),
        "gpus": 0,
        "torch": torch.__version__,
        "date": date.today().isoformat(),
    }


def main():
    """Run the command; the result is an error message, or None."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--mbit",
        type=float,
        default=MBIT,
        help=f"million bits per second of the cable (default {MBIT})",
    )
    parser.add_argument("--out", default=None, help="a folder to keep everything in")
    parser.add_argument(
        "--write",
        default=None,
        metavar="FILE",
        help="where to write the figures as JSON, with what they were measured on",
    )
    parser.add_argument("--links", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.links:
        return print_links()
    if reason := why_not():
        return f"no two hosts here: {reason}"
    with tempfile.TemporaryDirectory() as temporary:
        results = compare(arguments.mbit, arguments.out or temporary)
    for name, link in results["links"].items():
        bandwidth = (
            f"{link['bytes_per_s'] / 1e6:.1f} MB/s"
            if link["bytes_per_s"]
            else "no time for bytes that could be told from noise"
        )
        print(f"{name}: {link['latency_s'] * 1e3:.2f} ms, {bandwidth}")
    for name, row in results["plans"].items():
        print(
            f"{name}: predicted {row['predicted_s']:.3f} s, measured {row['measured_s']:.3f} s, {row['error']:+.1%}"
        )
    if arguments.write:
        Path(arguments.write).write_text(
            json.dumps({"machine": machine()} | results, indent=1) + "\n", encoding="utf-8"
        )
    return "\n".join(failures(results)) or None


if __name__ == "__main__":
    sys.exit(main())
