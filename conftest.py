"""What all tests and lessons share: surroundings of their own, the order of the files, and what was
skipped.

The suite reads nothing of the person who runs it. Before anything of the project is imported, this
process, and so every worker and every child, gets a home that is empty, and of its environment only
what `KEPT` names: no settings of a shell, a terminal, matplotlib, Jupyter, torch or a cluster's job.
"""

import atexit
import os
import shutil
import site
import tempfile
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KEPT = {
    # where programs and packages are
    *("PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("TMPDIR", "CUDA_HOME", "CUDA_VISIBLE_DEVICES"),
    # what this processor needs of OpenBLAS
    *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),
    # what is asked of the tests
    *("CI", "EXAMPLES", "GRID", "SHOTS", "ALL_LESSONS", "PYTEST_XDIST_AUTO_NUM_WORKERS"),
}
OWN = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "xterm",
    "COLUMNS": "80",
    "LINES": "24",
    "OMP_NUM_THREADS": "1",  # several workers, each with several ranks, share the cores
    # the checkout may belong to somebody else than the one who runs the tests
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
WAIT = ("attack", "realrun")
"""Folders of tests that mostly wait for processes; so do the lessons."""


def enter_own_surroundings():
    """Replace this process's environment; return the home that it has from now on.

    Packages that were installed with `pip install --user` stay where they are: the folder of the
    person's own packages is named, since it can no longer be found from the home."""
    home = tempfile.mkdtemp(prefix="home-of-tests-")
    kept = {name: text for name, text in os.environ.items() if name in KEPT}
    own = {"HOME": home, "PYTHONUSERBASE": site.getuserbase() or ""}
    os.environ.clear()
    os.environ.update(kept | OWN | own)
    os.umask(0o022)
    return home


IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ  # it was started from surroundings of its own
if not IS_WORKER:
    # at the very end: whatever is imported later, such as IPython, says goodbye before that
    atexit.register(shutil.rmtree, enter_own_surroundings(), ignore_errors=True)


@pytest.fixture(autouse=True)
def new_learner(monkeypatch, tmp_path_factory):
    """Every test begins with somebody who has done nothing yet and reads English."""
    file = tmp_path_factory.getbasetemp() / "progress.json"
    file.unlink(missing_ok=True)
    monkeypatch.setenv("SIMLAB_PROGRESS", str(file))
    monkeypatch.setenv("SIMLAB_LANG", "en")


def pytest_collection_modifyitems(items):
    """A file whose tests wait beside one whose tests compute: so neither stand idle nor starve."""
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [path for path in files if path.suffix == ".ipynb"]
    waiting += [path for path in files if path.is_relative_to(HERE) and _waits(path)]
    others = [path for path in files if path not in waiting]
    pairs = zip_longest(waiting, others)
    items[:] = [item for pair in pairs for path in pair if path for item in files[path]]


def _waits(path):
    folders = path.relative_to(HERE).parts
    return folders[0] == "tests" and folders[1] in WAIT


def pytest_terminal_summary(terminalreporter):
    """One line for each kind of test that was skipped: how many, why, and how to get it."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(_reason(report) for report in skipped)
    if reasons:
        terminalreporter.section("skipped on this machine")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4} {'test' if count == 1 else 'tests'}: {reason}")


def _reason(report):
    """Why a test was skipped. pytest has it behind "Skipped: ", with the place in the file."""
    _, _, said = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, report.longrepr)
    return str(said).removeprefix("Skipped: ")
