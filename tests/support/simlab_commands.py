"""The command line of simlab, run in this process or in a shell."""

import json
import subprocess
import sys
from pathlib import Path

import simlab
from simlab.cli.main import main

ROOT = Path(simlab.__file__).parents[1]
SIMULATE = "simulate --schedule 1f1b --pp 4 --microbatches 8 --forward-ms 20 --backward-ms 40"
SCHEDULES = (
    "schedules --pp 4 --microbatches 8 --forward-ms 20 --input-grad-ms 20 --weight-grad-ms 20"
)
DEADLOCK = "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"


def run(capsys, command):
    """(exit status, stdout, stderr) of `python -m simlab COMMAND`, in this process."""
    status = main(command.split())
    return status, *capsys.readouterr()


def answer(capsys, command, status=0):
    """The object that `python -m simlab COMMAND --json` prints; COMMAND a line, or its words."""
    assert main([*words_of(command), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def refused(capsys, command, main=main):
    """The one line on stderr that says why COMMAND, a line or its words, is refused."""
    assert main(words_of(command)) == 2, command
    (line,) = capsys.readouterr().err.splitlines()
    return line


def words_of(command):
    return command.split() if isinstance(command, str) else command


def one_object(text):
    """The only JSON object in `text`, which is one line."""
    assert text.endswith("\n") and len(text.splitlines()) == 1
    return json.loads(text)


def hand_in(folder):
    """What a learner of a class hands in: progress, and a function."""
    folder.mkdir()
    kept = {"exercises": {"b07": {"solved": True, "tries": 2, "last_s": 1e9}}, "predictions": {}}
    (folder / "alice.json").write_text(json.dumps(kept), encoding="utf-8")
    code = 'task = exercise("b07")\ntask.check(lambda p, m, rank: m)\n'
    (folder / "alice.py").write_text(code, encoding="utf-8")


def in_a_shell(command, **options):
    return subprocess.run(
        [sys.executable, "-m", "simlab", *command.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        **options,
    )
