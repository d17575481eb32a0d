"""A run of many steps needs no more memory and no more files than one of few."""

import threading
from pathlib import Path

import pytest

from realrun import Job, Pool

SIZES = {"layers": 1, "hidden": 16, "heads": 2, "seq": 16}
FEW, MANY = 200, 2000
SETTLED = 800
"""After so many steps torch's own record of collectives, a ring, is full."""
GROWTH_BYTES = 4 * 2**20
"""From there to the end, of a rank: its losses, and what the allocators keep. All that a rank records of
a step would be many times as much."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="it reads /proc")


def held_bytes(process):
    """What the process holds of memory that no file backs."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])


def trained(folder, steps):
    """([(step, bytes of each rank)] through a run of so many steps on two ranks, {file: bytes} that
    it leaves)"""
    job = Job(plan={"dp": 2}, sizes=SIZES, steps=steps, warmup=0, check=False, out=str(folder))
    seen, done = [], threading.Event()

    def look():
        losses = job.folder / "losses.csv"
        while not done.wait(0.05):
            if losses.exists():
                step = losses.read_bytes().count(b"\n") - 1
                seen.append((step, [held_bytes(process) for process in pool._processes.started]))

    with Pool(2) as pool:
        looks = threading.Thread(target=look)
        looks.start()
        try:
            pool.run(job)
        finally:
            done.set()
            looks.join()
    return seen, {path.name: path.stat().st_size for path in job.folder.iterdir()}


def test_memory_and_files_do_not_grow_with_the_steps(tmp_path):
    _, few = trained(tmp_path / "few", FEW)
    seen, many = trained(tmp_path / "many", MANY)
    first = next(ranks for step, ranks in seen if step > SETTLED)
    last = [ranks for step, ranks in seen if step < MANY][-1]
    assert max(b - a for a, b in zip(first, last)) < GROWTH_BYTES
    del few["losses.csv"], many["losses.csv"]  # the one that has a line of each step
    assert len(many) == len(few) and sum(many.values()) < 1.1 * sum(few.values())
