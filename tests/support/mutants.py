"""How many wrong changes the tests notice: some of mutmut's, drawn at random from a room.

    python tests/support/mutants.py simlab.cost 100     # of any room of [tool.mutmut] in pyproject
    python tests/support/mutants.py simlab.cost 100 1   # others: drawn with seed 1 instead of 0

A run of all would take days. The first run takes some minutes to learn which tests reach which
function; then a change that is noticed takes a few seconds and one that is not a minute or two. The
tests must pass without changes first. `mutmut show NAME` prints a change that was not noticed.
"""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

SURVIVED, NO_TESTS = 0, 33
"""Exit statuses that mutmut notes of a change's tests: all passed; there is none for it."""


def statuses():
    """{name of a change: exit status of its tests, None before they ran}"""
    found = {}
    for path in sorted(Path("mutants").rglob("*.meta")):
        found |= json.loads(path.read_text())["exit_code_by_key"]
    return found


def mutmut(*names):
    """Run the tests of these changes; what it prints goes to mutants/said."""
    Path("mutants").mkdir(exist_ok=True)
    with open("mutants/said", "a") as said:
        command = [sys.executable, "-m", "mutmut", "run", "--max-children", "1", *names]
        subprocess.run(command, stdout=said, stderr=said)


def main(room, count, seed=0):
    """Print the part of `count` changes that was noticed, and the names of the others."""
    mutmut("nothing")  # makes the changes, and learns which tests reach which function
    names = sorted(name for name in statuses() if name.startswith(f"{room}."))
    if not names:
        sys.exit(f"no changes in {room!r}: see mutants/said, and [tool.mutmut] in pyproject.toml")
    drawn = random.Random(int(seed)).sample(names, min(int(count), len(names)))
    mutmut(*drawn)
    ended = {name: statuses()[name] for name in drawn}
    missed = [name for name, status in ended.items() if status in (SURVIVED, NO_TESTS, None)]
    print(*missed, sep="\n")
    print(f"{len(drawn) - len(missed)} of {len(drawn)} changes of {len(names)} were noticed")
    print(f"exit statuses: {dict(Counter(ended.values()))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
