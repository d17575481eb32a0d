"""The command plan: what it prints, the plan file that it writes, and how it ends."""

import re

import pytest

from simlab.cli.commands import plan as commands
from simlab.cli.main import main
from simlab.cli.plan_options import plan_part, read_plan_file
from simlab.spec.plan import Plan
from tests.support.simlab_commands import answer, refused

SEARCH = "plan --model llama-3-8b --cluster dgx-h100 --nodes 1 --global-batch 16 --cp 1"

MIXTRAL = (
    "plan --model mixtral-8x7b --cluster dgx-h100 --nodes 4 --global-batch 64 --tp 1 --cp 1 --ep 8 "
    "--zero 1 --recompute none --microbatch-size 1"
)


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


def test_the_time_that_is_said_is_all_of_it(monkeypatch, capsys):
    explained, slow_s = commands.explanation, 1000.0
    clock_s = commands.perf_counter
    late = []
    monkeypatch.setattr(commands, "perf_counter", lambda: clock_s() + sum(late))

    def slow(*arguments, **options):
        late.append(slow_s)
        return explained(*arguments, **options)

    monkeypatch.setattr(commands, "explanation", slow)
    assert answer(capsys, f"{SEARCH} --tp 2 --zero 1")["seconds"] > slow_s


def test_one_node_is_told_and_so_is_an_error_that_is_not_known(capsys):
    search = (
        "plan --model gpt2 --cluster mi300x --global-batch 8 --dp 8 --microbatch-size 1 --zero 1"
    )
    assert main(search.split()) == 0
    out = capsys.readouterr().out
    said = " ".join(out.split())
    assert "nodes: 1, as nothing says how many: --nodes 2 searches 16 GPUs" in said
    head, row = next(
        (a, b) for a, b in zip(out.splitlines(), out.splitlines()[1:]) if a[:2] == "dp"
    )
    assert head.split()[-2:] == ["GiB", "fit"] and row.split()[-2] == "fits"
    assert "the error of the nearest predictions; of these it is not known" in said
    assert "That of these is not known: measuring decides." in said
    assert main([*search.split(), "--nodes", "1"]) == 0
    assert "as nothing says how many" not in capsys.readouterr().out


def test_ranks_that_share_experts_are_searched_and_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = (
        "plan --model mixtral-8x7b --cluster dgx-h100 --nodes 4 --global-batch 64 --tp 1 --cp 1"
    )
    assert main([*command.split(), "--out", "best.yaml"]) == 0
    asked, head, first, *_ = capsys.readouterr().out.splitlines()
    assert asked == "mixtral-8x7b on 32 x h100-sxm-80gb: 64 sequences of 4096 tokens a step"
    shown = dict(zip(head.split(), first.split()))
    found = answer(capsys, f"{command} --top 3")["plans"][0]
    assert int(shown["ep"]) == found["ep"] > 1 and "ep" in found["family"]
    simulated = answer(capsys, "simulate --plan best.yaml")
    assert simulated["plan"]["ep"] == found["ep"]
    assert simulated["step_s"] == pytest.approx(found["step_s"], rel=1e-4)


@pytest.mark.parametrize(("search", "project", "written", "lost"), [
    (f"{SEARCH} --tp 2", "megatron", "--tensor-model-parallel-size 2", ()),
    (f"{SEARCH} --tp 2", "torchtitan", "tensor_parallel_degree = 2", ("zero = ",)),
    (f"{SEARCH} --tp 2 --pp 1 --zero 1", "deepspeed", '"stage": 1', ("sequence_parallel = True",)),
    (f"{SEARCH} --tp 2", "nanotron", "tp: 2", ()),
    (MIXTRAL, "megatron", "--expert-model-parallel-size 8", ()),
    (MIXTRAL, "deepspeed", '"stage": 1', ("ep = 8",)),
])  # fmt: skip
def test_the_best_plan_becomes_a_configuration_of_another_project(
    tmp_path, monkeypatch, capsys, search, project, written, lost
):
    """The two commands that docs/simulating.md shows, one after the other."""
    monkeypatch.chdir(tmp_path)
    assert main([*search.split(), "--out", "best.yaml"]) == 0
    capsys.readouterr()
    assert main(["convert", "best.yaml", "--to", project]) == 0
    said = capsys.readouterr()
    assert written in said.out
    assert all(f"not said: {field}" in said.err for field in lost)


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


@pytest.mark.parametrize(("top", "shown"), [("", 10), (" --top 13", 13), (" --top 2", 2)])
def test_as_many_plans_are_shown_as_are_asked_for(capsys, top, shown):
    assert main([*f"{SEARCH}{top}".split()]) == 0
    table = capsys.readouterr().out.partition("u after pp")[0].splitlines()
    rows = [line for line in table if re.match(r" *\d+ +\d", line)]
    assert len(rows) == shown


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
    assert why in refused(capsys, words)
