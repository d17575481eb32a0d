"""The command plan: what it prints, the plan file that it writes, and how it ends."""

import json

import pytest

from simlab.cli.main import main
from simlab.cli.plan_options import plan_part, read_plan_file
from simlab.spec.plan import Plan

SEARCH = "plan --model llama-3-8b --cluster dgx-h100 --nodes 1 --global-batch 16 --cp 1"


def answer(capsys, command, status=0):
    assert main([*command.split(), "--json"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "more", ["", "--pp 2 --schedule interleaved-1f1b", "--tp 2 --precision fp8 --seq 4096"]
)
def test_a_plan_file_gives_simulate_the_plan_that_was_found(tmp_path, monkeypatch, capsys, more):
    monkeypatch.chdir(tmp_path)
    best = answer(capsys, f"{SEARCH} {more} --out best.yaml")["plans"][0]
    simulated = answer(capsys, "simulate --plan best.yaml")
    assert simulated["step_s"] == pytest.approx(best["step_s"], rel=1e-4)
    assert simulated["global_batch"] == 16
    assert {name: simulated["plan"][name] for name in ("dp", "tp", "pp", "zero", "chunks")} == {
        name: best[name] for name in ("dp", "tp", "pp", "zero", "chunks")
    }


def test_a_plan_file_is_good_for_realrun(tmp_path, capsys):
    from realrun.cli.jobs import jobs, values
    from realrun.cli.main import parser

    path = tmp_path / "best.yaml"
    assert main([*f"{SEARCH} --tp 2 --out {path}".split()]) == 0
    assert read_plan_file(path)["tp"] == 2
    (job,) = jobs(values(parser().parse_args(["--plan", str(path)])))
    assert Plan(**plan_part(job.plan)).global_batch == 16


def test_a_plan_file_says_what_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.yaml").write_text("model: gpt2\ncluster: dgx-a100\nnodes: 1\ntp: 2\n")
    plans = answer(capsys, "plan --plan kept.yaml --global-batch 16")["plans"]
    assert {plan["tp"] for plan in plans} == {2}


def test_only_as_many_plans_as_asked_for_and_so_many_layer_by_layer(capsys):
    found = answer(capsys, f"{SEARCH} --top 4 --layers 2")
    assert [plan["layers_s"] is not None for plan in found["plans"]] == [True, True, False, False]
    steps = [plan["step_s"] for plan in found["plans"]]
    assert steps == sorted(steps)


def test_where_nothing_fits_it_says_what_is_missing_and_what_would_help(capsys):
    command = SEARCH.replace("llama-3-8b", "llama-3-70b") + " --zero 0"
    found = answer(capsys, command, status=1)
    advice = found["why"]["advice"]
    assert found["plans"] == [] and advice["missing_bytes"] > 0 and advice["change"]
    assert main(command.split()) == 1
    assert "The cheapest change" in capsys.readouterr().out


def test_an_interruption_prints_what_was_found(capsys, monkeypatch):
    def stop_after_the_first(items, what):
        for number, item in enumerate(items):
            if what == "predicting plans" and number:
                raise KeyboardInterrupt
            yield item

    monkeypatch.setattr("simlab.cli.commands.plan.progress", stop_after_the_first)
    found = answer(capsys, f"{SEARCH} --top 1", status=1)
    assert found["interrupted"] and found["plans"]


@pytest.mark.parametrize("words, why", [
    ("plan --global-batch 8", "give --model"), (SEARCH + " --top 0", "--top 0"), (SEARCH + " --nodes 0", "--nodes 0"),
    (SEARCH + " --workers 0", "--workers 0"), (SEARCH + " --global-batch 0", "global_batch"), (SEARCH + " --layers -1", "--layers -1"),
])  # fmt: skip
def test_a_mistake_is_one_line(capsys, words, why):
    assert main(words.split()) == 2
    assert why in capsys.readouterr().err
