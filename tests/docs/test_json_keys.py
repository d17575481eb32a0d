"""The keys of `--json`, held against the tables in docs/command-line.md."""

import re
from pathlib import Path

import pytest

from tests.support.simlab_commands import answer, hand_in

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
TIMES = "--pp 2 --microbatches 4 --forward-ms 1 --backward-ms 2"
COMMANDS = {
    "schedule": ["schedule 1f1b --pp 2 --microbatches 2"],
    "check": ["check mine.csv"],
    "simulate with op times": [f"simulate --schedule 1f1b {TIMES}"],
    "simulate --explain": [f"simulate --schedule 1f1b {TIMES} --explain"],
    "simulate --activation-cap": [f"simulate --schedule 1f1b {TIMES} --activation-cap 9"],
    "simulate --layers": [f"simulate --schedule 1f1b {TIMES} --layers 4"],
    "simulate --schedule pipedream": [f"simulate --schedule pipedream {TIMES}"],
    "simulate --model": ["simulate --model gpt2 --cluster dgx-a100 --dp 2"],
    "schedules": [f"schedules {TIMES}"],
    "plan": ["plan --model gpt2 --cluster dgx-a100 --nodes 1 --global-batch 8"],
    "compare": ["compare meg21-1.7B meg21-3.6B"],
    "sweep": ["sweep --over dp=2,4 --model gpt2 --cluster dgx-a100"],
    "memory": ["memory --params 1e9"],
    "memory --explain": ["memory --model gpt2 --tp 2 --explain"],
    "catalog": ["catalog"],
    "lessons copy": ["lessons copy learn"],
    "lessons list": ["lessons list"],
    "cluster": [
        "cluster new own.json --gpu h100-sxm-80gb --nic-gbit 200",
        "cluster check own.json",
    ],
    "class template, pack": ["class template mine.ipynb"],
    "class collect": ["class collect in"],
    "class grade": ["class grade in"],
    "validate": ["validate runs.csv", "validate runs.csv --rows"],
}


def named(command):
    """The keys that the page gives a command."""
    section = PAGE.split("### JSON of simlab")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (`[^|]+) \| (.+) \|$", section, re.M))
    row = next(text for name, text in rows.items() if name.replace("`", "") == command)
    return set(re.findall(r"`(\w+)`", row)), row


@pytest.mark.parametrize("command", COMMANDS)
def test_keys_of_simlab_are_those_of_the_page(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    runs = (ROOT / "tests" / "published" / "runs.csv").read_text(encoding="utf-8").splitlines()
    Path("runs.csv").write_text("\n".join(runs[:3]) + "\n", encoding="utf-8")
    Path("mine.csv").write_text("0F0,0B0\n", encoding="utf-8")
    hand_in(Path("in"))
    keys = set()
    for line in COMMANDS[command]:
        keys |= answer(capsys, line).keys()
    expected, row = named(command)
    if "also" in row and command.startswith("simulate --"):
        expected |= named("simulate with op times")[0]
    assert keys == expected
