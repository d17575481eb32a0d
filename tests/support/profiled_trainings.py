"""It makes the profiler traces in tests/simlab/diagnosis/profiles: small trainings of two processes
on gloo, each slowed in one known way, as torch.profiler sees them.

    python tests/support/profiled_trainings.py tests/simlab/diagnosis/profiles

writes CASE.rank0.json.gz and CASE.rank1.json.gz for each case of `CASES`, or for those whose names
follow the folder. Nothing is changed in what the profiler wrote, except that events and arguments
which no reader needs are left out, such as operators within operators, so that a file stays small. It needs torch and two cores, and
takes about ten seconds for each case. Let nothing else run beside it.
"""

import gzip
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

RANKS, WARM, STEPS = 2, 3, 5
KEPT_CATEGORIES = {"cpu_op", "user_annotation", "python_function"}
KEPT_ARGUMENTS = {
    "Collective name", "Process Group Name", "Process Group Ranks", "In msg nelems",
    "Out msg nelems", "dtype", "Group size", "Rank",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A training, and what makes it slow.

    sharded:     FSDP2 instead of DDP.
    width:       hidden size of the layers.
    layers:      how many there are.
    batch:       samples in a step, of each rank.
    load_s:      how long the data set sleeps for a batch, of each rank, in seconds.
    tiny_ops:    operators on few numbers after each layer.
    bucket_mb:   the size of DDP's buckets; gradients in one bucket are reduced after the backward.
    """

    sharded: bool = False
    width: int = 256
    layers: int = 4
    batch: tuple[int, int] = (512, 512)
    load_s: tuple[float, float] = (0.0, 0.0)
    tiny_ops: int = 0
    bucket_mb: int = 25


SLOWED = {
    "compute": {},
    "slow-rank": {"batch": (192, 768)},
    "communication": {"width": 1024, "batch": (2, 2), "bucket_mb": 1000},
    "data": {"batch": (64, 64), "load_s": (0.15, 0.15)},
    "host": {"width": 16, "batch": (2, 2), "layers": 4, "tiny_ops": 60},
    "data-of-one-rank": {"batch": (64, 64), "load_s": (0.0, 0.15)},
}
CASES = {
    f"{name}-{how}": Case(sharded=how == "fsdp2", **changes)
    for name, changes in SLOWED.items()
    for how in ("ddp", "fsdp2")
}


class Samples(Dataset):
    """Batches of random numbers that take `load_s` seconds to load."""

    def __init__(self, case, rank):
        self.case, self.rank = case, rank

    def __len__(self):
        return WARM + STEPS + 1

    def __getitem__(self, index):
        time.sleep(self.case.load_s[self.rank])
        return torch.randn(self.case.batch[self.rank], self.case.width)


class Layer(nn.Module):
    """Two products, and `tiny_ops` operators on few numbers."""

    def __init__(self, width, tiny_ops):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.tiny_ops = tiny_ops

    def forward(self, x):
        x = x + self.down(torch.relu(self.up(x)))
        for _ in range(self.tiny_ops):
            x = x + 0.001
        return x


def work(rank, name, folder, port):
    """One rank of the training `name`."""
    case = CASES[name]
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    layers = [Layer(case.width, case.tiny_ops) for _ in range(case.layers)]
    model = nn.Sequential(*layers)
    if case.sharded:
        mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model, bucket_cap_mb=case.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    path = Path(folder) / f"{name}.rank{rank}.json"
    steps = schedule(wait=WARM, warmup=1, active=STEPS)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=steps,
        on_trace_ready=lambda one: one.export_chrome_trace(str(path)),
    ) as profiler:
        for x in DataLoader(Samples(case, rank), batch_size=None):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.barrier()
    dist.destroy_process_group()


def kept(events):
    """`events` without what no reader needs: arguments, and operators within operators."""
    ends = {}
    slices = [event for event in events if event["ph"] == "X"]
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        if event.get("cat") not in KEPT_CATEGORIES:
            continue
        thread, end = event["tid"], event["ts"] + event["dur"]
        if event["cat"] == "cpu_op":
            if end <= ends.get(thread, 0):
                continue
            if event["name"].startswith("aten::"):
                ends[thread] = end
        arguments = {
            key: value for key, value in event.get("args", {}).items() if key in KEPT_ARGUMENTS
        }
        yield {key: value for key, value in event.items() if key != "args"} | {"args": arguments}


def write(source, folder):
    """Write the trace in the file `source`, shortened, to `folder`."""
    data = json.loads(source.read_text())
    data["traceEvents"] = list(kept(data["traceEvents"]))
    for key in ("host_name", "traceName"):  # They name the machine and its folders.
        data.pop(key, None)
    text = json.dumps(data, separators=(",", ":"))
    (folder / f"{source.name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for number, case_name in enumerate(sys.argv[2:] or CASES):
        with tempfile.TemporaryDirectory() as made:
            mp.spawn(work, (case_name, made, 29650 + number), nprocs=RANKS)
            for one in sorted(Path(made).glob("*.json")):
                write(one, target)
        print(case_name, [path.stat().st_size for path in target.glob(f"{case_name}.*")])
