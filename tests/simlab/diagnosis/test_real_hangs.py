"""Hangs of processes on gloo, dumped by torch's own flight recorder: `why` names the rank and the call,
and torch's own analyser blames the same ranks.

The analyser needs to be told the groups, which gloo's dumps do not say; `why` is told nothing."""

import io
import json
import logging
import re
from contextlib import redirect_stdout
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from simlab.cli.main import main
from tests.support import gloo_hangs
from tests.support.realrun_processes import made_by

SEEN = {
    "left out": ("missing", [1], "all_reduce", 4, [0, 2]),
    "another collective": ("different", [2], "all_reduce", 2, [0, 1]),
    "another size": ("size", [1], "all_reduce", 2, [0, 2]),
    "larger size": ("size", [1], "all_reduce", 2, [2]),
    "never sent": ("missing", [0], "all_reduce", 2, [1, 2]),
    "both receive": ("none", [], "", 0, []),
    "computing": ("missing", [1], "barrier", 2, [0, 2]),
    "stuck in a grid": ("missing", [3], "all_reduce", 2, [2]),
    "two stuck in a grid": ("missing", [0, 3], "all_reduce", 2, [1]),
    "another order": ("circle", [0, 1, 2], "all_reduce", 2, []),
}
"""{hang: (reason, culprits, call, its number, who waits in it)}"""


@pytest.fixture(scope="module")
def hangs(tmp_path_factory):
    """The folder of the dumps of all hangs."""
    return made_by(gloo_hangs.__file__, tmp_path_factory.mktemp("hangs"))


def why(folder, capsys):
    paths = sorted(map(str, folder.glob("*.json")))
    assert main(["why", *paths, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["hang"]
    assert main(["why", *paths]) == 0
    return said, " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", gloo_hangs.HANGS)
def test_the_rank_and_the_call_are_named(hangs, capsys, name):
    hang, text = why(hangs / name, capsys)
    found = tuple(hang[key] for key in ("reason", "culprit", "name", "number", "waiting"))
    assert found == SEEN[name], text
    dumps = len(gloo_hangs.HANGS[name].seen)
    assert len(hang["no_dump"]) == len(gloo_hangs.HANGS[name].groups["0"]) - dumps


def test_what_gloos_recorder_does_not_see_is_said(hangs, capsys):
    """Of 'never sent', the recorder sees that rank 0 has not come to the all-reduce, and not that it
    waits for rank 1."""
    unseen = "The recorder does not see gloo's sends and receives: "
    assert f"{unseen}rank 0 may wait in one." in why(hangs / "never sent", capsys)[1]
    assert f"{unseen}ranks may wait in one." in why(hangs / "both receive", capsys)[1]


def test_nobody_is_said_to_wait_for_a_rank_outside_its_group(hangs, capsys):
    text = why(hangs / "stuck in a grid", capsys)[1]
    assert "rank 0 waits in all_reduce number 2 of group 3 for rank 2." in text
    assert "rank 1 waits in all_reduce number 2 of group 4 for rank 3." in text
    assert "Rank 1 called all_reduce of [[0]]" in why(hangs / "another size", capsys)[1]


def test_a_size_is_named_where_all_others_have_failed(hangs, tmp_path, capsys):
    """Rank 2 of 'larger size' waits; without its dump, nobody does."""
    for rank in (1, 3):
        name = f"dump_rank_{rank}.json"
        (tmp_path / name).write_bytes((hangs / "larger size" / name).read_bytes())
    hang, text = why(tmp_path, capsys)
    assert (hang["reason"], hang["culprit"], hang["number"]) == ("size", [1, 3], 2), text
    assert "all_reduce of [[1000]]" in text


def analysed(folder):
    """What torch's analyser says of a hang."""
    from torch.distributed.flight_recorder import fr_trace

    lines, said = io.StringIO(), io.StringIO()
    shown = logging.StreamHandler(lines)
    logger = logging.getLogger("Flight Recorder")
    logger.addHandler(shown)
    try:
        with redirect_stdout(said):
            fr_trace.main([str(folder / "pickles"), "--allow-incomplete-ranks"])
    finally:
        logger.removeHandler(shown)
    return lines.getvalue() + said.getvalue()


@pytest.mark.parametrize("name", gloo_hangs.HANGS)
def test_torchs_own_analyser_blames_the_same(hangs, capsys, name):
    hang = SimpleNamespace(**why(hangs / name, capsys)[0])
    text = analysed(hangs / name)
    missing = {int(one) for its in re.findall(r"missing ranks: \{([\d, ]+)\}", text)
               for one in its.split(",")}  # fmt: skip
    wrong = {int(one) for one in re.findall(r"Culprit rank (\d+);", text)}
    numbers = {int(one) for one in re.findall(r"sequence number: (\d+)", text)}
    assert numbers == ({hang.number} if hang.reason != "none" else set()), text
    if hang.reason == "size":
        assert wrong == {*hang.culprit}, text
    elif hang.reason == "different":  # It takes what the culprit called for the rule.
        assert wrong == {*hang.waiting}, text
    else:  # It blames whoever waits elsewhere, too.
        assert {*hang.culprit} <= missing, text
