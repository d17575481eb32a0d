"""How a command ends, whichever it is."""

import json
from argparse import Namespace

import pytest

from simlab.cli.exit_status import exit_status
from simlab.errors import InputError, ProgramError

ENDS = {
    InputError("0 stages"): (2, "error: 0 stages\n", None),
    ProgramError("2F0 twice"): (1, "failed: 2F0 twice\n", {"error": "2F0 twice"}),
    FileNotFoundError(2, "No such file", "x.csv"): (
        1,
        "failed: x.csv: No such file\n",
        {"error": "x.csv: No such file"},
    ),
    OSError("no more processes"): (
        1,
        "failed: a file: no more processes\n",
        {"error": "a file: no more processes"},
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


def test_what_it_does_not_know_is_a_bug_and_goes_on():
    with pytest.raises(ZeroDivisionError):
        exit_status(lambda arguments: 1 / 0, Namespace(json=False))
