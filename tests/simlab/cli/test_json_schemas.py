"""Each command's `--json` holds the schema that its `--schema` prints."""

import json
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import simlab
from simlab.cli.main import COMMANDS, main
from simlab.studies.published.runs import RUNS
from tests.support.simlab_commands import hand_in

SPLIT = "--pp 2 --microbatches 4 --forward-ms 1 --input-grad-ms 1 --weight-grad-ms 1"
ANSWERS = [
    "schedule 1f1b --pp 2 --microbatches 2",
    "check mine.csv",
    f"simulate --schedule zb-h1 {SPLIT}",
    f"simulate --schedule pipedream {SPLIT} --explain --activation-cap 1 --layers 4",
    "simulate --model gpt2 --cluster dgx-a100 --dp 2 --pp 2 --explain",
    "simulate --model llama-3-70b --cluster dgx-a100",
    f"schedules {SPLIT} --activation-cap 2",
    "schedules --pp 3 --microbatches 4 --forward-ms 1 --backward-ms 2 --link-ms 1",
    "plan --model gpt2 --cluster dgx-a100 --nodes 1 --global-batch 8 --explain",
    "plan --model llama-3-70b --cluster dgx-a100 --nodes 1 --global-batch 8 --tp 1 --zero 0",
    "compare mine.yaml meg21-1.7B",
    "sweep --over tp=1,3 --model gpt2 --cluster dgx-a100 --nodes 1",
    "convert mine.yaml --to nanotron",
    "convert mine.json --from deepspeed --gpus 8",
    "operations run --spares 40 --seed 3",
    "operations interval --days 5 --spares 40 --seeds 1",
    "operations interval --days 5 --spares 2 --short-of-nodes shrink --per-1000-node-days 6.5",
    "operations stragglers --jitter 0.02 --pause-s 1",
    "operations queue --nodes 16 --jobs 5",
    "operations replan --plan mine.yaml",
    "operations cost",
    "doctor --port 29987 --ranks 2",
    "catalog",
    "memory --params 7e9 --dp 8",
    "memory --model gpt2 --recipe deepspeed --largest-layer 1e6 --zero 3",
    "memory --model deepseek-v3 --dp 8 --tp 2 --ep 8 --explain",
    "drill --questions 3 --only leak stopped",
    "drill --export mine.json",
    "lessons copy learn",
    "lessons list",
    "validate few.csv",
    "validate few.csv --rows",
    "why step.json",
    "class pack own.zip --lessons 1",
    "class collect in",
    "class grade in",
]
PLACES = [
    ("schedule", "ranks", 0),
    ("simulate", "step_s", "0.5"),
    ("simulate", "bubble", {"idle_over_ideal": 1}),
    ("convert", "left", [1]),
    ("convert", "text", None),
    ("plan", "evaluated", 0.5),
    ("plan", "plans", [{"dp": 1}]),
    ("memory", "total_bytes", None),
    ("memory", "zero", 4),
    ("drill", "right", "all"),
    ("why", "read", "a file"),
    ("why", "diagnosis", {}),
    ("why", "hang", {"group": "0"}),
    ("class", "files", "1"),
]


@cache
def schema(name):
    """The validator of what a command prints with `--json`."""
    with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit, match="0"):
        main([name, "--schema"])
    return Draft202012Validator(json.loads(printed.getvalue()))


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with a program, and with published runs of which some are skipped."""
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("0F0,0B0\n")
    Path("mine.json").write_text('{"train_batch_size": 16, "bf16": {"enabled": true}}')
    Path("mine.yaml").write_text(
        "model: gpt2\ncluster: dgx-a100\nnodes: 2\ndp: 16\nmicrobatches: 4\n"
    )
    hand_in(Path("in"))
    Path("broken.csv").write_text("0F0,0B0\n1F0\n")
    rows = RUNS.read_text().splitlines()
    few = rows[:3] + [row for row in rows if "simumax" in row][:12]
    Path("few.csv").write_text("\n".join(few) + "\n")
    program = simlab.generate("1f1b", 2, 4)
    simlab.simulate(program, simlab.OpTimes(forward_s=1.0, backward_s=2.0)).save("step.json")


def answer(capsys, command):
    assert main([*command.split(), "--json"]) in (0, 1)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_holds_its_commands_schema(desk, capsys, command):
    schema(command.split()[0]).validate(answer(capsys, command))


def test_a_failed_check_holds_the_schema(desk, capsys):
    schema("check").validate(found := answer(capsys, "check broken.csv"))
    assert not found["ok"] and not schema("check").is_valid({"ok": False})


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_schema_that_is_one(name):
    Draft202012Validator.check_schema(schema(name).schema)


@pytest.mark.parametrize(("name", "key", "value"), PLACES)
def test_a_schema_refuses_another_type(desk, capsys, name, key, value):
    command = next(command for command in ANSWERS if command.startswith(name))
    found = answer(capsys, command)
    assert schema(name).is_valid(found)
    assert not schema(name).is_valid(found | {key: value})
    assert not schema(name).is_valid(found | {"another": 1})
    assert not schema(name).is_valid({k: v for k, v in found.items() if k != key})
