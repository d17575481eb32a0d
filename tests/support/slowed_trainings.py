"""It profiles trainings of two processes on gloo, of which rank 1 has a fault, with torch's profiler.

    python tests/support/slowed_trainings.py FOLDER

writes FOLDER/HOW FAULT.rankN.json for each way to train in `HOW` and each fault in `FAULTS`. Its ranks
are forked, so that torch is imported once.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

HOW = ("ddp", "fsdp2", "pipeline")
FAULTS = ("sleep", "more ops")
RANKS, STEPS, MICROBATCHES, WIDTH = 2, 3, 4, 256
SLEEP_S = 0.2
"""In a step."""
EXTRA, EXTRA_OPS = "my extra products", 20
"""What the operators that only rank 1 has are in, and how many there are in a step."""
LIMIT_S = 600
TRIES, MOST_DELAYED = 4, 0.1
"""How often a training is profiled, and which part of a step, at most, a rank may have waited for a
processor: beyond it the profile may tell of what else the machine does, and not of the training."""


class Layers(nn.Module):
    """Four products, and the fault of a rank that has one. parts: forwards in a step."""

    def __init__(self, fault, parts):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fault, self.parts = fault, parts
        self.extra = torch.eye(2 * WIDTH)

    def forward(self, x):
        if self.fault == "sleep":
            time.sleep(SLEEP_S / self.parts)
        if self.fault == "more ops":
            with record_function(EXTRA):
                for _ in range(EXTRA_OPS // self.parts):
                    torch.mm(self.extra, self.extra)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def training(how, rank, fault):
    """(the model, what does a step's forward and backward)"""
    x = torch.randn(WIDTH, WIDTH)
    if how == "pipeline":
        model = Layers(fault, MICROBATCHES)
        stage = PipelineStage(model, rank, RANKS, torch.device("cpu"))
        its = Schedule1F1B(stage, MICROBATCHES, loss_fn=lambda y, target: (y - target).abs().mean())
        return model, (lambda: its.step(x)) if rank == 0 else (lambda: its.step(target=x))
    model = Layers(fault, 1)
    if how == "ddp":
        model = DistributedDataParallel(model)
    else:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model, lambda: model(x).abs().mean().backward()


def work(rank, how, fault, folder):
    """One rank of a training."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # With its parent, it ends, too.
    signal.alarm(LIMIT_S)
    store = dist.FileStore(str(folder / f"{how} {fault}.store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model, forward_and_backward = training(how, rank, fault if rank == 1 else "")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        on_trace_ready=lambda one: one.export_chrome_trace(
            str(folder / f"{how} {fault}.rank{rank}.json")
        ),
    ) as profiler:
        for _ in range(STEPS + 2):
            forward_and_backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
            seen.append((time.monotonic(), delayed_s()))
    (since_s, before_s), (until_s, after_s) = seen[1], seen[-1]
    part = (after_s - before_s) / (until_s - since_s)
    delays(folder, how, fault, rank).write_text(str(part))
    dist.barrier()
    os._exit(0)


def delayed_s():
    """Seconds for which this thread was ready to run and had no processor; 0 where no system says it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def delays(folder, how, fault, rank):
    """The file of which part of its steps a rank was delayed."""
    return folder / f"{how} {fault}.rank{rank}.delayed"


def delayed(folder, how, fault):
    """[the part of its steps in which a rank was delayed]"""
    return [float(delays(folder, how, fault, rank).read_text()) for rank in range(RANKS)]


def make(how, fault, folder):
    """Profile one training, again where its ranks were delayed."""
    for _ in range(TRIES):
        (folder / f"{how} {fault}.store").unlink(missing_ok=True)
        make_once(how, fault, folder)
        if max(delayed(folder, how, fault)) <= MOST_DELAYED:
            return


def make_once(how, fault, folder):
    """Profile one training, of whose processes none is left."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=work, args=(rank, how, fault, folder)) for rank in range(RANKS)]
    try:
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(LIMIT_S)
            assert process.exitcode == 0, (how, fault, process.exitcode)
    finally:
        for process in ranks:
            process.kill()
            process.join()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    for one in HOW:
        for another in FAULTS:
            make(one, another, Path(sys.argv[1]))
