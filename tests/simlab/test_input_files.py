"""Files that a user names: none is read without a bound, and nothing is waited for."""

import json
import os
import subprocess
import sys

import pytest

from simlab.cli.main import main
from simlab.errors import InputError
from simlab.input_files import read_bytes, read_text
from simlab.lessons import progress
from simlab.spec.cluster import nodes_of_file
from tests.support.patience import PATIENCE_S
from tests.support.simlab_commands import refused


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo.json")
    return str(tmp_path / "fifo.json")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", None], ids=["zero", "null", "a pipe"])
@pytest.mark.parametrize(
    "command",
    [
        "check {}",
        "validate {}",
        "simulate --model gpt2 --cluster {}",
        "simulate --model {} --cluster dgx-a100",
        "simulate --plan {} --model gpt2 --cluster dgx-a100",
        "simulate --csv {} --forward-ms 1",
        "convert {} --from torchtitan",
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(command, path, fifo, capsys):
    """Devices were read until the memory was full, and a named pipe was waited for."""
    path = fifo if path is None else path
    said = refused(capsys, command.format(path))
    assert "a device or a pipe: give a regular file" in said and repr(path) in said


def test_a_pipe_of_a_shell_is_read():
    """`simlab schedule ... | simlab check /dev/stdin` goes on to work."""
    argv = [sys.executable, "-m", "simlab", "check", "/dev/stdin"]
    ended = subprocess.run(
        argv, input="0F0,0B0\n", text=True, capture_output=True, timeout=PATIENCE_S
    )
    assert (ended.returncode, ended.stdout[:6]) == (0, "valid:")


def test_a_file_has_a_largest_size(tmp_path):
    (tmp_path / "long").write_bytes(b"x" * 11)
    assert read_bytes(tmp_path / "long", 11) == b"x" * 11
    with pytest.raises(InputError, match="long is longer than 10 bytes"):
        read_bytes(tmp_path / "long", 10)


@pytest.mark.parametrize("path, why", [("", "give the path"), ("a\0b", "zero byte"), ("/", "Is a")])
def test_a_path_that_is_none(path, why):
    with pytest.raises(InputError, match=why):
        read_text(path)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", '{"gpu": ' + "9" * 5000 + "}"])
def test_a_cluster_file_that_holds_no_cluster(tmp_path, text):
    path = tmp_path / "cluster.json"
    path.write_text(text)
    for read in (
        nodes_of_file,
        lambda name: main(["simulate", "--model", "gpt2", "--cluster", name]),
    ):
        try:
            assert read(str(path)) == 2
        except InputError as error:
            assert "not a cluster's JSON" in str(error)


def test_a_model_has_at_most_ten_thousand_layers(tmp_path, capsys):
    """With 10^11 of them it went on for hours."""
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 10**11, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 128,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    argv = ["simulate", "--model", str(tmp_path / "config.json"), "--cluster", "dgx-a100"]
    assert "layers = 100000000000: give at most 10,000" in refused(capsys, argv)


def test_a_long_setting_that_is_not_computed_from_is_cut_in_the_note(tmp_path, capsys):
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 128,
        "rope_scaling": {"long_factor": [1.0] * 2000},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (
        main(["simulate", "--model", str(tmp_path / "config.json"), "--cluster", "dgx-a100"]) == 0
    )
    err = capsys.readouterr().err
    assert "rope_scaling" in err and all(len(line) < 2000 for line in err.splitlines())


@pytest.mark.parametrize("text", ["[" * 99_999, '{"drill": ' + "9" * 5000 + "}"])
def test_progress_that_cannot_be_read_is_put_aside(tmp_path, monkeypatch, text):
    monkeypatch.setenv("SIMLAB_PROGRESS", str(tmp_path / "progress.json"))
    (tmp_path / "progress.json").write_text(text)
    assert progress.load()["drill"] == {}
    assert (tmp_path / "progress.json.unreadable").read_text() == text


def test_progress_in_a_device_is_neither_read_nor_replaced(monkeypatch, fifo):
    monkeypatch.setenv("SIMLAB_PROGRESS", fifo)
    assert progress.load()["drill"] == {}
    progress.keep("points", "a", 1)
    assert os.path.exists(fifo) and not os.path.isfile(fifo)
