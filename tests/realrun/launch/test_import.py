"""Importing realrun needs neither torch nor processes: a browser's Python reads recordings too."""

import subprocess
import sys

MISSING = ("torch", "_multiprocessing", "multiprocessing.forkserver", "multiprocessing.connection")


def test_realrun_and_its_lessons_are_imported_where_there_are_no_processes_and_no_torch():
    hide = f"import sys; sys.modules.update(dict.fromkeys({MISSING!r}))"
    use = "import realrun, realrun.lessons.lesson; realrun.Job(plan={'dp': 2}).instructions(0)"
    subprocess.run([sys.executable, "-c", f"{hide}; {use}"], check=True)
