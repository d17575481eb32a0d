"""Profiles of trainings of two processes, made here by torch's own profiler: `why` names the rank that
was slowed, and the cause."""

import json
import re

import pytest

pytest.importorskip("torch")

from simlab.cli.main import main
from tests.support import slowed_trainings
from tests.support.realrun_processes import made_by

TRAININGS = [(how, fault) for how in slowed_trainings.HOW for fault in slowed_trainings.FAULTS]


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    """The folder of all profiles."""
    return made_by(slowed_trainings.__file__, tmp_path_factory.mktemp("profiles"))


@pytest.mark.parametrize(("how", "fault"), TRAININGS)
def test_the_slowed_rank_and_the_cause_are_named(profiles, capsys, how, fault):
    files = [str(profiles / f"{how} {fault}.rank{rank}.json") for rank in range(2)]
    assert main(["why", *files]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"mean of {slowed_trainings.STEPS} steps" in said
    zeros, ones = slowed_trainings.delayed(profiles, how, fault)
    if "bottleneck: rank 0, " in said and zeros > max(ones, slowed_trainings.MOST_DELAYED):
        assert "its host is slower" in said, said  # something else had its processor
        return
    assert "bottleneck: rank 1, " in said, said
    assert main(["why", *files, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["diagnosis"]
    zero, one = found["spent_by_rank"]
    assert zero["waiting"] > one["waiting"]
    if fault == "sleep":
        assert "its host is slower" in said, said
        assert one["host"] >= slowed_trainings.SLEEP_S
    else:
        more = re.search(
            r"it launches (\d+) more operators than others, such as aten::mm, most of their time in "
            f"'{slowed_trainings.EXTRA}'",
            said,
        )
        assert more and int(more[1]) >= slowed_trainings.STEPS * slowed_trainings.EXTRA_OPS, said
