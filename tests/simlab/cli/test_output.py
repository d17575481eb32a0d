"""What commands print: no line beyond 80 columns, one JSON object, one line for a mistake."""

import re
import sys
from pathlib import Path

import pytest

import simlab
from simlab.cli.main import COMMANDS, main
from simlab.cli.output import print_table, progress

TIMES = "--forward-ms 20 --input-grad-ms 20 --weight-grad-ms 20"
PLAN_FILE = "model: gpt2\ncluster: dgx-a100\nnodes: 2\ndp: 16\nmicrobatches: 4\n"
TEXTS = {
    "schedules": [f"schedules --pp 4 --microbatches 8 {TIMES} --activation-cap 4"],
    "catalog": ["catalog"],
    "simulate": [
        f"simulate --schedule zb-h1 --pp 4 --microbatches 8 {TIMES} --explain",
        f"simulate --schedule pipedream --pp 8 --microbatches 8 {TIMES} --backward-ms 40",
        "simulate --model llama-3-8b --cluster dgx-h100 --tp 4 --pp 2 --microbatches 8 --explain",
        "simulate --model llama-3-70b --cluster dgx-a100 --dp 2 --microbatches 8",
    ],
    "plan": [
        "plan --model llama-3-8b --cluster dgx-h100 --nodes 1 --global-batch 8 --cp 1 --explain",
        "plan --model deepseek-v3 --cluster dgx-h100 --nodes 128 --global-batch 4096 --zero 3 --recompute full --tp 1 --cp 1 --pp 1",
    ],
    "cluster": [
        "cluster new own.json --gpu h100-sxm-80gb --gpus-per-node 8 --nics-per-node 8 --nic-gbit 400"
    ],
    "memory": ["memory --params 7.5B --dp 64", "memory --params 7e9 --recipe deepspeed --dp 3"],
    "convert": ["convert mine.yaml --to megatron", "convert mine.json --from deepspeed --gpus 8"],
    "operations": [
        "operations run --spares 64 --memory-interval-s 300 --memory-survives 0.9",
        "operations interval --days 20 --spares 64 --seeds 1",
        "operations stragglers --jitter 0.02 --pause-s 1 --pause-every 20",
        "operations queue --nodes 32 --jobs 20",
        "operations replan --plan mine.yaml",
        "operations cost --gpu-hour 3.5",
    ],
    "doctor": ["doctor --port 29987"],
    "check": ["check mine.csv"],
    "drill": ["drill --export mine.json"],
    "validate": ["validate few.csv --rows"],
    "why": ["why step.json"],
}
"""{command: command lines that print text}; what `schedule` prints is a program, as wide as it is."""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with a program, and with a few published runs."""
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("0F0,0B0\n")
    Path("mine.json").write_text('{"train_batch_size": 16, "bf16": {"enabled": true}}')
    Path("mine.yaml").write_text(PLAN_FILE)
    from simlab.studies.published.runs import RUNS

    Path("few.csv").write_text("".join(RUNS.read_text().splitlines(keepends=True)[:4]))
    program = simlab.generate("1f1b", 2, 4)
    simlab.simulate(program, simlab.OpTimes(forward_s=1.0, backward_s=2.0)).save("step.json")
    return tmp_path


@pytest.mark.parametrize("command", [line for lines in TEXTS.values() for line in lines])
def test_text_fits_80_columns(desk, capsys, command):
    assert main(command.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and max(map(len, lines)) <= 80, max(lines, key=len)


def test_every_command_is_among_them():
    assert set(TEXTS) | {"schedule"} == set(COMMANDS)


@pytest.mark.parametrize("has_rich", [True, False])
def test_a_table_on_a_terminal_has_what_the_plain_one_has(capsys, monkeypatch, has_rich):
    rows = [["1f1b", "0.5", "[x]"], ["gpipe", "-", "3"]]
    print_table(["name", "a", "b"], rows)
    plain = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    print_table(["name", "a", "b"], rows)
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert drawn.split() == plain.split()


def test_progress_is_drawn_on_a_terminal_only(capsys, monkeypatch):
    assert list(progress([1, 2], "counting")) == [1, 2]
    assert capsys.readouterr().err == ""
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(progress([1, 2], "counting")) == [1, 2]
    assert "counting" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_completion_script_names_commands_and_options(capsys, shell):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as raised:
        main(["--print-completion", shell])
    script = capsys.readouterr().out
    assert raised.value.code == 0
    assert all(name in script for name in (*COMMANDS, "--stage-layers"))
    assert "--p2p-ms" not in script


def test_without_shtab_it_says_what_it_needs(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as raised:
        main(["--print-completion", "bash"])
    assert raised.value.code == 2
    assert capsys.readouterr().err == "error: shtab not installed: pip install shtab\n"
