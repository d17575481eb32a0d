"""The command `simulate` with a model on a cluster."""

import json
from pathlib import Path

import pytest
from simlab_commands import SIMULATE, one_object, run

import simlab
from simlab.cli.commands.simulate import ONLY_WITH_MODEL, ONLY_WITH_OP_TIMES
from simlab.cli.main import parser

ON_A_CLUSTER = "simulate --model gpt2 --cluster dgx-h100"


def test_every_option_of_simulate_goes_with_a_model_with_op_times_or_with_both():
    simulate = parser().commands["simulate"]
    options = {action.dest for action in simulate._actions}
    both = {
        "schedule",
        "pp",
        "microbatches",
        "chunks",
        "explain",
        "picture",
        "trace",
        "perfetto",
        "strict",
        "json",
        "schema",
        "help",
    }
    assert options == {"model", "plan", *ONLY_WITH_MODEL, *ONLY_WITH_OP_TIMES, *both}
    assert not set(ONLY_WITH_MODEL) & set(ONLY_WITH_OP_TIMES)


def given(name):
    """The option `name` with a value that the parser takes, as text."""
    option = next(its for its in parser().commands["simulate"]._actions if its.dest == name)
    values = {"partition": "best", "csv": "x.csv"}
    value = "yes" if option.metavar == "{yes,no}" else values.get(name, 1)
    return f"--{name.replace('_', '-')} {value}"


@pytest.mark.parametrize("name", ONLY_WITH_OP_TIMES)
def test_what_goes_with_op_times_is_refused_with_a_model(capsys, name):
    why = f"error: {given(name)} goes with op times, not with --model\n"
    assert run(capsys, f"{ON_A_CLUSTER} {given(name)}") == (2, "", why)


@pytest.mark.parametrize("name", ONLY_WITH_MODEL)
def test_what_goes_with_a_model_is_refused_with_op_times(capsys, name):
    why = f"error: {given(name)} goes with --model: with op times there is only a pipeline\n"
    assert run(capsys, f"{SIMULATE} {given(name)}") == (2, "", why)


def test_a_models_step_is_printed_with_its_sequence_length_and_global_batch(capsys):
    command = f"{ON_A_CLUSTER} --dp 2 --microbatches 3 --microbatch-size 4 --seq 512"
    assert (
        "global batch             24 sequences of 512 tokens"
        in run(capsys, command)[1].splitlines()
    )
    result = one_object(run(capsys, f"{ON_A_CLUSTER} --json")[1])
    assert (result["global_batch"], result["seq"]) == (8, 1024)


def test_a_models_step_is_explained_as_a_schedule_is(capsys, tmp_path):
    command = f"{ON_A_CLUSTER} --pp 2 --microbatches 2 --explain"
    lines = run(capsys, command)[1].splitlines()
    result = one_object(run(capsys, f"{command} --json --picture {tmp_path}/x.png")[1])
    at = lines.index(f"longest idle times, {len(result['gaps'])} of {len(result['gaps'])}:")
    assert {line.strip() for line in lines[at + 1 : -1]} == {gap["text"] for gap in result["gaps"]}
    assert lines[-1] == "critical path            0F0 → 1F0 → 1B0 → 1F1 → 1B1 → 0B1"
    assert (
        result["critical_path"][:3] == ["compute 0F0", "send 0F0", "compute 1F0"]
        and (tmp_path / "x.png").is_file()
    )
    assert "critical path" not in run(capsys, f"{ON_A_CLUSTER} --pp 2 --microbatches 2")[1]


@pytest.fixture
def four_nodes(tmp_path):
    """The path of a cluster's file: 4 nodes of 8 GPUs."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"nodes": 4, **CLUSTERS["dgx-h100"]}))
    return path


CLUSTERS = json.loads(
    (Path(simlab.__file__).parent / "spec" / "data" / "clusters.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize(("options", "gpus", "dp"), [
    ("", 32, 32), ("--tp 4", 32, 8), ("--tp 4 --dp 8", 32, 8), ("--nodes 2 --tp 4", 16, 4), ("--nodes 8 --tp 4 --dp 16", 64, 16),
])  # fmt: skip
def test_the_nodes_of_a_clusters_file_are_those_there_are(capsys, four_nodes, options, gpus, dp):
    result = one_object(
        run(capsys, f"simulate --model llama-3-8b --cluster {four_nodes} {options} --json")[1]
    )
    assert (result["gpus"], result["plan"]["dp"]) == (gpus, dp)


@pytest.mark.parametrize(("options", "says"), [
    ("--tp 8 --dp 8", "= 64, but there are 32 GPUs: dp = 4 would use them all"),
    ("--tp 4 --dp 2", "= 8, but there are 32 GPUs: dp = 8 would use them all"),
    ("--pp 5", "there are 32 GPUs: tp x pp x cp = 5 does not divide them"),
    ("--tp 4 --nodes 2 --dp 8", "there are 16 GPUs: dp = 4 would use them all"),
])  # fmt: skip
def test_a_plan_that_does_not_take_a_files_nodes_is_refused(capsys, four_nodes, options, says):
    status, out, err = run(capsys, f"simulate --model llama-3-8b --cluster {four_nodes} {options}")
    assert (status, out, len(err.splitlines())) == (2, "", 1) and says in err


def test_where_nobody_says_how_many_nodes_there_are_as_many_as_the_plan_takes(capsys, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(CLUSTERS["dgx-h100"]))
    for cluster in ("dgx-h100", tmp_path / "mine.json"):
        command = f"simulate --model llama-3-8b --cluster {cluster} --json"
        assert [
            one_object(run(capsys, f"{command} {options}")[1])["gpus"]
            for options in ("", "--tp 4", "--dp 16")
        ] == [8, 4, 16]


def test_what_of_a_config_is_ignored_is_noted(capsys, tmp_path):
    config = {"model_type": "mistral", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1024,
              "vocab_size": 1000, "max_position_embeddings": 2048, "quantization_config": 4}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    status, out, err = run(capsys, ON_A_CLUSTER.replace("gpt2", str(path)))
    assert (status, err) == (
        0,
        f"note: nothing is computed from {path}'s quantization_config = 4\n",
    )
    assert out.startswith(f"{tmp_path.name} on 8 x h100-sxm-80gb")
    assert len(run(capsys, ON_A_CLUSTER.replace("gpt2", f"{path} --tp 3"))[2].splitlines()) == 1, (
        "of an error only the error"
    )
    path.write_text(json.dumps(config | {"model_type": "bert"}))
    status, out, err = run(capsys, ON_A_CLUSTER.replace("gpt2", str(path)))
    assert (status, out, len(err.splitlines())) == (
        2,
        "",
        1,
    ) and "a simlab.Model cannot say model_type 'bert': it has attention to what comes after" in err
