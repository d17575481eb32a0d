"""A command that is broken off early, and processes whose launcher is gone while they are stopped."""

import os
import signal
import sys
import time

import pytest
from realrun_processes import ROOT

HOOK = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("INTERRUPTED_AT"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""
"""^C at the moment in which a module is imported."""


@pytest.mark.parametrize(
    "package, module",
    [
        ("simlab", "simlab.analysis"),
        ("simlab", "simlab.cli.main"),
        ("realrun", "simlab.trace"),
        ("realrun", "realrun.cli.main"),
    ],
)
def test_an_interrupt_while_a_command_imports_is_one_word(command, tmp_path, package, module):
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    run = command(
        "-m", package, "--help", command=(sys.executable,),
        environment={"PYTHONPATH": f"{tmp_path}:{ROOT}", "INTERRUPTED_AT": module},
    )  # fmt: skip
    assert run.end() == (1, "", "interrupted\n")


def test_an_interrupt_of_another_program_stays_an_error(command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    run = command(
        "-c", "import simlab", "-m", "simlab", command=(sys.executable,),
        environment={"PYTHONPATH": f"{tmp_path}:{ROOT}", "INTERRUPTED_AT": "simlab.analysis"},
    )  # fmt: skip
    assert "KeyboardInterrupt" in run.end()[2]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_the_fork_server_does_not_outlive_a_command_that_ends_while_it_imports(command):
    run = command("--dp", 2)
    run.wait_until(run.fork_server)
    time.sleep(0.3)  # it imports torch for seconds
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 1 and run.gone(within_s=1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_processes_that_are_stopped_end_with_a_launcher_that_is_killed(command):
    run = command("--dp", 2, "--steps", 100_000)
    run.say_until("tokens/s")
    os.kill(run.workers()[1], signal.SIGSTOP)
    os.kill(run.fork_server(), signal.SIGSTOP)
    run.process.kill()
    assert run.gone(within_s=10.0)
