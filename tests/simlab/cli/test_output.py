"""What commands print: no line beyond 80 columns, one JSON object, one line for a mistake."""

import json
import re
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

import simlab
from simlab.cli.main import COMMANDS, main
from simlab.cli.output import print_table, print_text, progress
from tests.support.simlab_commands import hand_in

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
    "compare": ["compare mine.yaml meg21-1.7B"],
    "sweep": ["sweep --over pp=1,2,3 --model llama-3-8b --cluster dgx-h100 --tp 2 --zero 1"],
    "doctor": ["doctor --port 29987"],
    "check": ["check mine.csv"],
    "drill": ["drill --export mine.json"],
    "lessons": ["lessons copy learn"],
    "validate": ["validate few.csv --rows"],
    "why": ["why step.json"],
    "class": ["class pack own.zip --lessons 1", "class collect in", "class grade in"],
}
"""{command: command lines that print text}; what `schedule` prints is a program, as wide as it is."""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with a program, and with a few published runs."""
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("0F0,0B0\n", encoding="utf-8")
    Path("mine.json").write_text(
        '{"train_batch_size": 16, "bf16": {"enabled": true}}', encoding="utf-8"
    )
    Path("mine.yaml").write_text(PLAN_FILE, encoding="utf-8")
    hand_in(Path("in"))
    from simlab.studies.published.runs import RUNS

    Path("few.csv").write_text(
        "".join(RUNS.read_text().splitlines(keepends=True)[:4]), encoding="utf-8"
    )
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


@pytest.fixture
def printed(monkeypatch):
    """(encoding, command line) → (exit status, stdout, stderr) of both streams with that encoding,
    which take no character that it lacks unless the command line sees to it."""

    def run(encoding, *argv):
        streams = {name: TextIOWrapper(BytesIO(), encoding) for name in ("stdout", "stderr")}
        with monkeypatch.context() as patched:
            for name, stream in streams.items():
                patched.setattr(sys, name, stream)
            try:
                status = main(argv)
            except SystemExit as left:
                status = left.code
            for stream in streams.values():
                stream.flush()
        return status, *(each.buffer.getvalue().decode(encoding) for each in streams.values())

    return run


@pytest.mark.parametrize("command", [line for lines in TEXTS.values() for line in lines])
def test_each_text_is_printed_where_only_ascii_is_known(desk, printed, command):
    status, out, err = printed("ascii", *command.split())
    assert status == 0 and out + err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "gbk", "utf-8"])
def test_names_answers_and_mistakes_are_printed_in_any_encoding(
    desk, printed, encoding, monkeypatch
):
    Path("流水线 µ.csv").write_text("0F0,0B0\n", encoding="utf-8")
    run = ["simulate", "--csv", "流水线 µ.csv", "--forward-ms", "1", "--backward-ms", "2"]
    status, out, err = printed(encoding, *run, "--trace", "步骤.json")
    assert (status, Path("步骤.json").is_file()) == (0, True) and "wrote " in err
    assert ("步骤.json" in err) == (encoding in ("gbk", "utf-8"))
    status, out, err = printed(encoding, *run, "--json")
    assert status == 0 and json.loads(out)["schedule"] == "流水线 µ"
    assert printed(encoding, "why", "步骤.json")[0] == 0
    for mistake in (
        ["check", "没有.csv"],
        ["检查"],
        ["why", "--乱"],
        ["check", "\udcff\udcfe.csv"],
    ):
        status, out, err = printed(encoding, *mistake)
        assert status == 2 and err.startswith("error: ") and err.count("\n") == 1
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"1\n\n2\nq\n"), "ascii"))
    assert printed(encoding, "drill", "--new", "--lang", "zh", "--seed", "7", "--json")[0] == 0
    for name in COMMANDS:
        assert printed(encoding, name, "--help")[0] == 0


def test_a_character_that_an_encoding_lacks_is_spelt(printed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert printed("ascii", "µ→×")[2].startswith("error: unknown command 'u->x'")
    assert printed("gbk", "µ→×")[2].startswith("error: unknown command 'u→×'")


def on_a_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True, raising=False)


@pytest.mark.parametrize("columns", [80, 14, 8, 1])
def test_a_narrow_terminal_gets_fewer_columns_and_whole_rows(capsys, monkeypatch, columns):
    head, rows = ["name", "a", "b", "c"], [["1f1b", "0.5", "[x]", "1"], ["gpipe", "-", "3", "2"]]
    print_table(head, rows)
    whole = capsys.readouterr().out
    on_a_terminal(monkeypatch, columns)
    print_table(head, rows, spare=["a"])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    if columns == 80:
        assert out == whole
        return
    table = out.split("Left")[0].splitlines()
    assert [line.split()[0] for line in table] == ["name", "1f1b", "gpipe"]
    assert table[0].split() == {14: ["name", "b", "c"], 8: ["name"], 1: ["name"]}[columns]
    said = " ".join(out.split("Left")[1].split())
    assert said.endswith({14: "wide: a", 8: "wide: a, c, b", 1: "wide: a, c, b"}[columns])


def test_tables_are_as_wide_as_the_terminal_or_as_columns_says_and_prose_is_not(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "120")  # also where stdout is no terminal
    head, row = ["name", *["a long head of a column"] * 4], ["1f1b", *["0.5"] * 4]
    print_table(head, [row], columns=80)
    prose = "a sentence that goes on and on " * 6
    print_text(f"{'  '.join(head)}\n{prose}")
    table, _, fitted, *rest = capsys.readouterr().out.splitlines()
    assert len(table) == len(fitted) == 104 and max(map(len, rest)) <= 80
    monkeypatch.setenv("COLUMNS", "60")
    print_table(head, [row], columns=80)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@pytest.mark.parametrize("term, no_color", [("dumb", None), ("xterm-256color", "1")])
def test_no_codes_of_colour_where_none_are_wanted(desk, capsys, monkeypatch, term, no_color):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color) if no_color else monkeypatch.delenv("NO_COLOR", False)
    on_a_terminal(monkeypatch, 80)
    assert main(["validate", "few.csv", "--rows"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out
    assert not re.search(r"\x1b\[[0-9;]*m", err)


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
