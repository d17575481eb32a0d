"""The command convert: files of other projects become plan files and back, what is lost is named on
stderr, and a bad file is one line."""

import json
from dataclasses import replace
from subprocess import run

import pytest

from simlab.cli.config_files import config_text, read_config
from simlab.cli.main import main
from simlab.cli.plan_options import FIELDS, plan_part, read_plan_file
from simlab.planner.formats import FORMATS, exported, imported
from simlab.spec.plan import Plan
from tests.support.simlab_commands import refused

PLAN = Plan(
    dp=4, tp=2, pp=2, zero=1, microbatches=8, sequence_parallel=True, seq=4096, recompute="full"
)
SCRIPT = """#!/bin/bash
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size 2   # inside the node
    --pipeline-model-parallel-size=2
)
torchrun --nproc_per_node 8 pretrain_gpt.py "${MODEL_PARALLEL_ARGS[@]}" --micro-batch-size 1 \\
    --global-batch-size 32 --bf16 --lr 1.0e-4 --cp-comm-type p2p a2a
"""


@pytest.mark.parametrize("project", FORMATS)
def test_a_plan_file_comes_back_through_a_file_of_a_project(tmp_path, monkeypatch, capsys, project):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(
        "dp: 4\ntp: 2\npp: 2\nzero: 1\nmicrobatches: 8\nsequence_parallel: yes\nseq: 4096\nrecompute: full\n"
    )
    assert main(["convert", "plan.yaml", "--to", project, "--out", "config"]) == 0
    said = capsys.readouterr().err
    unsaid = exported(project, PLAN).unsaid
    assert all(f"not said: {field} = " in said for field in unsaid)
    back = ["convert", "config", "--from", project, "--gpus", "16", "--out", "back.yaml"]
    assert main(back) == 0
    made = Plan(**plan_part(read_plan_file("back.yaml")))
    assert made.microbatches == 8 and made.dp == 4
    assert all(getattr(made, field) != value for field, value in unsaid.items())


@pytest.mark.parametrize("project", FORMATS)
def test_what_is_written_is_read_as_the_same_options(tmp_path, project):
    syntax = FORMATS[project].syntax
    settings = exported(project, PLAN).settings
    (tmp_path / "config").write_text(config_text(settings, syntax))
    assert read_config(str(tmp_path / "config"), syntax) == settings


def test_a_shell_script_with_arguments_is_read_and_what_is_no_plan_is_named(tmp_path, capsys):
    (tmp_path / "train.sh").write_text(SCRIPT)
    path = str(tmp_path / "train.sh")
    assert main(["convert", path, "--from", "megatron", "--gpus", "16", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["plan"]["tp"], found["plan"]["pp"], found["plan"]["microbatches"]) == (2, 2, 8)
    assert found["plan"]["dropout"] is True, "on unless both rates are 0"
    assert {"--lr", "--nproc_per_node"} <= {*found["left"]}
    assert any("--cp-comm-type" in note for note in found["unsaid"])
    assert "not of a plan:" in captured.err and "--lr" in captured.err


QUOTED = """GPT_ARGS="
    --tensor-model-parallel-size 2
    --micro-batch-size 1 \\
    --global-batch-size 32 --seq-length 2048
    --grad-reduce-in-bf16 --bf16
"
DATA_ARGS='--split 949,50,1'
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS $DATA_ARGS --save out
"""


def test_arguments_in_a_quoted_variable_are_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text(QUOTED)
    convert = "convert train.sh --from megatron --gpus 16 --out plan.yaml"
    assert main(convert.split()) == 0
    captured = capsys.readouterr()
    assert captured.out == (tmp_path / "plan.yaml").read_text()
    made = Plan(**plan_part(read_plan_file("plan.yaml")))
    assert (made.tp, made.dp, made.microbatches, made.seq) == (2, 8, 4, 2048)
    assert (made.precision, made.gradient_bytes) == ("bf16", 2)
    assert {"--split", "--save"} <= {*captured.err.split("not of a plan: ")[1].strip().split(", ")}


@pytest.mark.parametrize("project", FORMATS)
@pytest.mark.parametrize("changes", [
    {}, {"gradient_bytes": 2}, {"bucket_bytes": 10_000_000, "zero": 0}, {"schedule": "gpipe"},
    {"schedule": "interleaved-1f1b", "chunks": 2}, {"offload": "optimizer"},
])  # fmt: skip
def test_the_plan_that_is_printed_is_the_plan_that_was_read(tmp_path, capsys, project, changes):
    plan = replace(PLAN, **changes)
    settings = exported(project, plan).settings
    (tmp_path / "config").write_text(config_text(settings, FORMATS[project].syntax))
    assert main(["convert", str(tmp_path / "config"), "--from", project, "--gpus", "16"]) == 0
    (tmp_path / "plan.yaml").write_text(capsys.readouterr().out)
    made = Plan(**plan_part(read_plan_file(tmp_path / "plan.yaml")))
    assert made == imported(project, settings, gpus=16).plan


def test_an_import_feeds_simulate(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("[parallelism]\ntensor_parallel_degree = 2\n")
    convert = "convert c.toml --from torchtitan --gpus 16 --out plan.yaml"
    assert main(convert.split()) == 0
    capsys.readouterr()
    run = "simulate --plan plan.yaml --model llama-3-8b --cluster dgx-h100 --json"
    assert main(run.split()) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["dp"], plan["tp"], plan["zero"], plan["library"]) == (8, 2, 3, "torch")


@pytest.mark.parametrize(
    ("content", "project", "says"),
    [
        ("[parallelism\n", "torchtitan", "is no toml"),
        ("{", "deepspeed", "is no json"),
        ("[1]", "deepspeed", "holds list"),
        ("'", "megatron", "is no arguments"),
        ("a: *b", "nanotron", "aliases are not taken"),
        ("- 1", "nanotron", "holds list"),
        ("\udcff", "torchtitan", "is no text"),
        ("[parallelism]\ntensor_parallel_degree = 'two'\n", "torchtitan", "tensor_parallel_degree = 'two'"),
        ("{" * 100_000, "deepspeed", "is no json"),
        (" " * 1_000_001, "torchtitan", "longer than"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_clear_line(tmp_path, monkeypatch, capsys, content, project, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text(content, encoding="utf-8", errors="surrogateescape")
    assert main(["convert", "file", "--from", project, "--gpus", "8"]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1 and not captured.out


@pytest.mark.parametrize("direction", ["--to=nanotron", "--from=nanotron", "--from=torchtitan"])
@pytest.mark.parametrize("name", ["", "missing.yaml"])
def test_a_file_that_is_not_there_is_named_as_what_it_is(direction, name, capsys):
    assert main(["convert", name, direction]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: cannot read {name!r}: ") and error.count("\n") == 1


def test_a_plan_file_needs_a_direction_whichever_fields_it_has(tmp_path, capsys):
    given = {name: getattr(PLAN, name) for name in FIELDS} | {"nodes": 2, "order": "tp-cp-ep-dp-pp"}
    (tmp_path / "plan.yaml").write_text(
        "model: gpt2\n" + "\n".join(f"{k}: {v}" for k, v in given.items())
    )
    assert "is a plan file: give --to" in refused(capsys, ["convert", str(tmp_path / "plan.yaml")])


@pytest.mark.parametrize("direction", [(), ("--to", "nanotron")])
@pytest.mark.parametrize("project", FORMATS)
def test_the_project_of_a_file_is_found_from_its_options(tmp_path, capsys, project, direction):
    settings = exported(project, PLAN).settings
    (tmp_path / "file").write_text(config_text(settings, FORMATS[project].syntax))
    convert = ["convert", str(tmp_path / "file"), "--gpus", "16", "--json", *direction]
    assert main([*convert, "--from", project]) == 0
    told = capsys.readouterr()
    assert main(convert) == 0
    found = capsys.readouterr()
    assert found.out == told.out
    assert (
        found.err == f"{tmp_path / 'file'} has options of {project}: --from {project}\n{told.err}"
    )


@pytest.mark.parametrize(("name", "text", "says"), [
    ("c.json", '{"train_batch_size": 8, "parallelism": {"dp": 2}}',
     "has options of deepspeed and of nanotron: give --from"),
    ("c.toml", "[parallelism\n", "is no toml"), ("c.py", "", "it is Python"),
    ("c.yaml", "a: 1\n", "no options of one project only"), ("c", "", "no options"),
])  # fmt: skip
def test_what_is_of_several_projects_or_of_none_is_asked_for(tmp_path, capsys, name, text, says):
    (tmp_path / name).write_text(text)
    assert says in refused(capsys, ["convert", str(tmp_path / name)])


def test_toml_is_torchtitans_whatever_other_projects_call_alike(tmp_path, capsys):
    """warmup_steps is an option of Megatron's scripts, and enable one of DeepSpeed's, too."""
    config = tmp_path / "run.toml"
    config.write_text(
        "[lr_scheduler]\nwarmup_steps = 9\n[compile]\nenable = true\n[parallelism]\npipeline_parallel_degree = 2\n"
    )
    assert main(["convert", str(config), "--gpus", "8"]) == 0
    assert "has options of torchtitan: --from torchtitan" in capsys.readouterr().err


def test_a_zero_1_plan_does_not_gather_again_in_torchtitan_and_its_model_is_named(tmp_path, capsys):
    (tmp_path / "best.yaml").write_text("model: gpt2\ndp: 4\npp: 2\nmicrobatches: 4\nzero: 1\n")
    assert main(["convert", str(tmp_path / "best.yaml"), "--to", "torchtitan"]) == 0
    told = capsys.readouterr()
    assert 'fsdp_reshard_after_forward = "never"' in told.out
    assert "not said: zero = 1" in told.err and "not of a plan: model = 'gpt2'" in told.err


WITH_VARIABLES = """#!/bin/bash
GPUS_PER_NODE=8
NNODES=${NNODES:-2}
TP=4
SIZE=7B
if [ "$SIZE" = "7B" ]; then HIDDEN=4096; LAYERS=32; else HIDDEN=5120; LAYERS=40; fi
case $SIZE in
  7B) HEADS=32 ;;
  *) HEADS=40 ;;
esac
[ $TP -gt 1 ] && SP="--sequence-parallel"
UNUSED="--fp16"
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES)
ARGS="--tensor-model-parallel-size $TP --hidden-size $HIDDEN --num-layers ${LAYERS} \\
  --num-attention-heads $HEADS --vocab-size 32000 --swiglu --normalization RMSNorm"
ARGS="$ARGS $SP --seq-length 4096 --micro-batch-size $MB --position-embedding-type rope"
ARGS+=" --bf16 --disable-bias-linear"
OTHER=(
    --lr 1e-4   # a rate
    --global-batch-size $((GPUS_PER_NODE * NNODES * 4))
)
echo "--nothing"
CMD="torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py $ARGS ${OTHER[@]}"
eval $CMD 2>&1 | tee log.txt
"""


def converted(capsys, *arguments):
    status = main(["convert", *arguments, "--json"])
    captured = capsys.readouterr()
    return status, captured.err, json.loads(captured.out or "null")


def test_variables_of_a_script_are_expanded_and_its_sizes_make_the_model(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text(WITH_VARIABLES)
    script = ["train.sh", "--from", "megatron"]
    status, error, _ = converted(capsys, *script)
    assert status == 2 and "--micro-batch-size = '$MB'" in error and "--set MB=VALUE" in error
    status, _, found = converted(capsys, *script, "--set", "MB=2")
    plan, model = found["plan"], found["model"]
    assert status == 0 and (plan["dp"], plan["tp"], plan["microbatches"]) == (4, 4, 8)
    assert plan["sequence_parallel"] and plan["precision"] == "bf16" and not found["unknown"]
    assert (model["layers"], model["hidden"], model["heads"]) == (32, 4096, 32)
    assert (model["vocab"], model["ffn"], model["tied_head"]) == (32_256, 10_880, True)
    assert "bias" in model and model["name"] == "train"
    _, _, found = converted(
        capsys, *script, "--set", "MB=2", "--set", "NNODES=4", "--set", "SIZE=13B"
    )
    assert (found["plan"]["dp"], found["model"]["hidden"], found["model"]["heads"]) == (8, 5120, 40)
    assert main(["convert", *script, "--set", "MB=2", "--out", "plan.yaml"]) == 0
    capsys.readouterr()
    assert main(["simulate", "--plan", "plan.yaml", "--cluster", "dgx-h100", "--json"]) == 0
    assert "2 x 8 processes" in refused(
        capsys, ["convert", *script, "--set", "MB=2", "--gpus", "8"]
    )


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ('TP=$(cat tp)\npython p.py --tensor-model-parallel-size $TP --micro-batch-size 1', "--set TP=VALUE"),
        ("if [ -f x ]; then TP=2; fi\npython p.py --tensor-model-parallel-size $TP --micro-batch-size 1",
         "--set TP=VALUE"),
        ("for TP in 1 2; do\npython p.py --tensor-model-parallel-size $TP --micro-batch-size 1\ndone",
         "--set TP=VALUE"),
        ("python p.py --tensor-model-parallel-size $1 --micro-batch-size 1", "--set 1=VALUE"),
        ("TP=${TP:-$X}\npython p.py --tensor-model-parallel-size $TP --micro-batch-size 1", "--set TP=VALUE"),
    ],
)  # fmt: skip
def test_what_a_script_does_not_say_is_asked_for(tmp_path, capsys, script, says):
    (tmp_path / "train.sh").write_text(script)
    command = ["convert", str(tmp_path / "train.sh"), "--from", "megatron", "--gpus", "8"]
    assert says in refused(capsys, command)
    assert main([*command, "--set", says.split()[1].replace("VALUE", "2")]) == 0


def test_options_that_nothing_knows_count_where_it_is_asked(tmp_path, capsys):
    (tmp_path / "a").write_text("python p.py --micro-batch-size 1 --sequence-paralel --bf16 $MORE")
    command = [str(tmp_path / "a"), "--from", "megatron", "--gpus", "8"]
    status, error, found = converted(capsys, *command)
    assert status == 0 and len(found["unknown"]) == 2
    assert "not understood: --sequence-paralel, did you mean '--sequence-parallel'?" in error
    assert "not understood: $MORE" in error and "--set MORE=" in error
    assert converted(capsys, *command, "--strict")[0] == 1
    assert converted(capsys, *command, "--set", "a")[0] == 2


def test_a_table_of_flags_in_yaml_is_read(tmp_path, capsys):
    (tmp_path / "model_config.yaml").write_text(
        "ENV_VARS: {A: 1}\nMODEL_ARGS:\n  --micro-batch-size: 4\n  --bf16: true\n  --fp16: false\n"
        "  --recompute-modules: [core_attn]\n  --recompute-granularity: selective\n"
    )
    command = [str(tmp_path / "model_config.yaml"), "--from", "megatron", "--gpus", "8"]
    _, _, found = converted(capsys, *command)
    assert (found["plan"]["microbatch_size"], found["plan"]["recompute"]) == (4, "selective")
    assert found["plan"]["precision"] == "bf16"


def test_options_of_a_file_are_set_by_their_full_names(tmp_path, capsys):
    auto = {"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": 2,
            "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "overlap_comm": "auto"}}  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(auto))
    command = [str(tmp_path / "ds.json"), "--from", "deepspeed", "--gpus", "8"]
    status, error, _ = converted(capsys, *command)
    assert status == 2 and "bf16.enabled = 'auto'" in error and "--set bf16.enabled=VALUE" in error
    _, _, found = converted(capsys, *command, "--set", "bf16.enabled=true")
    assert (found["plan"]["zero"], found["plan"]["gradient_bytes"]) == (3, 2)


def test_torchtitans_json_is_read_and_its_python_is_not_executed(tmp_path, capsys):
    config = {
        "parallelism": {"data_parallel_shard_degree": -1, "num_pp_microbatches": 4, "pipeline_parallel_degree": 2},
        "training": {"num_tokens_per_microbatch_per_dp_rank": 8192, "max_context_length": 4096,
                     "num_tokens_per_train_step": -1, "dtype": "float32"},
        "activation_checkpoint": {"preserve_rng_state": True, "force_recompute_mm_shapes_by_fqns": []},
    }  # fmt: skip
    (tmp_path / "c.json").write_text(json.dumps(config))
    command = [str(tmp_path / "c.json"), "--from", "torchtitan", "--gpus", "8"]
    _, _, found = converted(capsys, *command)
    plan = found["plan"]
    assert (plan["dp"], plan["seq"], plan["microbatch_size"], plan["microbatches"]) == (
        4,
        4096,
        2,
        4,
    )
    assert plan["recompute"] == "per-op" and not found["unknown"]
    (less,) = found["unsaid"]
    assert less.startswith(
        "the first and the last stage have 1 and 1 layers less: even stages are taken"
    )
    (tmp_path / "c.py").write_text("raise SystemExit")
    assert "--debug.save_config_file" in refused(
        capsys, ["convert", str(tmp_path / "c.py"), "--from", "torchtitan"]
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--activation-func-clamp-value 7.0", {"clamped": True}),
        ("--softmax-type learnable", {"sinks": True}),
        ("--softmax-type off-by-one", {}),
        ("--position-embedding-type yarn", {"scaled_rotary": True}),
    ],
)
def test_flags_that_change_a_layer_are_of_the_model(tmp_path, capsys, flags, says):
    path = tmp_path / "script.sh"
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 512 --swiglu"
    path.write_text(
        f"python pretrain_gpt.py --micro-batch-size 1 --global-batch-size 4 {sizes} {flags}"
    )
    status, _, told = converted(capsys, str(path), "--from", "megatron", "--gpus", "4")
    assert status == 0
    assert {name: told["model"].get(name) for name in ("clamped", "sinks", "scaled_rotary")} == {
        "clamped": None, "sinks": None, "scaled_rotary": None
    } | says  # fmt: skip


DECIDED_OUTSIDE = """#!/bin/bash
MODEL_SIZE=$1
PR=${2}
if [ $MODEL_SIZE = 7B ]; then
    LAYERS=32
    HIDDEN=4096
elif [ $MODEL_SIZE = 13B ]; then
    LAYERS=40
    HIDDEN=5120
fi
if [ $PR = bf16 ]; then
    pr_options=" --bf16"
elif [ $PR = fp16 ]; then
    pr_options=" --fp16"
fi
if [ none != none ]; then
    load_options=" --load $LOAD"
fi
torchrun --nproc_per_node 8 $HOME/pretrain_gpt.py --micro-batch-size 1 --num-layers $LAYERS \\
    --hidden-size $HIDDEN --num-attention-heads 32 --vocab-size 32000 --use-mcore-models ${pr_options} \\
    ${load_options}
"""


def test_what_a_condition_of_a_script_depends_on_is_asked_for(tmp_path, capsys):
    """Not each variable that it decides; and options that it decides are not lost behind a switch."""
    (tmp_path / "run.sh").write_text(DECIDED_OUTSIDE)
    script = [str(tmp_path / "run.sh"), "--from", "megatron"]
    status, error, _ = converted(capsys, *script)
    assert status == 2 and "--set MODEL_SIZE=VALUE" in error
    _, _, found = converted(capsys, *script, "--set", "MODEL_SIZE=13B")
    assert found["unknown"] == ["$PR: the script does not say what it is: give --set PR=VALUE"]
    _, _, found = converted(capsys, *script, "--set", "MODEL_SIZE=13B", "--set", "PR=fp16")
    assert (found["model"]["layers"], found["model"]["hidden"]) == (40, 5120)
    assert found["plan"]["precision"] == "fp16" and not found["unknown"]


IN_A_SHELL = """#!/bin/bash
ARGS=(--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 4 --bf16)
TRAINING_CMD="python3 $DIR/pretrain_gpt.py ${ARGS[@]}"
if [ -n "$WANDB_API_KEY" ]; then
  TRAINING_CMD="$TRAINING_CMD --wandb-project x"
fi
srun --cpus-per-task $SLURM_CPUS_PER_TASK -lu bash -c "RANK=\\$SLURM_PROCID numactl --membind=0-3 $TRAINING_CMD"
if [ -f exit ]; then
   scancel --jobname $SLURM_JOB_NAME
fi
"""


def test_a_command_that_another_shell_runs_is_read(tmp_path, capsys):
    (tmp_path / "run.sh").write_text(IN_A_SHELL)
    script = [str(tmp_path / "run.sh"), "--from", "megatron", "--gpus", "16"]
    status, error, found = converted(capsys, *script)
    assert status == 0 and found["plan"]["tp"] == 4
    assert "not understood: $WANDB_API_KEY" in error
    _, _, found = converted(capsys, *script, "--set", "WANDB_API_KEY=")
    assert (found["plan"]["dp"], found["plan"]["tp"], found["plan"]["microbatches"]) == (4, 4, 16)
    assert not found["unknown"] and "--membind" in found["left"]


WITH_ARGUMENTS = """#!/bin/bash
STAGE=1
while [[ $# -gt 0 ]]
do
key="$1"
case $key in
    --zero-stage)
    STAGE=$2;
    shift
    ;;
esac
done
for arg in "$@"; do
    if [ $arg = x ]; then echo $arg; done=1; fi
    DTYPE=fp32
done
GPUS=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
LEFT=$(($(ds_ssh nvidia-smi --query-gpu=name | wc -l)-2))
options=" --micro-batch-size 1 --zero-stage $STAGE --fp16"
if [[ ${STAGE} -gt 1 ]]; then
options="${options} \\
    --no-pipeline-parallel"
fi
deepspeed --master_addr $(hostname --ip-address) pretrain_gpt.py --deepspeed ${options}
"""


def test_without_arguments_of_its_own_a_script_says_what_it_says_by_itself(tmp_path, capsys):
    (tmp_path / "run.sh").write_text(WITH_ARGUMENTS)
    script = [str(tmp_path / "run.sh"), "--from", "megatron", "--gpus", "8"]
    status, error, found = converted(capsys, *script)
    assert status == 0, error
    assert (found["plan"]["zero"], found["plan"]["precision"]) == (1, "fp16")
    assert not found["unknown"]
    _, _, found = converted(capsys, *script, "--set", "STAGE=2")
    assert found["plan"]["zero"] == 2 and any("no-pipeline" in note for note in found["unsaid"])


IN_LISTS = """#!/bin/bash
#SBATCH --job-name=a
#SBATCH --nodes=4
#SBATCH --gres=gpu:a100:8
ARGS=(--micro-batch-size 2 --nnodes $SLURM_JOB_NUM_NODES --nproc_per_node $SLURM_GPUS_ON_NODE)
if [ -e $FOLDER/latest.txt ]; then
    ARGS+=(--load $FOLDER)
else
    ARGS+=(--no-load-rng)
fi
ARGS+=(--bf16 --attention-backend unfused)
export MARGIN=16
"""


def test_a_list_keeps_what_it_has_where_a_condition_adds_to_it(tmp_path, capsys):
    """The file sets a list and variables only, and another script runs it on the nodes that Slurm gives."""
    (tmp_path / "params.sh").write_text(IN_LISTS)
    script = [str(tmp_path / "params.sh"), "--from", "megatron"]
    status, _, found = converted(capsys, *script)
    assert (status, found["plan"]["dp"], found["plan"]["microbatch_size"]) == (0, 32, 2)
    assert (found["plan"]["attention"], found["unsaid"]) == ("unfused", [])
    assert found["unknown"] == [
        "$FOLDER: the script does not say what it is: give --set FOLDER=VALUE"
    ]
    _, _, found = converted(capsys, *script, "--set", "SLURM_JOB_NUM_NODES=2")
    assert found["plan"]["dp"] == 16


def test_the_advice_to_say_the_vocabulary_works_as_it_is_written(tmp_path, capsys):
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4"
    (tmp_path / "a").write_text(f"python p.py --micro-batch-size 1 {sizes}")
    script = [str(tmp_path / "a"), "--from", "megatron", "--gpus", "8"]
    _, error, found = converted(capsys, *script)
    (advice,) = [word for word in error.split() if "--vocab-size" in word]
    assert found["model"] is None
    _, _, found = converted(capsys, *script, advice.replace("=N", "=512"))
    assert found["model"]["vocab"] == 512


def test_a_program_and_a_scripts_own_arguments_are_no_options(tmp_path, capsys):
    (tmp_path / "a").write_text(
        '"$PYTHON" -u p.py --micro-batch-size 1 --bf16 "$@" --fp8-format $@ hybrid'
    )
    _, _, found = converted(capsys, str(tmp_path / "a"), "--from", "megatron", "--gpus", "8")
    assert (found["plan"]["precision"], found["unknown"]) == ("fp8", [])


@pytest.mark.parametrize(
    ("more", "kv_heads", "attention"),
    [
        ("", 32, "flash"),
        ("--data-impl mmap", 32, "unfused"),
        ("--checkpoint-activations --use-flash-attn", 32, "flash"),
        ("--data-impl mmap --transformer-impl transformer_engine", 32, "flash"),
        ("--attention-head-type multiquery", 1, "unfused"),
        ("--attention-head-type multihead --use-flash-attn", 32, "flash"),
        ("--deepspeed --num-key-value-heads 8", 8, "unfused"),
    ],
)
def test_layers_of_older_versions_and_forks(tmp_path, capsys, more, kv_heads, attention):
    """Megatron-LM 6ff4626 of August 2023 has --data-impl, and --transformer-impl is local by default; in
    57e1262 of May 2024 it is transformer_engine, and there is no --data-impl."""
    (tmp_path / "a").write_text(
        "python p.py --micro-batch-size 1 --num-layers 2 --hidden-size 4096 --num-attention-heads 32 "
        f"--vocab-size 32000 {more}"
    )
    _, _, found = converted(capsys, str(tmp_path / "a"), "--from", "megatron", "--gpus", "8")
    assert (found["model"]["kv_heads"], found["plan"]["attention"]) == (kv_heads, attention)
    assert not found["unknown"] and not found["unsaid"]


SWIFT = """megatron sft --model Qwen/Qwen2.5-7B --dataset a --max_length 4096 --packing true \\
    --tensor_model_parallel_size 2 --sequence_parallel true --global_batch_size 64 \\
    --use_distributed_optimizer true"""


@pytest.mark.parametrize(
    ("more", "meant"),
    [
        ("", {"recompute": "selective", "precision": "bf16"}),
        ("--recompute_granularity none", {"recompute": "none"}),
        ("--torch_dtype float16 --micro_batch_size 2", {"precision": "fp16", "microbatches": 8}),
        ("--expert_model_parallel_size 4", {"ep": 4, "etp": 1}),
    ],
)
def test_a_script_of_ms_swift_has_its_defaults(tmp_path, capsys, more, meant):
    (tmp_path / "a").write_text(f"{SWIFT} {more}")
    _, _, found = converted(capsys, str(tmp_path / "a"), "--from", "megatron", "--gpus", "8")
    usual = {"dp": 4, "tp": 2, "zero": 1, "attention": "flash", "dropout": False, "seq": 4096}
    usual |= {"sequence_parallel": True, "microbatches": 16} | meant
    assert {field: found["plan"][field] for field in usual} == usual
    assert any("packed sequences" in note for note in found["unsaid"])


def test_what_is_written_passes_through_a_shell_and_comes_back(tmp_path, capsys):
    layers = [2] * 8 + [1, 3]
    plan = f"dp: 2\npp: 5\nmicrobatches: 10\nschedule: interleaved-1f1b\nchunks: 2\nstage_layers: {layers}\n"
    (tmp_path / "plan.yaml").write_text(plan)
    written, back = str(tmp_path / "back.sh"), str(tmp_path / "back.yaml")
    assert main(["convert", str(tmp_path / "plan.yaml"), "--to", "megatron", "--out", written]) == 0
    line = " ".join((tmp_path / "back.sh").read_text().split("\n"))
    heard = run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True)
    assert "Ett|tt|tt|tt|tt|tt|tt|tt|t|tttL" in heard.stdout.split("\n") and not heard.stderr
    assert main(["convert", written, "--gpus", "10", "--out", back]) == 0, capsys.readouterr().err
    made = Plan(**plan_part(read_plan_file(back)))
    assert (made.chunks, made.stage_layers, made.pp) == (2, tuple(layers), 5)
