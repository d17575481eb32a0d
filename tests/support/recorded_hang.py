"""It makes the flight recorder's dumps in tests/simlab/diagnosis/dumps: three processes on gloo, of
which rank 1 leaves out the fourth all-reduce.

    python tests/support/recorded_hang.py tests/simlab/diagnosis/dumps
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, folder):
    """One rank: three all-reduces, then one that rank 1 leaves out."""
    os.environ.update(TORCH_FR_BUFFER_SIZE="200", MASTER_ADDR="127.0.0.1", MASTER_PORT="29777")
    dist.init_process_group("gloo", rank=rank, world_size=3, timeout=timedelta(seconds=4))
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if rank != 1:
        work.hanging = dist.all_reduce(torch.ones(8), async_op=True)
    time.sleep(1)
    dump = torch._C._distributed_c10d._dump_fr_trace_json()
    (Path(folder) / f"dump_rank_{rank}.json").write_bytes(
        dump if isinstance(dump, bytes) else dump.encode()
    )
    os._exit(0)  # Nobody waits for what can never end.


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=3)
