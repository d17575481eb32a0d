"""A signal to a rank or to the launcher in each phase of a run: it ends with one line and without a
traceback, and leaves no process, temporary file or damaged checkpoint behind."""

import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from realrun_gate import Gate

from realrun.checkpoint import save as checkpoint
from realrun.launch.worker import SILENCE_S
from tests.support.patience import eventually

PHASES = [
    "comparing clocks and calibrating",
    "checking gradients",
    "training",
    "saving the last checkpoint",
    "gathering recordings and writing traces",
]
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
OWN_FRAME = r'File ".*/(realrun|simlab)/'
"""A line of a traceback through our code; torchrun writes tracebacks through its own."""
STOPPED_S = 2 * SILENCE_S
"""Within this time a rank that is stopped is named, and the run ends."""
SHORT = [("training", "rank", signal.SIGKILL)]
"""The part of the matrix that runs with the other tests."""


@pytest.fixture(scope="module")
def tally():
    """Counts how the cells ended, and prints it after the last."""
    counts, started_s = Counter(), time.monotonic()
    yield counts
    took_s = time.monotonic() - started_s
    said = ", ".join(f"{number} {how}" for how, number in sorted(counts.items()))
    print(f"\nsignals: {said}; {took_s:.0f} s")


def stops():
    """[a pytest parameter of each phase and backend in which a rank is stopped]; all but one are
    marked."""
    for backend in ("native", "torch"):
        for phase in PHASES:
            short = (backend, phase) == ("native", "saving the last checkpoint")
            marks = [] if short else [pytest.mark.attack]
            yield pytest.param(backend, phase, id=f"{backend}-{phase.split()[0]}", marks=marks)


def torchruns_cells():
    """[a pytest parameter of each phase and backend, of rank 0 and 1 and of the launcher's process,
    and of a signal]: all marked, for the tests of torchrun have a short part of them. The launcher
    knows nothing of backends."""
    lost = [(which, number) for which in (0, 1) for number in (signal.SIGSTOP, signal.SIGKILL)]
    lost += [("launcher", signal.SIGTERM)]
    more = [("launcher", n) for n in (signal.SIGSTOP, signal.SIGKILL, signal.SIGINT, signal.SIGHUP)]
    for backend in ("native", "torch"):
        for phase in (*PHASES, "reporting"):
            for which, number in lost + more * (backend == "native"):
                yield pytest.param(
                    backend, phase, which, number,
                    id=f"{backend}-{phase.split()[0]}-{which}-{number.name}",
                    marks=[pytest.mark.attack],
                )  # fmt: skip


def cells():
    """[a pytest parameter of each cell]; all but `SHORT` of the native backend are marked."""
    for backend in ("native", "torch"):
        for phase in PHASES:
            for target in ("rank", "launcher"):
                for number in SIGNALS:
                    short = backend == "native" and (phase, target, number) in SHORT
                    yield pytest.param(
                        backend, phase, target, number,
                        id=f"{backend}-{phase.split()[0]}-{target}-{number.name}",
                        marks=[] if short else [pytest.mark.attack],
                    )  # fmt: skip


@pytest.mark.parametrize("backend, phase, target, number", list(cells()))
def test_a_signal_in_a_phase(command, tally, tmp_path, backend, phase, target, number):
    tally["tried"] += 1
    gate = Gate(tmp_path / "gate", phase)
    run = command(
        "--dp", 2, "--steps", 6, "--checkpoint-every", 2, "--timeout", SILENCE_S, "--backend", backend,
        environment=gate.environment,
    )  # fmt: skip
    ranks = gate.reached(run, 2)
    os.kill(ranks[1] if target == "rank" else run.process.pid, number)
    gate.open()
    status, out, err = run.end()
    assert "Traceback" not in err + out, err
    assert run.gone()
    said = [line for line in err.splitlines() if line.startswith(("failed: ", "error: ", "ended"))]
    if target == "launcher" and number == signal.SIGKILL:
        assert status == -signal.SIGKILL  # nothing can be said; all ranks are gone
    else:
        assert status in (0, 1, 128 + number), err
        assert len(said) == 1 or status == 0 or "interrupted" in err, err
        if number == signal.SIGKILL:
            assert status == 1 and "rank 1" in said[0], err
        assert not run.temporary_files()
    for folder in Path(tmp_path).glob("out/checkpoints"):
        for step in checkpoint.complete(folder):
            checkpoint.verify(folder / f"step-{step:06d}")
    tally["went on" if status == 0 else "ended as they should"] += 1


@pytest.mark.parametrize("backend, phase", list(stops()))
def test_a_rank_that_is_stopped_in_a_phase_is_named_with_it(command, tmp_path, backend, phase):
    gate = Gate(tmp_path / "gate", phase)
    run = command(
        "--dp", 2, "--steps", 6, "--checkpoint-every", 2, "--timeout", SILENCE_S, "--backend", backend,
        environment=gate.environment,
    )  # fmt: skip
    stopped = gate.reached(run, 2)[1]
    os.kill(stopped, signal.SIGSTOP)
    gate.open()
    status, out, err = run.end()
    assert "Traceback" not in err + out, err
    assert run.gone() and not run.temporary_files()
    last = err.splitlines()[-1]
    assert status == 1 and last.startswith(
        f"failed: rank 1 (process {stopped}) has not answered"
    ), err
    # steps, and the gradients' one, are named by what the ranks do in them
    assert phase in last or "no rank has moved" in last, err
    assert last.count("has not answered") == 1, err


@pytest.mark.parametrize("backend, phase, which, number", list(torchruns_cells()))
def test_under_torchrun_who_is_lost_is_named_and_the_run_ends(
    command, tally, tmp_path, backend, phase, which, number
):
    tally["tried"] += 1
    gate = Gate(tmp_path / "gate", phase)
    run = command(
        "--standalone", "--nproc-per-node", 2, "-m", "realrun", "--dp", 2, "--steps", 6,
        "--checkpoint-every", 2, "--timeout", 5, "--backend", backend,
        command=TORCHRUN, environment=gate.environment,
    )  # fmt: skip
    lost = run.process.pid if which == "launcher" else gate.reached(run, 2)[which]
    gate.reached(run, 2)
    os.kill(lost, number)
    started_s = time.monotonic()
    gate.open()
    if (which, number) == ("launcher", signal.SIGSTOP):  # the ranks end; it can when it goes on
        assert eventually(lambda: [*run.processes()] == [lost], STOPPED_S)
        os.kill(lost, signal.SIGCONT)
    status, _, err = run.end()
    took_s = time.monotonic() - started_s
    assert run.gone() and not re.search(OWN_FRAME, err), err
    said = [line for line in err.splitlines() if line.startswith(("failed: ", "error: ", "ended"))]
    if which == "launcher":
        # torchrun says that it got a signal, unless it cannot
        assert said or "ignal" in err or status == -number, err
    else:
        assert status == 1 and took_s < STOPPED_S, (took_s, err)
        what = "has not been heard of for" if number == signal.SIGSTOP else "has ended"
        named = rf": rank \d \(process {lost} on \S+\) {what}"
        assert any(re.search(named, line) for line in said), err
    tally["went on" if status == 0 else "ended as they should"] += 1


ENDS = "the fork server (process {}), which starts all ranks, "


@pytest.mark.parametrize(
    "phase, number, says",
    [
        pytest.param("starting", signal.SIGKILL, "has ended", marks=pytest.mark.attack),
        pytest.param(
            "starting",
            signal.SIGSTOP,
            "has not answered for 8 s or more, and was killed",
            marks=pytest.mark.attack,
        ),
        ("training", signal.SIGKILL, "has ended, and the ranks with it"),
        pytest.param("training", signal.SIGSTOP, "", marks=pytest.mark.attack),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_process_that_starts_the_ranks_is_named_too(command, tmp_path, phase, number, says):
    """multiprocessing waits for it without a limit. A training does not need it, nor does its end."""
    gate = Gate(tmp_path / "gate", "training")
    run = command("--dp", 2, "--steps", 6, environment=gate.environment)
    run.say_until("starting 2 processes")
    run.wait_until(run.fork_server)
    server = run.fork_server()
    if phase == "training":
        gate.reached(run, 2)
    os.kill(server, number)
    if not says:  # else it is over while the ranks wait at the gate, before they can be done
        gate.open()
    status, _, err = run.end()
    assert run.gone() and not run.temporary_files() and "Traceback" not in err, err
    assert status == (1 if says else 0), err
    if says:
        assert err.splitlines()[-1] == f"failed: {ENDS.format(server)}{says}"
