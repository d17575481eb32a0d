"""Whatever is typed: an answer, or one line that says what is wrong."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simlab.cli.main import main, parser

WORDS = [
    "", "0", "-1", "1", "2", "4", "8", "3.5", "nan", "inf", "-inf", "1e400", "1e9", "99999999999999999999",
    "yes", "no", "x", "None", "1f1b", "zb-auto", "interleaved-1f1b", "dualpipe", "gpt2", "llama-3-8b", "dgx-h100",
    "dgx-v100", "none", "full", "fp8", "fp16", "optimizer", "nvme", "torch", "cp-tp-dp-pp", "1,2", "uneven", "/", "a.json",
    "7B", "deepspeed", "best", "é\udc80",
]  # fmt: skip
WRITES = (
    "export",
    "csv",
    "picture",
    "trace",
    "perfetto",
    "print_completion",
    "plan",
    "out",
    "workers",
)
COMMANDS = {
    name: [
        action
        for action in command._actions
        if action.option_strings and action.dest not in (*WRITES, "help")
    ]
    for name, command in parser().commands.items()
    if name not in ("validate", "catalog")
}
START = {
    "schedule": ["1f1b", "--pp", "2", "--microbatches", "2"],
    "check": ["missing.csv"],
    "simulate": ["--model", "gpt2", "--cluster", "dgx-h100"],
    "schedules": ["--pp", "2", "--microbatches", "2", "--forward-ms", "1", "--backward-ms", "2"],
    "plan": ["--model", "gpt2", "--cluster", "dgx-h100", "--nodes", "1", "--global-batch", "2"],
    "memory": ["--params", "1e9"],
    "convert": ["missing.yaml"],
    "drill": ["--questions", "2"],
    "lessons": ["copy", "/dev/null/learn"],
    "operations": ["run"],
    "doctor": [],
    "why": ["missing.json"],
    "cluster": ["check", "missing.json"],
    "class": ["collect", "missing"],
    "compare": ["missing.yaml", "meg21-1.7B"],
    "sweep": ["--over", "tp=1,2", "--model", "gpt2", "--cluster", "dgx-h100", "--nodes", "1"],
}


@st.composite
def command_lines(draw):
    """A command with what it needs, and a few options with any words for values."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    line = [name, *draw(st.sampled_from([[], START[name]]))]
    for action in draw(st.lists(st.sampled_from(COMMANDS[name]), max_size=5)):
        line.append(action.option_strings[-1])
        if action.nargs != 0:
            line.append(draw(st.sampled_from(WORDS)))
    return line


@given(command_lines())
@example(["simulate", *START["simulate"], "--microbatches", "99999999999999999999"])
@example(["simulate", *START["simulate"], "--pp", "99999999999999999999"])
@example(["simulate", *START["simulate"], "--nodes", "99999999999999999999"])
@example(["simulate", *START["simulate"], "--seq", "99999999999999999999"])
@example(["simulate", *START["simulate"], "--bucket-bytes", "1"])
@example(["memory", "--params", "1e400"])
@example(["memory", "--model", ""])
def test_any_arguments_get_an_answer_or_one_line(line):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main(line)
        except SystemExit as exit_:
            status = exit_.code
    assert status in (0, 1, 2)
    if status == 2:
        assert len(err.getvalue().splitlines()) == 1, err.getvalue()
        assert json.loads(out.getvalue())["ok"] is False if "--json" in line else not out.getvalue()
        assert err.getvalue().startswith("error: ")
    elif "--json" in line:
        assert isinstance(json.loads(out.getvalue()), dict)
        assert "--schema" in line or len(out.getvalue().splitlines()) == 1


@pytest.mark.parametrize("name", parser().commands)
def test_help_of_every_command_names_all_of_its_options(name, capsys):
    with pytest.raises(SystemExit) as raised:
        main([name, "--help"])
    text = capsys.readouterr().out
    assert raised.value.code == 0
    assert all(
        action.option_strings[-1] in text
        for action in COMMANDS.get(name, [])
        if action.help != "==SUPPRESS=="
    )
