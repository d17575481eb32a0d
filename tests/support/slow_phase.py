"""For a process of a run: a phase that takes longer than a step may. So that no step of a slow machine
does, the watch over the steps looks only while a rank is in such a phase."""

import os
import time
from pathlib import Path

from realrun.run.watch import Watch

TIMEOUT_S, SLOW_S = 2, 5
SLOW = Path("slow").absolute()
"""A folder with a file of each rank that is slow now."""
SLOW.mkdir(exist_ok=True)
stuck = Watch.stuck
Watch.stuck = lambda watch: stuck(watch) if any(SLOW.iterdir()) else None


def be_slow():
    """Take longer than the two seconds that are the --timeout of the run."""
    here = SLOW / str(os.getpid())
    here.touch()
    time.sleep(5)
    here.unlink()
