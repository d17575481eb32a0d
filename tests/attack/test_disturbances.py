"""What nobody scripted around a run: a disk that is full or slow, a folder that is deleted, another
run into the same folder. The run goes on, or ends with one line that says why, and leaves nothing."""

import re
import shutil
import signal
import subprocess
import sys

import pytest
from realrun_processes import ROOT

from realrun.checkpoint import save as checkpoint

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
DISK_BYTES = 4 * 2**20
SLOW = """
import os
from tests.support.slow_phase import be_slow
at_once, calls = os.fsync, []
def fsync(descriptor):
    calls.append(descriptor)
    if len(calls) == 1:
        be_slow()
    at_once(descriptor)
os.fsync = fsync
"""
"""The first file that a rank writes into a checkpoint takes longer to be on the disk than a step may."""
KINDS = [
    pytest.param(kind, backend, marks=[] if short else [pytest.mark.attack], id=f"{kind}-{backend}")
    for kind, backend, short in (
        ("local", "native", True),
        ("local", "torch", False),
        ("torchrun", "native", False),
        ("torchrun", "torch", False),
    )
]
EACH = pytest.mark.parametrize("kind, backend", KINDS)


@pytest.fixture
def start(command):
    """Start a run of so many steps, of local processes or of torchrun's."""

    def started(kind, backend, steps, *more, environment=None):
        begin = {"local": (), "torchrun": ("--standalone", "--nproc-per-node", 2, "-m", "realrun")}
        program = {"local": {}, "torchrun": {"command": TORCHRUN}}
        arguments = ("--dp", 2, "--backend", backend, "--steps", steps, *more)
        return command(*begin[kind], *arguments, environment=environment, **program[kind])

    return started


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of `DISK_BYTES`."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={DISK_BYTES}"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "none", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip("a small file system needs the right to mount one")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def trains(run, out):
    """Wait until `run`, which writes into `out`, has trained a few steps."""
    run.wait_until(
        lambda: any(path.read_text().count("\n") > 5 for path in out.glob("*/losses.csv"))
    )


def ended(run, out):
    """(exit status, what it says of its end) of a run that leaves no process, no file and no
    damaged checkpoint."""
    status, _, err = run.end()
    left = [name for name in run.temporary_files() if not name.startswith("torchelastic_")]
    assert run.gone() and not left  # those are torchrun's own, of a run that failed
    assert not re.search(r'File ".*/(realrun|simlab)/', err), (
        err
    )  # torchrun's own traces are not ours
    for step in checkpoint.complete(out / "checkpoints"):
        checkpoint.verify(checkpoint.path_of(out / "checkpoints", step))
    said = [line for line in err.splitlines() if line.startswith(("failed: ", "error: "))]
    speakers = 2 if "torch.distributed.run" in run.process.args else 1  # each rank of torchrun's
    assert (1 <= len(said) <= speakers) if status else not said, err
    return status, "".join(said)


@EACH
@pytest.mark.parametrize("saves", [False, True], ids=["no checkpoints", "checkpoints"])
def test_a_disk_that_fills_up(start, small_disk, kind, backend, saves):
    more = ("--checkpoint-every", 2) if saves else ()
    run = start(kind, backend, 5000, *more, "--out", small_disk)
    trains(run, small_disk)
    with open(small_disk / "filler", "wb", buffering=0) as filler:
        while run.process.poll() is None:
            try:
                filler.write(bytes(2**12))
            except OSError:
                break
    status, said = ended(run, small_disk)
    assert status == 1 and "No space left on device" in said


@EACH
@pytest.mark.parametrize("saves", [False, True], ids=["no checkpoints", "checkpoints"])
def test_a_folder_that_is_deleted(start, tmp_path, kind, backend, saves):
    more = ("--checkpoint-every", 2) if saves else ()
    run = start(kind, backend, 400, *more)
    trains(run, tmp_path / "out")
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    status, said = ended(run, tmp_path / "out")
    assert status == 1 and "out" in said


@EACH
def test_a_slow_disk_ends_no_run(start, tmp_path, kind, backend):
    """Neither a save that takes longer than the timeout, nor going on from it."""
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    slow = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for steps in (2, 4):
        more = ("--timeout", 2, "--warmup", 0, "--checkpoint-every", 2, "--resume")
        run = start(kind, backend, steps, *more, environment=slow)
        assert ended(run, tmp_path / "out")[0] == 0
        assert checkpoint.complete(tmp_path / "out" / "checkpoints")[-1] == steps


@EACH
def test_a_second_run_into_the_folder_is_refused_and_the_first_goes_on(
    start, tmp_path, kind, backend
):
    first = start(kind, backend, 5000)
    trains(first, tmp_path / "out")
    status, said = ended(start(kind, backend, 1), tmp_path / "out")
    assert status != 0 and "another run writes into" in said
    assert first.process.poll() is None
    first.process.send_signal(signal.SIGTERM)
    first.end()
