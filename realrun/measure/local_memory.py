"""Whether the memory of this machine is enough for the processes of a run."""

import os
from pathlib import Path

from simlab.errors import InputError
from simlab.units import GIB

PROCESS_BYTES = 0.15 * GIB
"""Memory of one process: the proportional set size of a rank with torch 2.13 on a CPU, rounded up."""


def check_memory(ranks: int, model_bytes: float) -> None:
    """`InputError` if `ranks` processes with `model_bytes` in them together do not fit into what is
    free now."""
    available_bytes, needed_bytes = available_memory(), ranks * PROCESS_BYTES + model_bytes
    if available_bytes is not None and needed_bytes > 0.9 * available_bytes:
        raise InputError(
            f"{ranks} processes need about {needed_bytes / GIB:.1f} GiB of memory, {available_bytes / GIB:.1f} GiB is free: "
            "use fewer pipeline stages (--pp), fewer microbatches or a smaller model (--layers, --hidden, --seq)"
        )


def available_memory() -> int | None:
    """Bytes that new processes can have without swapping, or None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")
        )
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # Windows; a system that does not count pages
        return None
