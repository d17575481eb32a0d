"""The file in which torchrun looks for what a rank ended of."""

import json

import pytest

from realrun.launch.error_file import note_error


def test_torchrun_finds_what_a_rank_ended_of_and_when(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    note_error("rank 1 has ended")
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "rank 1 has ended" and int(message["extraInfo"]["timestamp"]) > 0
    assert [*tmp_path.iterdir()] == [path]


def test_a_rank_that_is_ended_while_it_writes_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    """torchrun would fail itself over a file that it cannot read."""
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))

    def half(facts, file):
        file.write(json.dumps(facts)[:10])
        raise SystemExit

    monkeypatch.setattr(json, "dump", half)
    with pytest.raises(SystemExit):
        note_error("rank 1 has ended")
    assert not path.exists()
