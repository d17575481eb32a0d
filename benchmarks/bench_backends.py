"""Both back-ends with real compute: the same plan, model and batch on the same processes, step by step
in turn."""

import tempfile
import time
from pathlib import Path
from statistics import mean, median

from simlab.spec.plan import Plan

SIZES = {
    "tiny": {"layers": 8, "hidden": 64, "heads": 4, "seq": 32},
    "512 wide": {"layers": 4, "hidden": 512, "heads": 8, "seq": 128},
    "2,048 wide": {"layers": 2, "hidden": 2048, "heads": 16, "seq": 64},
}
STEPS = {"tiny": 15, "512 wide": 7, "2,048 wide": 3}
PLANS = {
    "ddp": {"dp": 2},
    "ZeRO-1": {"dp": 2, "zero": 1},
    "ZeRO-2": {"dp": 2, "zero": 2},
    "ZeRO-3": {"dp": 2, "zero": 3},
    "tp": {"tp": 2},
    "1F1B": {"pp": 2, "schedule": "1f1b"},
    "ZB-H1": {"pp": 2, "schedule": "zb-h1"},
    "dp x 1F1B": {"dp": 2, "pp": 2, "schedule": "1f1b"},
}
WARMUP = 2
MOST_LOSS_DIFFERENCE = 1e-3


def backends_row(size, name):
    """A row: of each back-end the median seconds of a step under plan `name`, and the processor's
    seconds that a rank spends in it, of which the smallest are taken, since other work on the machine
    only adds to them.

    instructions: of a rank's list. host_us: the processor's time for each of them. With tiny layers it
    is the host's, for kernels take next to nothing; with wide ones it is that of the kernels, too.
    AssertionError if the back-ends do not train alike.
    """
    from tests.support.realrun_ranks import on_ranks

    plan = PLANS[name] | {"microbatches": 4, "microbatch_size": 1}
    with tempfile.TemporaryDirectory() as folder:
        ranks = Plan(**plan).gpus
        answers = on_ranks(ranks, both_backends, plan, SIZES[size], STEPS[size], folder)
    losses = [[sum(of) for of in zip(*(a[side]["losses"] for a in answers))] for side in SIDES]
    difference = max(abs(ours - theirs) for ours, theirs in zip(*losses))
    assert difference <= MOST_LOSS_DIFFERENCE, f"the losses differ by {difference:.1e}"
    instructions = mean(answer["instructions"] for answer in answers)
    row = {"what": f"{name}, {size}", "instructions": instructions}
    for side in SIDES:
        cpu_s = mean(min(answer[side]["cpu_s"]) for answer in answers)
        row[f"{side}_s"] = median(answers[0][side]["steps_s"])
        row[f"{side}_cpu_s"], row[f"{side}_host_us"] = cpu_s, cpu_s / instructions * 1e6
    return row | {
        "ratio": row["native_s"] / row["torch_s"],
        "cpu_ratio": row["native_cpu_s"] / row["torch_cpu_s"],
    }


SIDES = ("native", "torch")


def both_backends(rank, plan, sizes, steps, folder):
    """What rank `rank` saw of each back-end: its steps' seconds from one barrier to the next, the
    processor's seconds, and this rank's parts of the losses."""
    import torch.distributed as dist

    from realrun.model.text import batch

    trainings = {side: training(rank, plan, sizes, steps, folder, side) for side in SIDES}
    found = {side: {"steps_s": [], "cpu_s": [], "losses": []} for side in SIDES}
    replicas, m, part = plan.get("dp", 1), plan["microbatches"], 1 / plan.get("tp", 1)
    for number in range(-WARMUP, steps):
        tokens, targets = batch(0, replicas * m, plan["microbatch_size"], sizes["seq"])
        for side in SIDES[:: 1 if number % 2 else -1]:  # neither is always the first
            its = found[side]
            dist.barrier()
            start_s, cpu_s = time.perf_counter(), time.process_time()
            loss, _ = trainings[side][0].step(number, tokens, targets)
            dist.barrier()
            its["losses"].append(loss * part)
            if number >= 0:
                its["steps_s"].append(time.perf_counter() - start_s)
                its["cpu_s"].append(time.process_time() - cpu_s)
    return found | {"instructions": trainings["native"][1]}


def training(rank, plan, sizes, steps, folder, side):
    """(a `Training` by the back-end `side`, the records of a step) as a session makes it."""
    import torch

    from realrun.backends.choice import Backends
    from realrun.record.recorder import Recorder
    from realrun.run.job import Job
    from tests.support.realrun_processes import both_directions

    job = Job(plan=plan, sizes=sizes, backend=side, check=False, out=folder)
    backend = Backends(rank, torch.device("cpu"), both_directions()).of(job, lambda *said: None)
    backend.open(0.0, 0.0)
    records = backend.records(job.runs[0])
    recorder = Recorder(Path(folder) / f"{side}-{rank}.records", (WARMUP + steps) * records, 0.0)
    return backend.training(job.runs[0], recorder, checking=False), records
