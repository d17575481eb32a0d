"""`realrun check`: its plans, the file it leaves, and what fails it."""

import json

import pytest
from realrun_schemas import schema

from realrun.cli import check
from realrun.cli import measure as measuring
from realrun.cli.main import main
from realrun.launch.pool import Pool, RunError
from simlab.spec.plan import Plan

SMALL = ("--hidden", "32", "--heads", "2", "--layers", "2", "--seq", "16", "--steps", "1")
ONE = ("check", "--ranks", "1", *SMALL, "--predict-on", "laptop", "--device", "cpu", "--json")


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_each_plan_takes_all_ranks_and_as_many_sequences_and_no_two_are_one(ranks):
    found = [Plan(**fields) for fields in check.plans(ranks)]
    assert len(set(map(str, check.plans(ranks)))) == len(found) == (6 if ranks == 1 else 10)
    for plan in found:
        assert plan.gpus == ranks
        assert plan.dp * plan.microbatches * plan.microbatch_size == check.SEQUENCES
        assert plan.microbatches >= plan.pp


def test_a_machine_is_measured_its_plans_are_run_and_the_file_says_what_was_printed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(measuring.BUDGET_S, True, 0.001)
    asked = ["check", "--ranks", "2", *SMALL, "--device", "cpu", "--out", str(tmp_path), "--json"]
    assert main(asked) == 0
    answer = json.loads(capsys.readouterr().out)
    schema("check").validate(answer)
    assert json.loads((tmp_path / "check.json").read_text("utf-8")) == answer
    assert answer["machine"]["ranks"] == 2 and (tmp_path / "machine.json").exists()
    ran = [row for row in answer["rows"] if "measured_step_s" in row]
    assert len(answer["rows"]) == 20 and len(ran) == 20
    for row in ran:
        assert row["gradient_error"] <= 1e-9
        assert row["error"] == pytest.approx(row["predicted_step_s"] / row["measured_step_s"] - 1)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count("<h2>") == len(ran)


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    run, seen = Pool.run, []

    def second_fails(pool, job):
        seen.append(job)
        if len(seen) == 2:
            pool.close()
            raise RunError("rank 0 was ended by SIGKILL")
        return run(pool, job)

    monkeypatch.setattr(Pool, "run", second_fails)
    assert main([*ONE, "--out", str(tmp_path)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["failed"] == [
        "torch, microbatch_size 4 microbatches 4: rank 0 was ended by SIGKILL"
    ]
    assert sum("measured_step_s" in row for row in answer["rows"]) == 11


def test_a_prediction_beyond_the_limit_fails_the_check(tmp_path, capsys):
    assert main([*ONE, "--out", str(tmp_path), "--max-error", "0"]) == 1
    failed = json.loads(capsys.readouterr().out)["failed"]
    assert len(failed) == 12 and all("more than 0.0%" in line for line in failed)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--ranks", "3"), "--ranks 3: give 1, 2, 4 or 8"),
        (("--ranks", "2", "--max-error", "-1"), "--max-error -1.0: give a percentage, 0 or more"),
        (("--out", "/dev/null/x"), "--out '/dev/null/x'"),
        (("--model", "llama-3-8c"), "llama-3-8c"),
    ],
)
def test_what_cannot_be_checked_is_refused_at_once(asked, said, monkeypatch, capsys):
    monkeypatch.setattr(check, "measured_file", None)  # before anything is measured
    assert main(["check", "--device", "cpu", "--ranks", "1", *asked]) == 2
    assert said in capsys.readouterr().err
