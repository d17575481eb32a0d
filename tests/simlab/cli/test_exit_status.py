"""How a command ends, whichever it is."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from realrun.cli.main import main as realrun_main
from simlab.cli.exit_status import exit_status
from simlab.cli.main import main as simlab_main
from simlab.errors import InputError, ProgramError

ROOT = Path(__file__).parents[3]
ENDS = {
    InputError("0 stages"): (2, "error: 0 stages\n", {"error": "0 stages"}),
    ProgramError("2F0 twice"): (1, "failed: 2F0 twice\n", {"error": "2F0 twice"}),
    FileNotFoundError(2, "No such file", "x.csv"): (
        1,
        "failed: x.csv: No such file\n",
        {"error": "x.csv: No such file"},
    ),
    OSError("no more processes"): (
        1,
        "failed: no more processes\n",
        {"error": "no more processes"},
    ),
    KeyboardInterrupt(): (1, "interrupted\n", None),
}


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_a_status_a_line_and_an_object(error, as_json, capsys):
    def run(arguments):
        raise error

    status, line, answer = ENDS[error]
    assert exit_status(run, Namespace(json=as_json)) == status
    out, err = capsys.readouterr()
    assert err == line
    assert (
        out == "" if answer is None or not as_json else json.loads(out) == {"ok": False, **answer}
    )


def test_an_error_is_written_at_once_so_that_ranks_do_not_write_into_each_others_line(monkeypatch):
    def run(arguments):
        raise InputError("torchrun started 2 ranks")

    written = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append, flush=lambda: None))
    assert exit_status(run, Namespace(json=False)) == 2
    assert written == ["error: torchrun started 2 ranks\n"]


def test_an_errors_notes_end_its_line_and_its_facts_are_in_the_object(capsys):
    def run(arguments):
        error = ProgramError("2F0 twice")
        error.add_note("(once will do)")
        error.facts = {"partial": ["a.json"]}
        raise error

    assert exit_status(run, Namespace(json=True)) == 1
    out, err = capsys.readouterr()
    assert err == "failed: 2F0 twice (once will do)\n"
    assert json.loads(out) == {"ok": False, "error": "2F0 twice", "partial": ["a.json"]}


@pytest.mark.parametrize("main", [simlab_main, realrun_main], ids=["simlab", "realrun"])
@pytest.mark.parametrize(
    "argv",
    ["--json --nonsense", "doctor --port many --json", "doctor --json --port -5", "--json nothing"],
)
def test_wrong_arguments_are_an_object_too(main, argv, capsys):
    try:
        status = main(argv.split())
    except SystemExit as left:
        status = left.code
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert status == 2 and said["ok"] is False
    assert err.startswith(f"error: {said['error']}")


@pytest.mark.parametrize(
    "path, why",
    [
        ("no/such/x.png", "directory: 'no/such'"),
        (".", "is a folder"),
        ("x.docx", "a picture ends in"),
    ],
)
def test_where_nothing_can_be_written_is_told_before_anything_is_computed(
    path, why, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    def run(arguments):
        raise AssertionError("it was computed")

    assert exit_status(run, Namespace(json=False, picture=path)) == 2
    assert why in capsys.readouterr().err


def test_a_search_is_not_begun_for_a_file_that_cannot_be_written(monkeypatch, capsys):
    monkeypatch.setattr("simlab.cli.commands.plan.search", None)
    command = "plan --model gpt2 --cluster dgx-h100 --nodes 1 --global-batch 8 --out no/x.yaml"
    assert simlab_main(command.split()) == 2
    assert "cannot write 'no/x.yaml'" in capsys.readouterr().err


SIMULATE = "simulate --schedule 1f1b --pp 2 --microbatches 2 --forward-ms 1 --backward-ms 2"


@pytest.mark.parametrize("more", ["", " --json"], ids=["text", "json"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_stdout_that_takes_nothing_costs_a_line_and_one_that_was_closed_none(
    unbuffered, more, tmp_path
):
    def shell(command):
        program = f"{sys.executable} -m simlab {command}"
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            program, shell=True, capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        return done.returncode, done.stderr

    assert shell(f"{SIMULATE}{more} >&-") == (0, "")
    assert shell(f"{SIMULATE}{more} 2>&-") == (0, "")
    if Path("/dev/full").exists():
        status, err = shell(f"{SIMULATE}{more} >/dev/full")
        assert status == 1 and err.count("\n") == 1
        assert err.startswith("failed: ") and err.endswith("No space left on device\n")


def test_a_current_folder_that_was_deleted_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert exit_status(lambda arguments: len(os.getcwd()), Namespace(json=False)) == 1
    assert "the current folder does not exist any more" in capsys.readouterr().err


def test_what_it_does_not_know_is_a_bug_and_goes_on():
    with pytest.raises(ZeroDivisionError):
        exit_status(lambda arguments: 1 / 0, Namespace(json=False))
