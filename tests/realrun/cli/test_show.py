"""What a run has recorded that broke off in whatever way: it is shown, compared and drawn."""

import json
import re
import shutil

import pytest

from realrun.cli.main import main
from realrun.launch.pool import RunError
from simlab.cli.main import main as simlab_main

KINDS = {
    "1f1b": ("--pp", 2, "--microbatches", 4, "--forward-ms", 2),
    "dp2-zero3": ("--dp", 2, "--zero", 3),
    "dp2-torch": ("--dp", 2, "--backend", "torch"),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_a_killed_run_recorded_is_shown_compared_and_drawn(command, tmp_path, capsys, name):
    run, folder = command(*KINDS[name], "--steps", 100_000), tmp_path / "out" / name
    losses = folder / "losses.csv"
    run.wait_until(lambda: losses.exists() and losses.read_text().count("\n") > 8)
    run.process.kill()
    run.end()
    assert run.gone()
    assert main(["show", str(folder)]) == 0
    text = capsys.readouterr().out
    assert len(re.findall(r"^  rank \d", text, re.MULTILINE)) == 2
    assert (folder / "timeline.png").stat().st_size > 1000
    assert main(["show", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["steps"]) == len(found["traces"]) >= 3 and found["losses"] >= 8
    assert (found["error"] is not None) == (name == "1f1b")
    assert simlab_main(["why", found["traces"][0]]) == 0
    if name == "1f1b":
        predicted = json.loads((folder / "predicted.json").read_text())
        predicted["metadata"]["calibration"]["metadata"]["disturbed_by"] = "F took 30 ms"
        (folder / "predicted.json").write_text(json.dumps(predicted))
        assert main(["show", str(folder)]) == 0
        assert "disturbed  the calibration: F took 30 ms, as where" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "out")]) == 2
    assert f"give one of {folder}" in capsys.readouterr().err
    assert main(["show", str(shutil.copytree(folder, tmp_path / "moved"))]) == 2
    assert "it was renamed" in capsys.readouterr().err
    for path in folder.glob("rank*"):
        path.unlink()
    assert main(["show", str(folder)]) == 2
    assert "has no recording of rank 0, 1" in capsys.readouterr().err
    (folder / "measured.json").touch()
    assert main(["show", str(folder)]) == 2
    assert "is of a run that came to its end: see its report.html" in capsys.readouterr().err


def test_what_was_recorded_and_what_goes_on_are_two_commands(tmp_path, monkeypatch, capsys):
    def breaks_off(arguments):
        error = RunError("rank 1 died", [tmp_path / "partial-step-3.json"])
        error.broke_off = tmp_path / "checkpoints" / "step-000002"
        raise error

    monkeypatch.setattr("realrun.cli.main.run_command", breaks_off)
    assert main(["--dp", "2", "--checkpoint-every", "1"]) == 1
    said = capsys.readouterr().err
    assert "recorded until it ended: partial-step-3.json; see it with: " in said
    assert f" show {tmp_path}\n" in said
    assert re.search(r"go on from it with: .* --dp 2 --checkpoint-every 1 --resume$", said, re.M)
