"""torchtitan's options of pipeline stages: layers for each stage, modules, split points, fewer layers at the
ends; and the chunks of a plan, which come back."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simlab import InputError, Plan
from simlab.cli.config_files import config_text, read_config
from simlab.cli.main import main
from simlab.planner.formats import exported, imported
from simlab.spec.stage_layers import RULES

LLAMA = {"model": {"name": "llama3", "flavor": "8B"}}  # 32 layers
EVEN = {"pipeline_parallel_first_stage_less_layers": 0, "pipeline_parallel_last_stage_less_layers": 0}  # fmt: skip
MODULES = [["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["layers.3"], ["layers.4", "norm", "output"]]  # fmt: skip


def made(model=LLAMA, schedule="Interleaved1F1B", pp=4, **options):
    parallelism = {"data_parallel_shard_degree": 1, "pipeline_parallel_degree": pp,
                   "pipeline_parallel_schedule": schedule} | options  # fmt: skip
    off = {"activation_checkpoint": {"mode": "none"}}
    return imported("torchtitan", {**model, **off, "parallelism": parallelism})


def each(count):
    return {"pipeline_parallel_layers_per_stage": count}


@pytest.mark.parametrize(("options", "chunks", "layers"), [
    (EVEN | each(2), 4, [2] * 16),
    (EVEN | each(4), 2, [4] * 8),
    # with a layer less at each end there are 34 to divide: by 3 they are 12 stages, of which ten have 3
    (each(3), 3, [2, *[3] * 9, 2, 1]),
    ({}, 2, [4, 5, 4, 4, 4, 4, 4, 3]),
    ({"module_fqns_per_model_part": MODULES, "pp": 2}, 2, [1, 2, 1, 1]),
    ({"pipeline_parallel_module_fqns_per_model_part": MODULES, "pp": 2}, 2, [1, 2, 1, 1]),
    ({"pipeline_parallel_split_points": ["layers.8", "layers.14", "layers.22"], "pp": 2}, 2, [8, 6, 8, 10]),
    ({"schedule": "1F1B"}, 1, [8, 9, 8, 7]),
    ({"schedule": "1F1B"} | each(9), 1, [8, 9, 8, 7]),
])  # fmt: skip
def test_stages_are_those_that_torchtitan_makes(options, chunks, layers):
    its = made(**options)
    assert its.plan.chunks == chunks and its.plan.layers_of_stages(sum(layers)) == layers
    assert not its.unsaid and not its.left and not its.unknown


def test_a_flavor_is_read_where_newer_files_say_it():
    its = made({"model_spec": LLAMA["model"]}, **EVEN | each(2))
    assert its.plan.chunks == 4 and its.model.layers == 32


@pytest.mark.parametrize(("options", "says"), [
    (each(4) | {"schedule": "ZBVZeroBubble"}, "9 stages, but zb-v on 4 ranks has 8"),
    (each(4), "= 4 of 32 layers: 9 stages, but interleaved-1f1b on 4 ranks has a multiple of 4, at least 8"),
    (EVEN | each(8), "8 of 32 layers: 4 stages"),
    (EVEN | each(4) | {"schedule": "1F1B"}, "8 stages, but 1f1b on 4 ranks has 4"),
    ({"module_fqns_per_model_part": MODULES[:3], "pp": 2}, "3 stages"),
    ({"module_fqns_per_model_part": ["layers.0"]}, "a list of modules for each stage"),
    ({"pipeline_parallel_split_points": ["layers.4", "layers.2"]}, "such as layers.2, layers.4"),
    ({"pipeline_parallel_first_stage_less_layers": 40}, "= 40 and 1: 8 stages of 32 layers have 9"),
])  # fmt: skip
def test_what_torchtitan_would_refuse_is_one_clear_error(options, says):
    with pytest.raises(InputError, match=says) as error:
        made(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("options", "said"), [
    (EVEN | each(2), "layers_per_stage = 2: the file does not say how many layers the model has; give the plan chunks"),
    ({"pipeline_parallel_split_points": ["layers.2"], "schedule": "1F1B", "pp": 2}, "give the plan stage_layers"),
    (each(2) | {"schedule": "InterleavedZeroBubble"}, "which layers a stage of that schedule has"),
])  # fmt: skip
def test_what_a_file_without_a_model_leaves_open_is_named(options, said):
    assert any(said in note for note in made({}, **options).unsaid)


@given(pp=st.sampled_from([2, 3, 4]), chunks=st.sampled_from([1, 2, 3, 5]), rule=st.sampled_from(RULES),
       layers=st.integers(2, 70), schedule=st.sampled_from(["interleaved-1f1b", "looped-bfs"]))  # fmt: skip
def test_chunks_and_layers_of_stages_come_back(pp, chunks, rule, layers, schedule):
    many = {"schedule": schedule, "chunks": chunks} if chunks > 1 else {}
    plan = Plan(
        pp=pp, microbatches=2 * pp, library="torch", stage_layers=rule, tp_overlap="weight-grad", **many
    )  # fmt: skip
    try:
        counts = plan.layers_of_stages(layers)
    except InputError:
        assume(False)
    its = exported("torchtitan", plan, layers)
    again = imported("torchtitan", its.settings, gpus=pp).plan
    assert (again.chunks, again.schedule) == (plan.chunks, plan.schedule)
    assert again.layers_of_stages(layers) == counts
    assert not {"chunks", "stage_layers"} & {*its.unsaid}


def test_a_plan_file_keeps_its_chunks_through_a_toml(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = "pp: 4\nmicrobatches: 8\nschedule: interleaved-1f1b\nchunks: 4\nlibrary: torch\n"
    (tmp_path / "plan.yaml").write_text(f"model: llama-3-8b\n{lines}")
    assert main(["convert", "plan.yaml", "--to", "torchtitan", "--out", "run.toml"]) == 0
    error = capsys.readouterr().err
    assert "chunks" not in error and "seq = None" not in error
    assert main(["convert", "run.toml", "--gpus", "4"]) == 0
    out = capsys.readouterr().out
    assert "\nchunks: 4\n" in out and "\nseq: 8192\n" in out, "the model's, not torchtitan's 2048"
    content = read_config("run.toml", "toml")
    (tmp_path / "again.toml").write_text(config_text(content, "toml"))
    assert read_config("again.toml", "toml") == content
    (tmp_path / "bare.yaml").write_text(lines)
    assert main(["convert", "bare.yaml", "--to", "torchtitan"]) == 0
    error = capsys.readouterr().err
    assert "not said: chunks = 4" in error and "give the plan file one" in error
