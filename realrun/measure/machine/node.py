"""The node around the device: copies between host and device, the drive, the sizes of memories, and
the names of what was measured."""

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

from realrun.comm.clock import now
from realrun.measure.machine.kernels import PRECISIONS
from realrun.measure.stopwatch import Stopwatch
from simlab.units import MIB


def host_copy_bytes_per_s(watch: Stopwatch, size: int = 64 * MIB) -> float:
    """Bytes per second between a GPU and its host's pinned memory, or within the memory where there
    is no GPU."""
    cuda = watch.device.type == "cuda"
    source = torch.ones(size, dtype=torch.uint8, pin_memory=cuda)
    target = torch.empty(size, dtype=torch.uint8, device=watch.device)
    return size / watch.seconds(lambda: target.copy_(source, non_blocking=True))


def drive_bytes_per_s(folder: str | Path, size: int = 32 * MIB) -> float:
    """Bytes per second that writing a file in `folder` reaches, until the system says that it is on
    the drive (fsync). `OSError` where nothing can be written."""
    path, data = Path(folder) / f".measure-{os.getpid()}", os.urandom(size)
    try:
        start_s = now()
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return size / (now() - start_s)
    finally:
        path.unlink(missing_ok=True)


def memory_sizes(device: torch.device, ranks: int) -> tuple[int, int]:
    """(bytes that a rank can allocate, bytes of the host's memory). On a CPU the ranks share what
    the host has."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host // ranks), host


def description(device: torch.device, ranks: int) -> dict[str, Any]:
    """What was measured: device, versions, threads and when."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else cpu_name(),
        "device_kind": device.type,
        "ranks": ranks,
        "precision": PRECISIONS[device.type][0],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "backend": "nccl" if cuda else "gloo",
        "sms": torch.cuda.get_device_properties(device).multi_processor_count if cuda else 1,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return f"{platform.processor() or 'cpu'} ({platform.machine()})"
