"""What people do with a pool: fork it, change the folder, give it a callback that raises."""

import json
import os

import pytest

from realrun import Job, Pool
from simlab.errors import InputError

QUICK = {"steps": 2, "check": False}


def test_a_fork_of_the_process_that_started_a_pool_cannot_use_it_and_ends_nothing(tmp_path):
    with Pool(2) as pool:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with pool:
                    pool.run(Job(plan={"dp": 2}, out=str(tmp_path / "fork"), **QUICK))
            except InputError as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        said = os.read(reader, 1000).decode()
        assert said == (
            f"this pool belongs to process {os.getpid()}, and this is a fork of it, process "
            f"{child}: start a pool here"
        )
        # nor has the end of the fork's `with` ended the pool
        assert len(pool.run(Job(plan={"dp": 2}, out=str(tmp_path), **QUICK))["losses"]) == 3


def test_a_relative_folder_is_that_of_the_moment_and_callbacks_may_move_and_raise(
    tmp_path, monkeypatch
):
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    said = []

    def say(text):
        said.append(text)
        if "measured steps" in text:
            os.chdir(tmp_path / "third")
            raise ZeroDivisionError("mine")

    with Pool(2, say=say) as pool:
        os.chdir(tmp_path / "second")
        with pytest.warns(UserWarning, match=r"callback raised ZeroDivisionError: mine"):
            result = pool.run(Job(plan={"dp": 2}, out="out", **QUICK))
        assert len(result["losses"]) == 3 and "measured steps" in said[-1]
    assert (tmp_path / "second" / "out" / "dp2" / "measured-step-1.json").exists()
    assert not list((tmp_path / "first").iterdir()) and not list((tmp_path / "third").iterdir())


def test_nothing_that_a_run_writes_is_everybodys_to_write(command, tmp_path):
    before = os.umask(0)
    try:
        run = command("--dp", 2, "--steps", 2, "--checkpoint-every", 2, "--json")
        status, out, err = run.end()
    finally:
        os.umask(before)
    assert status == 0 and json.loads(out)["ok"], err
    written = [*(tmp_path / "out").rglob("*")]
    assert len(written) > 10
    assert [path for path in written if path.stat().st_mode & 0o002] == []


def test_a_long_run_keeps_the_last_steps_and_all_losses(tmp_path):
    with Pool(2) as pool:
        job = Job(plan={"dp": 2}, out=str(tmp_path), steps=150, check=False)
        result = pool.run(job)
    assert len(result["losses"]) == 151 and len(result["steps_s"]) == 20
    traces = sorted(job.folder.glob("measured-step-*.json"))
    assert len(traces) == 20 and (job.folder / "measured-step-149.json") in traces
    rows = (job.folder / "losses.csv").read_text().splitlines()
    assert len(rows) == 152 and [float(row.split(",")[1]) for row in rows[1:]] == result["losses"]
    assert not list(job.folder.glob("*.records"))
