"""Dumps of the flight recorder: three ranks on gloo, of which rank 1 left out the fourth
all-reduce (tests/support/recorded_hang.py), and such dumps with other faults put in."""

import json
from pathlib import Path

import pytest

from simlab.cli.main import main
from simlab.diagnosis import hang_of
from simlab.errors import InputError

DUMPS = Path(__file__).parent / "dumps"


@pytest.fixture
def dumps():
    return [json.loads(path.read_text()) for path in sorted(DUMPS.glob("*.json"))]


def found(dumps):
    return hang_of(list(enumerate(dumps)))


def test_the_rank_that_left_out_a_collective_is_named(capsys):
    assert main(["why", *map(str, sorted(DUMPS.glob("*.json"))), "--json"]) == 0
    hang = json.loads(capsys.readouterr().out)["hang"]
    assert (hang["reason"], hang["culprit"], hang["waiting"]) == ("missing", [1], [0, 2])
    assert (hang["name"], hang["number"], hang["ranks"]) == ("all_reduce", 4, [0, 1, 2])


def test_another_collective_is_named(dumps):
    dumps[1]["entries"].append(dumps[0]["entries"][3] | {"profiling_name": "gloo:broadcast"})
    hang = found(dumps)
    assert (hang.reason, hang.culprit, hang.waiting) == ("different", (1,), (0, 2))
    assert "broadcast" in hang.detail


def test_another_size_is_named(dumps):
    dumps[1]["entries"].append(dumps[0]["entries"][3] | {"input_sizes": [[4]]})
    hang = found(dumps)
    assert (hang.reason, hang.culprit) == ("size", (1,))
    assert "[[4]]" in hang.detail


def test_all_in_it_is_the_networks_fault(dumps):
    dumps[1]["entries"].append(dumps[0]["entries"][3])
    hang = found(dumps)
    assert (hang.reason, hang.culprit, hang.waiting) == ("stuck", (), (0, 1, 2))


def test_a_rank_without_a_dump_is_missing(dumps):
    dumps[2]["entries"].pop()
    hang = hang_of([(0, dumps[0]), (1, dumps[1])])
    assert hang.no_dump == (2,)
    assert hang.culprit == (1,)
    both = hang_of([(0, dumps[0])])
    assert (both.culprit, both.reason) == ((1, 2), "missing")


def test_no_hang_is_said_to_be_none(dumps):
    for dump in dumps:
        dump["entries"] = dump["entries"][:3]
    assert found(dumps).reason == "none"


def test_lines_of_code_are_given_where_the_dump_has_them(dumps):
    dumps[1]["entries"][2]["frames"] = [{"filename": "train.py", "line": 12, "name": "step"}]
    assert "train.py:12 step" in str(found(dumps))


def test_of_two_groups_the_one_with_a_culprit_is_told(dumps):
    """Ranks 0 and 2 wait in a group of their own, too; that is no culprit's."""
    for rank in (0, 2):
        other = dumps[rank]["entries"][3] | {"process_group": ["1", "pair"], "collective_seq_id": 1}
        dumps[rank]["entries"].append(other)
        dumps[rank]["pg_config"]["1"] = {"name": "1", "desc": "pair", "ranks": "[0, 2]"}
    assert found(dumps).culprit == (1,)


def test_two_dumps_of_a_rank_are_refused(dumps):
    with pytest.raises(InputError, match="two dumps are of rank 1"):
        hang_of([(1, dumps[0]), (1, dumps[1])])
