"""All ranks are examined: each rank's facts arrive, clocks of one machine agree, and the report names
the rank that is not like the others."""

import json

from jsonschema import Draft202012Validator
from realrun_schemas import schema

from realrun.cli.doctor import FUNCTIONS, NAME, report
from simlab.spec.plan import Plan


def test_ranks_of_one_machine_are_alike_and_one_that_is_not_is_named(pools, tmp_path, capsys):
    given = {"folder": str(tmp_path), "port": 29_987}
    facts = pools(2).call(FUNCTIONS, NAME, Plan(dp=2), **given)
    assert [each["bytes_per_s"] > 0 for each in facts] == [False, True]
    assert facts[0]["machine"]["torch"]["gloo"]
    status = report(facts, as_json=True)
    told = json.loads(capsys.readouterr().out)
    validator: Draft202012Validator = schema("doctor")
    validator.validate(told)
    assert told["ok"] == (status == 0)
    silent = {one["subject"] for one in told["differences"] if one["level"] != "fine"}
    assert silent <= {"disks", "links"}  # the machine is shared
    facts[1]["machine"]["versions"]["torch"] = "1.0"
    facts[1]["ahead_s"] += 60
    assert report(facts, as_json=False) == 1
    text = capsys.readouterr().out
    assert "loud    torch: " in text and "silent  clocks: " in text and "rank 1" in text
    assert max(map(len, text.splitlines())) <= 80
