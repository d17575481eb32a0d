"""The folder that `--out` names: only files that an earlier run wrote there are ever removed."""

import json
import os

import pytest

from realrun.launch.folder import MARK, prepare
from realrun.launch.lock import LOCK, held
from realrun.run.job import Job
from simlab.errors import InputError
from simlab.schedules import generate

PROGRAM = str(generate("1f1b", 2, 4))
OURS = (
    "partial-step-7.json",
    "partial-warm-up-1.json",
    "program.csv",
    "measured-step-1.json",
    "rank1.records",
    "timeline.png",
    "loss.png",
)


def pipeline(out, name="1f1b", **fields):
    return Job(programs={name: PROGRAM}, compute="padded", out=str(out), steps=2, **fields)


def plan(out):
    return Job(plan={"dp": 2}, out=str(out), steps=2)


def files(folder):
    """[path of each file below `folder`, marks left out]."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != MARK)
    return sorted(str(path.relative_to(folder)) for path in found)


def test_a_programs_own_file_in_the_out_folder_stays(tmp_path):
    """`--csv d/program.csv --out d` once removed the program it was asked to run."""
    for name in ("program.csv", "music.records", "timeline.png", "predicted.json"):
        (tmp_path / name).write_text("mine")
    prepare(pipeline(tmp_path, name="program"))
    assert files(tmp_path) == ["music.records", "predicted.json", "program.csv", "timeline.png"]


@pytest.mark.parametrize("make, folder", [(pipeline, "1f1b"), (plan, "dp2")])
def test_what_a_run_would_write_over_is_refused_if_no_run_wrote_it(tmp_path, make, folder):
    (tmp_path / folder).mkdir()
    mine = tmp_path / folder / "timeline.png"
    mine.write_text("mine")
    with pytest.raises(InputError) as caught:
        prepare(make(tmp_path))
    assert str(caught.value) == (
        f"{str(mine)!r} is in the way, and no run here wrote it: move it, or name another --out"
    )
    assert mine.read_text() == "mine" and files(tmp_path) == [f"{folder}/timeline.png"]


@pytest.mark.parametrize("name", ["rank7.records", "measured-step-99.json", "calibration.json"])
def test_a_file_that_a_run_would_read_as_its_own_is_refused(tmp_path, name):
    folder = tmp_path if name == "calibration.json" else tmp_path / "1f1b"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    with pytest.raises(InputError, match=f"{name}' is in the way, and no run here wrote it"):
        prepare(pipeline(tmp_path))


@pytest.mark.parametrize("make, folder", [(pipeline, "1f1b"), (plan, "dp2")])
def test_the_next_run_removes_what_this_one_wrote_and_nothing_else(tmp_path, make, folder):
    prepare(make(tmp_path))
    for name in (*OURS, "notes.txt", "music.records"):
        (tmp_path / folder / name).write_text("x")
    prepare(make(tmp_path))
    assert files(tmp_path) == [f"{folder}/music.records", f"{folder}/notes.txt"]


def test_a_run_that_goes_on_keeps_the_losses_until_then(tmp_path):
    prepare(plan(tmp_path))
    losses = tmp_path / "dp2" / "losses.csv"
    losses.write_text("step,loss,gradient_norm,seconds\n")
    prepare(Job(plan={"dp": 2}, out=str(tmp_path), checkpoint_every=1, resume=True))
    assert losses.exists()
    prepare(plan(tmp_path))
    assert not losses.exists()


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_nothing_is_everybodys_to_write_whatever_the_process_allows(tmp_path):
    before = os.umask(0)
    try:
        job = Job(plan={"dp": 2}, out=str(tmp_path / "out"), checkpoint_every=1)
        with held([job]):
            prepare(job)
            modes = {path: path.lstat().st_mode for path in tmp_path.rglob("*")}
        assert os.umask(0) == 0  # it is the process's own again
    finally:
        os.umask(before)
    assert {path.name for path in modes} >= {"out", "dp2", MARK, LOCK, "checkpoints"}
    assert [path for path, mode in modes.items() if mode & 0o002] == []


def test_files_of_a_longer_earlier_run_are_removed_too(tmp_path):
    prepare(pipeline(tmp_path))
    (tmp_path / "1f1b" / "measured-step-1.json").write_text("x")
    prepare(Job(programs={"1f1b": PROGRAM}, compute="padded", out=str(tmp_path), steps=1))
    assert files(tmp_path) == []


def test_the_mark_names_what_is_written_and_says_whose_it_is(tmp_path):
    prepare(pipeline(tmp_path))
    mark = json.loads((tmp_path / "1f1b" / MARK).read_text())
    assert mark["written_by"] == "realrun" and set(OURS[2:]) <= set(mark["files"])
    assert "partial-gradient-check.json" in mark["files"]
    assert json.loads((tmp_path / MARK).read_text())["files"] == ["calibration.json", "report.html"]


@pytest.mark.parametrize(
    "mark",
    ["", "no JSON", "[]", '{"files": ["notes.txt"]}', '{"written_by": "realrun", "files": 3}'],
)
def test_a_mark_that_is_not_ours_names_nothing(tmp_path, mark):
    (tmp_path / "1f1b").mkdir()
    (tmp_path / "1f1b" / MARK).write_text(mark)
    (tmp_path / "1f1b" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"\.realrun\.json' is in the way"):
        prepare(pipeline(tmp_path))
    assert (tmp_path / "1f1b" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["../mine.txt", "notes.txt", "sub/timeline.png"])
def test_a_mark_cannot_name_what_no_run_writes(tmp_path, name):
    folder = tmp_path / "1f1b"
    (folder / "sub").mkdir(parents=True)
    (folder / name).write_text("mine")
    (folder / MARK).write_text(json.dumps({"written_by": "realrun", "files": [name]}))
    prepare(pipeline(tmp_path))
    assert (folder / name).read_text() == "mine"


@pytest.mark.parametrize("first, then", [(pipeline, plan), (plan, pipeline)])
def test_a_pipeline_and_a_plan_may_follow_each_other_in_one_folder(tmp_path, first, then):
    prepare(first(tmp_path))
    (tmp_path / "report.html").write_text("written by the first run")
    prepare(then(tmp_path))
    assert files(tmp_path) == []
