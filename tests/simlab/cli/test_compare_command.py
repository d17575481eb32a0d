"""The commands compare and sweep: several predicted steps in one table, and why they differ."""

import re
from pathlib import Path

import pytest

import simlab as sl
from simlab.cli import output
from simlab.cli.commands.compare import _short
from simlab.cli.main import main
from tests.support.simlab_commands import answer, refused

PLAN = "model: gpt2\ncluster: dgx-a100\nmicrobatches: 4\ndp: {dp}\ntp: {tp}\n"
SWEEP = ["sweep", "--model", "gpt2", "--cluster", "dgx-a100"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two plan files for the same GPUs, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wide.yaml").write_text(PLAN.format(dp=2, tp=4))
    (tmp_path / "deep.yaml").write_text(PLAN.format(dp=8, tp=1))


def test_plans_are_predicted_as_by_themselves_and_say_in_what_they_differ(files, capsys):
    both = answer(capsys, "compare wide.yaml deep.yaml")
    for its, (dp, tp) in zip(both["plans"], ((2, 4), (8, 1))):
        plan = sl.Plan(dp=dp, tp=tp, microbatches=4)
        alone = sl.predict("gpt2", plan, sl.load_cluster("dgx-a100", nodes=1))
        assert its["step_s"] == alone.step_s
    assert [its["name"] for its in both["plans"]] == ["wide", "deep"]
    assert both["differs"] == {"global_batch": [8, 32], "dp": [2, 8], "tp": [4, 1]}


def test_the_table_has_a_row_for_each_and_the_text_the_parts_that_changed(files, capsys):
    assert main(["compare", "wide.yaml", "deep.yaml"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^plan +tokens/s/GPU +step +MFU +GiB +fit +compute", out, re.M)
    assert re.search(r"^deep .* [+-]\d+\.\d% .* fits ", out, re.M)
    assert "they differ in global_batch 8, 32; dp 2, 8; tp 4, 1" in out
    assert re.search(
        r"plan deep beside wide: [+-][0-9.]+% tokens/s/GPU, a step .*(longer|shorter) \(", out, re.S
    )


def test_equal_plans_have_the_same_step_and_close_ones_are_a_tie(files, capsys):
    main(["compare", "wide.yaml", "wide.yaml"])
    assert "the same step" in capsys.readouterr().out
    main([*SWEEP, "--over", "bucket_bytes=25000000,26000000", "--dp", "8", "--zero", "1"])
    out = capsys.readouterr().out
    assert "a tie, within" in out and "the same step" not in out


def test_what_a_file_says_without_effect_is_told_once(files, capsys):
    with open("wide.yaml", "a") as file:
        file.write("forward_ms: 3\n")
    for asked in (
        ["compare", "wide.yaml", "deep.yaml"],
        ["sweep", "--over", "zero=0,1", "--plan", "wide.yaml"],
    ):
        main(asked)
        assert capsys.readouterr().err.count("note: only realrun reads forward_ms") == 1


def test_a_published_run_stands_beside_a_file(files, capsys):
    both = answer(capsys, "compare wide.yaml meg21-1.7B")
    assert both["plans"][1]["gpus"] == 32 and both["differs"]["gpus"] == [8, 32]


def test_a_narrow_terminal_leaves_parts_out_and_keeps_the_step(files, capsys, monkeypatch):
    monkeypatch.setattr(output, "terminal_columns", lambda: 60)
    assert main([*SWEEP, "--over", "tp=1,2", "--nodes", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[0].split()[:3] == ["--tp", "tokens/s/GPU", "step"]
    assert any(line.startswith("Left out, as this terminal is 60 columns wide: ") for line in lines)


@pytest.mark.parametrize("over", ["microbatch_size=1,2", "sequence_parallel=no,yes", "pp=1,2"])
def test_the_largest_part_of_the_step_is_in_80_columns(capsys, over):
    """Also where no value fits, and whichever option changes: its name heads the first column."""
    size = [] if "size" in over else ["--microbatch-size", "4"]
    main(["sweep", "--model", "llama-3-70b", "--cluster", "dgx-h100", "--nodes", "4", "--tp", "2",
          "--over", over, *size])  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    head, *rows = lines[next(at for at, line in enumerate(lines) if " tokens/s/GPU" in line) :]
    assert " compute" in head and max(map(len, rows[:2])) <= 80
    assert all(re.search(r" no +\d+(\.\d+)? m?s", row) for row in rows[:2])


def test_a_first_plan_that_does_not_fit_is_told_before_the_table(capsys):
    line = ["--model", "llama-3-70b", "--cluster", "dgx-h100", "--nodes", "4", "--tp", "8"]
    main(["sweep", *line, "--over", "zero=0,3"])
    told, _, table = capsys.readouterr().out.partition("tokens/s/GPU")
    said = " ".join(told.split())
    assert said.startswith("--zero 0, with which the others are compared, does not fit: ") and table
    main(["sweep", *line, "--over", "zero=3,2"])
    assert capsys.readouterr().out.startswith("--zero ")
    assert "compared" not in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "said"), [
    (0.948, "948 ms"), (1.627, "1.63 s"), (0.00123, "1.2 ms"), (65.432, "65.4 s"), (3673.2, "3673 s"), (5e-5, "50 µs"),
    (0.0297, "29.7 ms"), (2e6, "2e+06 s"),
])  # fmt: skip
def test_a_time_in_the_table_has_no_digit_that_was_not_computed(seconds, said):
    assert _short(seconds) == said


def test_a_value_that_no_plan_can_have_is_listed_with_the_reason(capsys):
    found = answer(capsys, [*SWEEP, "--over", "tp=1,5", "--nodes", "1"])
    one, none = found["plans"]
    assert one["plan"]["dp"] == 8 and none["name"] == "5" and "8 GPUs" in none["refused"]
    assert found["differs"] == {}
    main([*SWEEP, "--over", "tp=1,5", "--nodes", "1"])
    out = capsys.readouterr().out
    assert "--tp 5 is refused: " in out and "1 of 2 values of --tp have a plan" in out
    assert main([*SWEEP, "--over", "tp=1,5", "--nodes", "1", "--strict"]) == 1


@pytest.mark.parametrize("nodes", ["", "nodes: 1\n"])
def test_dp_and_microbatches_of_a_file_follow_from_its_gpus_and_batch(files, capsys, nodes):
    with open("deep.yaml", "a") as file:
        file.write(nodes)
    tensor = answer(capsys, "sweep --plan deep.yaml --over tp=1,2,3")["plans"]
    assert [(its["gpus"], its["plan"]["dp"], its["microbatches"]) for its in tensor[:2]] == [
        (8, 8, 4),
        (8, 4, 8),
    ]
    assert "3 does not divide" in tensor[2]["refused"]
    wider = answer(capsys, "sweep --plan deep.yaml --over nodes=1,2")["plans"]
    assert [(its["gpus"], its["global_batch"]) for its in wider] == [(8, 32), (16, 32)]
    main(["sweep", "--plan", "deep.yaml", "--over", "pp=1,2"])
    said = " ".join(capsys.readouterr().out.split())
    gpus = "the" if nodes else "8"
    assert f"dp follows from {gpus} GPUs and microbatches follow from a global batch of 32" in said


def test_what_is_given_beside_a_file_does_not_follow(files, capsys):
    asked = ["sweep", "--plan", "deep.yaml", "--over", "tp=1,2"]
    kept = answer(capsys, [*asked, "--microbatches", "4"])["plans"]
    assert [(its["gpus"], its["global_batch"]) for its in kept] == [(8, 32), (8, 16)]
    kept = answer(capsys, [*asked, "--dp", "4"])["plans"]
    assert [(its["gpus"], its["global_batch"]) for its in kept] == [(4, 32), (8, 32)]
    kept = answer(capsys, [*asked, "--global-batch", "64"])["plans"]
    assert [(its["gpus"], its["global_batch"]) for its in kept] == [(8, 64), (8, 64)]


def test_a_global_batch_is_held_over_a_sweep_and_given_to_a_simulation(files, capsys):
    asked = [*SWEEP, "--nodes", "1", "--global-batch", "16"]
    held = answer(capsys, [*asked, "--over", "tp=1,2"])["plans"]
    assert [(its["global_batch"], its["microbatches"]) for its in held] == [(16, 2), (16, 4)]
    one = answer(capsys, ["simulate", *asked[1:], "--tp", "2"])
    assert one["step_s"] == held[1]["step_s"]
    for wrong, said in (
        (["--global-batch", "12"], "a global batch of 12 is no multiple of dp x microbatch_size"),
        (["--microbatches", "4"], "--microbatches 4 and --global-batch 16: give one of the two"),
        (["--global-batch", "0"], "--global-batch = 0: give a whole number"),
    ):
        assert said in refused(capsys, ["simulate", *asked[1:], *wrong])


def test_steps_of_other_batches_are_compared_by_tokens(files, capsys):
    """Twice the microbatches take twice the time, and hardly another rate: a tie."""
    main(["sweep", "--plan", "deep.yaml", "--over", "microbatches=8,16"])
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"16 beside 8: \+[0-9.]+% tokens/s/GPU, a step .* longer .*; a tie, within", said
    )


def test_other_options_than_those_of_a_plan_are_swept_too(capsys):
    found = answer(capsys, [*SWEEP, "--over", "nodes=1,2"])
    assert [its["gpus"] for its in found["plans"]] == [8, 16]
    found = answer(capsys, "sweep --over cluster=dgx-a100,dgx-h100 --model gpt2")
    assert found["differs"]["cluster"] == ["dgx-a100", "dgx-h100"]


def test_strict_is_1_where_a_step_does_not_fit(capsys):
    large = ["sweep", "--model", "llama-3-70b", "--cluster", "dgx-a100", "--over", "tp=1,8"]
    assert main([*large, "--nodes", "1"]) == 0
    assert main([*large, "--nodes", "1", "--strict"]) == 1
    capsys.readouterr()


def test_the_picture_has_a_bar_for_each(files, tmp_path, capsys):
    main(["compare", "wide.yaml", "deep.yaml", "--picture", "both.html"])
    assert capsys.readouterr().err == "wrote both.html\n"
    page = (tmp_path / "both.html").read_text("utf-8")
    assert "plan wide" in page and "plan deep" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "wide.yaml"], "1 plan to compare: give 2 to 64"),
        (["compare", "wide.yaml", "none.yaml"], "none.yaml"),
        (["compare", "wide.yaml", "meg21-1.7"], "did you mean 'meg21-1.7B'?"),
        (["compare", "wide.yaml", "meg21-1.7B", "--nodes", "1"], "--nodes goes with plan files"),
        ([*SWEEP, "--over", "tq=1,2"], "did you mean 'tp'?"),
        ([*SWEEP, "--over", "tp"], "give an option and 1 to 64 values, as in tp=1,2,4,8"),
        ([*SWEEP, "--over", "tp=1,,2"], "give an option and 1 to 64 values"),
        ([*SWEEP, "--over", "tp=1,1"], "a value stands there twice"),
        ([*SWEEP, "--over", "nodes=x"], "nodes = 'x': give a whole number"),
        ([*SWEEP, "--over", "tp=x"], "tp = 'x'"),
        (
            [*SWEEP, "--over", "microbatches=1,2", "--global-batch", "8"],
            "they follow from --global-batch 8",
        ),
        (["sweep", "--over", "tp=1"], "no model: give --model"),
        (["compare", "wide.yaml", "deep.yaml", "--picture", "x.wav"], "a picture ends in .png"),
    ],
)
def test_bad_input_is_one_line_and_status_2(files, capsys, arguments, said):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and said in err


def test_a_sweep_over_stages_divides_layers_anew(files, capsys):
    Path("best.yaml").write_text(
        "model: llama-3-8b\ncluster: dgx-h100\nnodes: 1\ndp: 4\npp: 2\nmicrobatches: 8\nstage_layers: [18, 14]\n"
    )
    plans = answer(capsys, ["sweep", "--plan", "best.yaml", "--over", "pp=2,4"])["plans"]
    assert [its["plan"]["stage_layers"] for its in plans] == ["auto", "auto"]
    assert main(["sweep", "--plan", "best.yaml", "--over", "pp=2,4"]) == 0
    assert capsys.readouterr().err.count("note: stage_layers: auto, as best.yaml divides") == 1
