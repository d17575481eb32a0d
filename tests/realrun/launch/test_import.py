"""Importing realrun needs neither torch nor processes: a browser's Python reads recordings too. Nor does
the process that starts ranks need torch: it would only take time and memory."""

import subprocess
import sys

MISSING = ("torch", "_multiprocessing", "multiprocessing.forkserver", "multiprocessing.connection")


def test_realrun_and_its_lessons_are_imported_where_there_are_no_processes_and_no_torch():
    hide = f"import sys; sys.modules.update(dict.fromkeys({MISSING!r}))"
    use = "import realrun, realrun.lessons.lesson; realrun.Job(plan={'dp': 2}).instructions(0)"
    subprocess.run([sys.executable, "-c", f"{hide}; {use}"], check=True)


def test_the_launcher_of_a_run_imports_no_torch(tmp_path):
    job = f"realrun.Job(plan={{'dp': 2}}, steps=1, out={str(tmp_path)!r})"
    use = f"with realrun.Pool(2) as pool: answer = pool.run({job})"
    see = "assert answer['measured_step_s'] > 0 and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"import sys, realrun\n{use}\n{see}"], check=True)
