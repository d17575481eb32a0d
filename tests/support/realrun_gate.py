"""A gate before a phase of a run: every process that gets there notes it and waits until it opens."""

import os

from tests.support.realrun_processes import ROOT

CUSTOM = """
import os, time
from pathlib import Path
from realrun.run import life
folder, enter = Path(os.environ["REALRUN_TEST_GATE"]), life.Doing.enter
def gated(self, text, *limit_s):
    enter(self, text, *limit_s)
    if text == os.environ["REALRUN_TEST_PHASE"]:
        (folder / f"at-{os.getpid()}").touch()
        while not (folder / "open").exists():
            time.sleep(0.02)
life.Doing.enter = gated
"""


class Gate:
    """Ranks wait as they enter `phase`, a text that `realrun.run.life.Doing` is told."""

    def __init__(self, folder, phase):
        self.folder = folder
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(CUSTOM)
        self.environment = {
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
            "REALRUN_TEST_GATE": str(folder),
            "REALRUN_TEST_PHASE": phase,
        }

    def reached(self, run, processes):
        """[pids] of the processes of `run`, a `CommandLine`, that wait, once there are so many."""
        run.wait_until(lambda: len(list(self.folder.glob("at-*"))) >= processes)
        return sorted(int(path.name[3:]) for path in self.folder.glob("at-*"))

    def open(self):
        """Let them go on."""
        (self.folder / "open").touch()
