"""Values of options and of files that were ignored, or taken for others."""

import json
import os
import stat
import subprocess
import sys
from importlib.resources import files

import pytest

import realrun.cli.main as realrun
from simlab.cli.main import main
from tests.support.patience import PATIENCE_S
from tests.support.simlab_commands import answer, refused

PIPELINE = [
    "--pp",
    "2",
    "--microbatches",
    "4",
    "--forward-ms",
    "1",
    "--input-grad-ms",
    "1",
    "--weight-grad-ms",
    "1",
]
SEARCH = ["plan", "--model", "gpt2", "--cluster", "dgx-a100", "--global-batch", "16"]
STEP = ["simulate", "--model", "gpt2", "--cluster", "dgx-a100"]


@pytest.mark.parametrize(
    "argv, said",
    [
        ([*SEARCH, "--zero", "9"], "zero = 9: give one of 0, 1, 2, 3"),
        ([*SEARCH, "--schedule", "nope"], "unknown schedule 'nope'; there is gpipe"),
        ([*SEARCH, "--seq", "0"], "seq = 0: give a whole number, at least 1"),
        ([*SEARCH, "--out", ""], "--out '': give the path of a file to write"),
        ([*STEP, "--picture", ""], "--picture '': give the path of a file to write"),
        ([*STEP, "--picture", "/dev/full"], "--picture '/dev/full': give the path of a file"),
        ([*STEP, "--trace", ""], "--trace '': give the path of a file to write"),
        (["why", "x.json", "--profiles", ""], "--profiles '': give the path"),
        (["schedule", "gpipe", *PIPELINE[:4], "--csv", ""], "cannot write ''"),
        (["schedules", *PIPELINE, "--activation-cap", "nan"], "--activation-cap nan: give a finite"),
    ],
)  # fmt: skip
def test_a_value_that_was_ignored_is_refused(capsys, argv, said):
    assert said in refused(capsys, argv)


def test_a_search_takes_the_other_name_of_a_schedule(capsys):
    assert main([*SEARCH, "--schedule", "afab", "--pp", "1", "--tp", "1", "--json"]) == 0


@pytest.mark.parametrize("value", ["Infinity", "NaN", "1e999"])
@pytest.mark.parametrize(
    "part, key", [("intra", "bandwidth_bytes_per_s"), ("", "pcie_bytes_per_s")]
)
def test_a_cluster_file_has_finite_figures(tmp_path, capsys, value, part, key):
    text = (files("simlab.spec") / "data" / "clusters.json").read_text(encoding="utf-8")
    facts = json.loads(text)["dgx-a100"]
    (facts[part] if part else facts)[key] = "HERE"
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(facts).replace('"HERE"', value))
    line = refused(capsys, ["simulate", "--model", "gpt2", "--cluster", str(path)])
    assert f"{key} = {float(value)}: give a finite number" in line


def test_a_truth_value_is_no_degree_of_a_plan_file(tmp_path, capsys):
    """Python takes True for 1, and so for a pipeline alone."""
    path = tmp_path / "plan.yaml"
    path.write_text("dp: true\n")
    for run in (realrun.main, lambda argv: main([*STEP, *argv])):
        assert "dp = True: give a whole number" in refused(capsys, ["--plan", str(path)], run)


def test_a_group_of_no_microbatch_is_refused(capsys):
    argv = ["--pp", "2", "--microbatches", "4", "--schedule", "interleaved-1f1b", "--group", "0"]
    assert "group" in refused(capsys, argv, realrun.main)


@pytest.mark.parametrize("argv", [["--pp", "2", "--out", ""]])
def test_realrun_writes_into_no_folder_without_a_name(argv, capsys):
    assert "--out ''" in refused(capsys, argv, realrun.main)


def test_a_plan_file_of_experts_is_good_for_both_programs(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    path.write_text("dp: 8\nexperts: 4\nexperts_per_token: 2\n")
    assert main([*STEP, "--plan", str(path)]) == 0
    assert "experts" in capsys.readouterr().err


def test_a_replan_has_as_many_nodes_as_its_plan_takes(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    path.write_text("model: gpt2\ncluster: dgx-a100\ndp: 16\n")
    assert answer(capsys, ["operations", "replan", "--plan", str(path)])["ways"]


def test_a_long_search_for_a_schedule_is_left_out_with_a_note(capsys):
    argv = ["schedule", "zb-auto", "--pp", "64", "--microbatches", "256"]
    times = ["--forward-ms", "1", "--input-grad-ms", "1", "--weight-grad-ms", "1"]
    assert "the search would take too long" in refused(capsys, [*argv, *times])


def test_a_picture_without_an_ending_is_called_what_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["schedules", *PIPELINE, "--picture", "x"]) == 0
    assert "wrote x.png" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["x.png"]


def test_nothing_that_is_written_is_everybodys_to_write(tmp_path):
    argv = [
        sys.executable,
        "-m",
        "simlab",
        *["schedule", "gpipe", "--pp", "2", "--microbatches", "2", "--csv"],
    ]
    subprocess.run([*argv, str(tmp_path / "a.csv")], check=True, umask=0, timeout=PATIENCE_S)
    assert not stat.S_IMODE((tmp_path / "a.csv").stat().st_mode) & 0o002
