"""The losses of a training that breaks off and goes on are in one file, each step once."""

from pathlib import Path

import pytest

from realrun import Job, Pool
from realrun.record.losses import LossFile
from simlab.errors import SimlabError


def steps(folder):
    lines = (folder / "losses.csv").read_text().splitlines()
    assert lines[0] == "step,loss,gradient_norm,seconds"
    return [int(line.partition(",")[0]) for line in lines[1:]]


def test_a_training_that_goes_on_adds_to_the_losses(tmp_path):
    saving = {"plan": {"dp": 2}, "out": str(tmp_path), "check": False, "checkpoint_every": 3}
    with Pool(2) as pool:
        pool.run(Job(steps=6, warmup=0, **saving))
        before = (tmp_path / "dp2" / "losses.csv").read_text().splitlines()
        pool.run(Job(steps=8, warmup=0, resume=True, **saving))
    assert steps(tmp_path / "dp2") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (tmp_path / "dp2" / "losses.csv").read_text().splitlines()[:7] == before


def test_what_is_trained_again_is_written_again(tmp_path):
    file = LossFile(tmp_path)
    for step in range(1, 8):
        file.write(step, 2.0, None, 0.1)
    file.close()
    with (tmp_path / "losses.csv").open("a") as torn:
        torn.write("8,1.")
    file = LossFile(tmp_path, 5)
    file.write(6, 1.0, 0.5, 0.1)
    file.close()
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]
    LossFile(tmp_path).close()  # a new training
    assert steps(tmp_path) == []


@pytest.mark.parametrize("text", ["", "mine\n1,2\n"])
def test_losses_that_are_none_are_begun_anew(tmp_path, text):
    (tmp_path / "losses.csv").write_text(text)
    LossFile(tmp_path, 5).close()
    assert steps(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
def test_a_full_disk_is_told_with_the_file_and_what_to_do(tmp_path):
    (tmp_path / "losses.csv").symlink_to("/dev/full")
    with pytest.raises(SimlabError) as told:
        LossFile(tmp_path).write(1, 2.0, None, 0.1)
    assert str(told.value) == (
        f"cannot write {str(tmp_path / 'losses.csv')!r}: No space left on device; make room for it, "
        "and --resume goes on from the last checkpoint, if the run writes any"
    )
