"""How many workers of pytest-xdist a machine gets for `-p tests.support.workers -n auto`. What is
imported of the project is so in the process that starts them, where no test runs."""

import os
from pathlib import Path

import pytest

WORKER_BYTES = 1.5 * 2**30
"""Of a worker with the processes of its test: eight ranks of torchrun's, or a browser and its pages."""
PER_CORE = 1.5
"""Half of the files wait for processes more than they compute."""
GROUPS = Path("/sys/fs/cgroup")


@pytest.hookimpl(tryfirst=True)  # else xdist's own answers
def pytest_xdist_auto_num_workers(config) -> int:
    """As many as cores and memory are there for, and at least one."""
    asked = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return int(asked) if asked else workers(cores(), memory_bytes())


def workers(cores: float, memory_bytes: float) -> int:
    """`PER_CORE` for each core, where each has `WORKER_BYTES`."""
    return max(1, int(min(PER_CORE * cores, memory_bytes / WORKER_BYTES)))


def cores(groups: Path = GROUPS) -> float:
    """That this process may use, and has time on: a container may have less than its machine."""
    from realrun.measure.cores import usable_cores

    both = limits(groups / "cpu.max") or [
        *limits(groups / "cpu/cpu.cfs_quota_us"), *limits(groups / "cpu/cpu.cfs_period_us")
    ]  # fmt: skip
    return min([usable_cores(), *([both[0] / both[1]] if len(both) == 2 else [])])


def memory_bytes(groups: Path = GROUPS) -> float:
    """That is free on this machine, and no more than this process's group may have."""
    from realrun.measure.local_memory import available_memory

    own = limits(groups / "memory.max") or limits(groups / "memory/memory.limit_in_bytes")
    return min([available_memory() or 0, *own])


def limits(path: Path) -> list[int]:
    """The numbers in a file of a control group; none where there is no limit or no such file."""
    try:
        words = path.read_text().split()
    except OSError:
        return []
    return [int(word) for word in words] if all(map(str.isdigit, words)) else []
