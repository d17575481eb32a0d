"""What realrun prints with `--json` holds the schema that `--schema` prints; that of `measure` is held in
tests/realrun/measure."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from realrun_schemas import COMMANDS, schema

from realrun.cli.main import main
from realrun.cli.run_command import report
from realrun.run.job import Job
from realrun.run.job.pipelines import program_texts
from simlab.schedules import generate

SIZES = {"layers": 2, "hidden": 32, "heads": 2, "seq": 16}
JOBS = {
    "programs": {
        "programs": program_texts([generate(name, 2, 2) for name in ("1f1b", "zb-h1")]),
        "compute": "padded", "forward_s": 0.002, "sizes": SIZES | {"microbatch_size": 1},
    },
    "a program that is not checked": {
        "programs": {"mine": "0F0 0B0\n1F0 1B0"}, "checked": False, "check": False,
        "compute": "padded", "forward_s": 0.002, "sizes": SIZES | {"microbatch_size": 1},
    },
    "a box": {"plan": {"tp": 2}, "box": {"cluster": "dgx-a100", "time_scale": 5.0}, "sizes": SIZES},
    "fp16 with a reference": {
        "plan": {"dp": 2, "zero": 1}, "precision": "fp16", "reference": True, "sizes": SIZES,
    },
    "torch": {"plan": {"dp": 2}, "backend": "torch", "sizes": SIZES},
}  # fmt: skip


def printed(pools, folder, capsys, name):
    """What the command line prints of a job that has run."""
    job = Job(**JOBS[name], steps=1, out=str(folder))
    report([job], [pools(2).run(job)], max_error=None, as_json=True)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", JOBS)
def test_a_run_holds_its_schema(pools, tmp_path, capsys, name):
    schema("run").validate(printed(pools, tmp_path, capsys, name))


@pytest.mark.parametrize(
    ("key", "value"),
    [("losses", 5.8), ("precision", "half"), ("stragglers", [[1]]), ("sent_bytes_measured", [1]),
     ("op_s", {"F": {"predicted": 1.0}})],
)  # fmt: skip
def test_the_schema_refuses_another_type(pools, tmp_path, capsys, key, value):
    found = printed(pools, tmp_path, capsys, "programs")
    first = found["runs"][0]
    assert schema("run").is_valid(found)
    for wrong in (first | {key: value}, first | {"another": 1}):
        assert not schema("run").is_valid(found | {"runs": [wrong]})
    without = {name: its for name, its in first.items() if name != "losses"}
    assert not schema("run").is_valid(found | {"runs": [without]})


def test_an_error_holds_its_schema(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("hole.csv").write_text("0F0,0B0\n2F0,2B0\n")
    assert main(["--csv", "hole.csv", "--json", "--device", "cpu"]) == 1
    found = json.loads(capsys.readouterr().out)
    schema("run").validate(found)
    found["partial"] = "measured.json"
    assert not schema("run").is_valid(found)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_schema_is_one(name):
    Draft202012Validator.check_schema(schema(name).schema)
