"""A gate before a phase of a run: every process that gets there notes it and waits until it opens."""

import os

from realrun_processes import eventually

CUSTOM = """
import os, time
from pathlib import Path
from realrun.run import life
folder, enter = Path(os.environ["REALRUN_TEST_GATE"]), life.Doing.enter
def gated(self, text, limit_s=life.PHASE_LIMIT_S):
    here = text == os.environ["REALRUN_TEST_PHASE"]
    late = here or (folder / "open").exists()
    enter(self, text, min(limit_s, 6.0) if late and limit_s < life.UNLIMITED_S else limit_s)
    if here:
        (folder / f"at-{os.getpid()}").touch()
        while not (folder / "open").exists():
            time.sleep(0.02)
life.Doing.enter = gated
"""


class Gate:
    """Ranks wait as they enter `phase`, a text that `realrun.run.life.Doing` is told. Its limit and
    those of later phases are six seconds."""

    def __init__(self, folder, phase, root):
        self.folder = folder
        (folder / "sitecustomize.py").write_text(CUSTOM)
        self.environment = {
            "PYTHONPATH": os.pathsep.join([str(folder), str(root)]),
            "REALRUN_TEST_GATE": str(folder),
            "REALRUN_TEST_PHASE": phase,
        }

    def reached(self, processes, within_s=120):
        """[pids] of the processes that wait, once there are so many."""
        assert eventually(lambda: len(list(self.folder.glob("at-*"))) >= processes, within_s)
        return sorted(int(path.name[3:]) for path in self.folder.glob("at-*"))

    def open(self):
        """Let them go on."""
        (self.folder / "open").touch()
