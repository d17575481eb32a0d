"""How many wrong changes the tests notice: some of mutmut's, drawn at random from a room.

    python tests/support/mutants.py simlab.cost 100     # of any room of [tool.mutmut] in pyproject
    python tests/support/mutants.py simlab.cost 100 1   # others: drawn with seed 1 instead of 0

A run of all would take days. mutmut makes the changes, and learns in some minutes which tests reach
which function; the selected tests must pass without changes first. They are then collected once, in a
process that is forked for each change (mutmut's own collects them again for each, which takes longer
than the tests). The fork runs all tests that reach the changed function, those of its own room first,
until one fails. A change is noticed if a test fails that passes without the change; it hangs if its
tests take five times as long as without it. `mutmut show NAME` prints a change that was not noticed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

NOTICED, SURVIVED, HANGS, NO_TESTS = "noticed", "survived", "hangs", "reached by no selected test"
FAILS_WITHOUT = "its test fails without it, too"


def mutmut(*names):
    """Have mutmut make the changes and learn what reaches them; what it prints goes to mutants/said."""
    Path("mutants").mkdir(exist_ok=True)
    with open("mutants/said", "a") as said:
        command = [sys.executable, "-m", "mutmut", "run", "--max-children", "1", *names]
        subprocess.run(command, stdout=said, stderr=said)


def changes(room):
    """The names of all changes of a room, in order."""
    found = []
    for path in sorted(Path("mutants").rglob("*.meta")):
        found += json.loads(path.read_text())["exit_code_by_key"]
    return sorted(name for name in found if name.startswith(f"{room}."))


class Judge:
    """A pytest plugin: in place of running the collected tests once, it judges changes.

    drawn: their names. verdicts: {name: one of the constants above}, filled as they are judged.
    """

    def __init__(self, drawn):
        """Read mutmut's table of which tests reach which function, and of how long they take."""
        self.drawn, self.verdicts, self.killers = drawn, {}, {}
        stats = json.loads(Path("mutmut-stats.json").read_text())
        self.reached_by = stats["tests_by_mangled_function_name"]
        self.seconds = stats["duration_by_test"]

    def pytest_runtestloop(self, session):
        """Judge all changes, then see that each test that noticed one passes without it."""
        self.items = {item.nodeid: item for item in session.items}
        for name in self.drawn:
            self.verdicts[name] = self._judged(name)
            print(f"{self.verdicts[name]:<28}{name}  {self.killers.get(name, '')}", flush=True)
        for killer in set(self.killers.values()):
            if self._failed("", [self.items[killer]], 600) is not None:
                for name in [name for name, test in self.killers.items() if test == killer]:
                    self.verdicts[name] = FAILS_WITHOUT
        return True

    def _judged(self, name):
        tests = self.reached_by.get(name.rpartition("__mutmut_")[0], [])
        tests = [self.items[test] for test in tests if test in self.items]
        if not tests:
            return NO_TESTS
        room = "/".join(name.split(".")[:2])
        tests.sort(key=lambda item: (room not in item.nodeid, self.seconds.get(item.nodeid, 0)))
        limit_s = 60 + 5 * sum(self.seconds.get(item.nodeid, 0) for item in tests)
        failed = self._failed(name, tests, limit_s)
        if isinstance(failed, str):
            self.killers[name] = failed
            return NOTICED
        return SURVIVED if failed is None else HANGS

    def _failed(self, name, tests, limit_s):
        """The first of the tests that fails with the change `name` ("" is none), in a process of its
        own; None if all pass, False if they are not through after limit_s."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            os.environ["MUTANT_UNDER_TEST"] = name
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            for item, following in zip(tests, [*tests[1:], None], strict=True):
                reports = runtestprotocol(item, log=False, nextitem=following)
                if any(report.failed for report in reports):
                    os.write(writing, item.nodeid.encode())
                    break
            os._exit(0)
        os.close(writing)
        end = time.monotonic() + limit_s
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                os.close(reading)
                return False
            time.sleep(0.02)
        with open(reading) as said:
            return said.read() or None


def main(room, count, seed=0):
    """Print the part of `count` changes that was noticed, and what became of the others."""
    options = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["mutmut"]
    mutmut("nothing")
    names = changes(room)
    if not names:
        sys.exit(f"no changes in {room!r}: see mutants/said, and [tool.mutmut] in pyproject.toml")
    drawn = random.Random(int(seed)).sample(names, min(int(count), len(names)))
    os.chdir("mutants")
    sys.path.insert(0, os.getcwd())
    judge = Judge(drawn)
    selected = options["pytest_add_cli_args_test_selection"]
    pytest.main(["--rootdir=.", *options["pytest_add_cli_args"], *selected], plugins=[judge])
    verdicts = Counter(judge.verdicts.values())
    print(
        f"{verdicts[NOTICED]} of {len(drawn)} changes of {len(names)} were noticed: {dict(verdicts)}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
