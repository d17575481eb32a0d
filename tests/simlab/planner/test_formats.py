"""Configurations of other projects: each option means what the project's code says, a plan comes back
as it went, and what cannot be said is named."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab import InputError, Plan
from simlab.cli.config_files import config_text, read_config
from simlab.cli.plan_options import FIELDS, plan_lines, read_plan_file
from simlab.planner.formats import FORMATS, exported, imported, torchtitan
from simlab.planner.formats.known import known_of
from simlab.planner.space import DEFAULTS, without_effect
from simlab.spec.plan_checks import refusal_beside

MEGATRON = {
    "--micro-batch-size": 2,
    "--bf16": True,
    "--attention-dropout": 0,
    "--hidden-dropout": 0,
}
TITAN = {"parallelism": {"data_parallel_shard_degree": 4}, "compile": {"enable": True},
         "activation_checkpoint": {"mode": "none"}}  # fmt: skip
DEEPSPEED = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}}
NANOTRON = {"parallelism": {"dp": 2, "tp": 2, "pp": 2}}
ACCELERATE = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_processes": 16,
              "train_micro_batch_size_per_gpu": 1,
              "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 4,
                                   "offload_optimizer_device": "none"}}  # fmt: skip


def flags(**more):
    return MEGATRON | {"--" + flag.replace("_", "-"): value for flag, value in more.items()}


def nested(content, section, **more):
    return content | {section: content.get(section, {}) | more}


def gpus_of(project, content):
    """The GPUs that are given with a file: 16, but where it says how many there are."""
    if project == "nanotron":
        return 8
    said = content.get("parallelism", {}).get("data_parallel_shard_degree", -1)
    return None if project == "torchtitan" and said > 0 else 16


MEANINGS = [
    ("megatron", flags(use_distributed_optimizer=True), {"zero": 1, "dp": 16}),
    ("megatron", flags(use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads"), {"zero": 2}),
    ("megatron", flags(data_parallel_sharding_strategy="optim_grads"), {"zero": 0}),
    ("megatron", flags(global_batch_size=256, tensor_model_parallel_size=4), {"dp": 4, "microbatches": 32}),
    ("megatron", flags(num_layers=32, num_layers_per_virtual_pipeline_stage=4,
                       pipeline_model_parallel_size=4), {"chunks": 2, "schedule": "interleaved-1f1b"}),
    ("megatron", flags(num_virtual_stages_per_pipeline_rank=3, pipeline_model_parallel_size=4), {"chunks": 3}),
    ("megatron", flags(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1),
     {"recompute": "full"}),
    ("megatron", flags(recompute_activations=True, attention_backend="unfused"), {"recompute": "selective"}),
    ("megatron", flags(attention_dropout=0.1), {"dropout": True}),
    ("megatron", flags(ddp_bucket_size=1000), {"bucket_bytes": 4000}),
    ("megatron", flags(context_parallel_size=2, cp_comm_type="a2a"), {"cp_kind": "all-to-all"}),
    ("megatron", flags(deepspeed=True), {"attention": "unfused", "gradient_bytes": 2, "dp_overlap": False}),
    ("megatron", flags(deepspeed=True, zero_stage=3), {"zero": 3, "gradient_bytes": 2, "dp_overlap": True}),
    ("megatron", flags(deepspeed=True, use_flash_attn_v2=True), {"attention": "flash"}),
    ("megatron", flags(deepspeed=True, use_flash_attn_v2=True, ds_sequence_parallel_size=4), {"dp": 4, "cp": 4, "cp_kind": "all-to-all"}),
    ("megatron", flags(deepspeed=True, moe_expert_parallel_size=8), {"ep": 8, "dp": 16}),
    ("megatron", flags(cpu_optimizer=True), {"offload": "optimizer"}),
    ("megatron", flags(attention_backend="auto"), {"attention": "flash"}),
    ("megatron", {"--micro_batch_size": 2, "--tensor_model_parallel_size": 4, "--global_batch_size": 16, "--bf16": True},
     {"dp": 4, "tp": 4, "microbatches": 2, "precision": "bf16"}),
    ("megatron", flags(use_tp_pp_dp_mapping=True), {"order": "tp-cp-pp-dp"}),
    ("megatron", flags(optimizer="sgd"), {"optimizer": "sgd", "zero": 0}),
    ("megatron", flags(optimizer="muon"), {"optimizer": "muon", "zero": 0}),
    ("megatron", flags(optimizer="dist_muon"), {"optimizer": "muon", "zero": 1}),
    ("megatron", flags(fp8_format="hybrid"), {"precision": "fp8", "fp8_param_gather": False}),
    ("megatron", flags(fp8_format="hybrid", fp8_recipe="tensorwise"), {"precision": "fp8-current"}),
    ("megatron", flags(fp8_format="e4m3", fp8_recipe="mxfp8"), {"precision": "fp8-mx"}),
    ("megatron", flags(fp8_format="e4m3", fp8_recipe="mxfp8", use_transformer_engine_op_fuser=True), {"fused_experts": True}),
    ("megatron", flags(fp8_format="e4m3", fp8_recipe="mxfp8", fp8_output_proj=True), {"fp8_head": True}),
    ("megatron", flags(fp4_format="e2m1", fp4_recipe="nvfp4"), {"precision": "fp4"}),
    ("megatron", flags(cuda_graph_impl="full_iteration"), {"cuda_graphs": "whole"}),
    ("megatron", flags(cuda_graph_impl="local", cuda_graph_scope="full_iteration"), {"cuda_graphs": "whole"}),
    ("megatron", flags(cuda_graph_impl="transformer_engine", cuda_graph_modules=["attn", "moe_router", "moe_preprocess"]),
     {"cuda_graphs": "parts"}),
    ("megatron", flags(cuda_graph_impl="transformer_engine", cuda_graph_modules=["moe_router", "moe_preprocess"]),
     {"cuda_graphs": "router"}),
    ("megatron", flags(cuda_graph_impl="none", cuda_graph_modules=["attn"]), {"cuda_graphs": "none"}),
    ("megatron", flags(use_transformer_engine_op_fuser=True), {"fused_experts": False}),
    ("megatron", flags(fp8_format="hybrid", fp8_param_gather=True, use_distributed_optimizer=True), {"fp8_param_gather": True}),
    ("megatron", flags(expert_model_parallel_size=8, tensor_model_parallel_size=2, moe_token_dispatcher_type="alltoall"),
     {"ep": 8, "dp": 8}),
    ("torchtitan", nested(TITAN, "parallelism", expert_parallel_degree=4), {"ep": 4, "dp": 4}),
    ("torchtitan", nested(TITAN, "parallelism", expert_parallel_degree=2, tensor_parallel_degree=2,
                          expert_tensor_parallel_degree=2), {"ep": 2, "tp": 2, "etp": 2}),
    ("torchtitan", nested(TITAN, "parallelism", expert_parallel_degree=8, tensor_parallel_degree=2,
                          expert_parallel_comm_backend="deepep"), {"ep": 8, "etp": 1, "dispatcher": "once-a-node"}),
    ("megatron", flags(expert_model_parallel_size=16, tensor_model_parallel_size=2, expert_tensor_parallel_size=1,
                       sequence_parallel=True, moe_token_dispatcher_type="alltoall"), {"ep": 16, "etp": 1, "expert_holders": 1}),
    ("megatron", flags(expert_model_parallel_size=8, global_batch_size=64,
                       overlap_moe_expert_parallel_comm=True, moe_token_dispatcher_type="flex",
                       moe_flex_dispatcher_backend="hybridep"), {"ep_overlap": True, "dispatcher": "once-a-node"}),
    ("megatron", flags(expert_model_parallel_size=8, moe_enable_deepep=True), {"dispatcher": "once-a-node"}),
    ("megatron", flags(recompute_granularity="selective", recompute_modules="layernorm moe_act mla_up_proj"), {"recompute": "outputs"}),
    ("megatron", flags(recompute_granularity="selective", recompute_modules=["moe_act", "layernorm"]), {"recompute": "outputs"}),
    ("megatron", flags(exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16", use_distributed_optimizer=True), {"moment_bytes": 2}),
    ("torchtitan", TITAN, {"zero": 3, "dp": 4, "hybrid": 0, "microbatch_size": 8, "library": "torch"}),
    ("torchtitan", nested(TITAN, "parallelism", data_parallel_replicate_degree=4), {"dp": 16, "hybrid": 4}),
    ("torchtitan", nested(TITAN, "parallelism", data_parallel_shard_degree=1), {"zero": 0, "dp": 1}),
    ("torchtitan", nested(TITAN, "parallelism", data_parallel_shard_degree=-1,
                          tensor_parallel_degree=4), {"dp": 4, "sequence_parallel": True}),
    ("torchtitan", nested(TITAN, "parallelism", pipeline_parallel_degree=4,
                          pipeline_parallel_schedule="Interleaved1F1B", pipeline_parallel_first_stage_less_layers=0,
                          pipeline_parallel_last_stage_less_layers=0),
     {"schedule": "interleaved-1f1b", "microbatch_size": 1, "microbatches": 8, "reshard": False}),
    ("torchtitan", nested(TITAN, "training", global_batch_size=128), {"microbatches": 4}),
    ("torchtitan", {"activation_checkpoint": {"mode": "none"},
                    "training": {"batch_size": 8, "tensor_parallel_degree": 2, "data_parallel_shard_degree": 2},
                    "experimental": {"pipeline_parallel_degree": 4, "pipeline_parallel_schedule": "1F1B",
                                     "pipeline_parallel_microbatches": 4}},
     {"tp": 2, "pp": 4, "dp": 2, "microbatch_size": 2, "microbatches": 4, "schedule": "1f1b"}),
    ("torchtitan", {"activation_checkpoint": {"mode": "none"},
                    "training": {"data_parallel_degree": 16, "compile": True},
                    "float8": {"enable_float8_linear": True}},
     {"dp": 16, "precision": "fp8", "fused": True, "compiled_loss": False}),
    ("torchtitan", nested(TITAN, "activation_checkpoint", mode="selective", selective_ac_option="op"),
     {"recompute": "per-op"}),
    ("torchtitan", nested(TITAN, "compile", enable=True), {"fused": True, "compiled_loss": True}),
    ("torchtitan", nested(TITAN, "compile", enable=True, components=["model"]), {"fused": True, "compiled_loss": False}),
    ("torchtitan", nested(TITAN, "compile", enable=True, components=["loss"]), {"fused": False, "compiled_loss": True}),
    ("torchtitan", nested(TITAN, "compile", enable=False, components=["loss"]), {"fused": False, "compiled_loss": False}),
    ("torchtitan", nested(TITAN, "training", compile=True), {"fused": True, "compiled_loss": True}),
    ("torchtitan", nested(TITAN, "model", converters=["float8"]), {"precision": "fp8"}),
    ("torchtitan", nested(TITAN, "model", converters=["float8"]) | {"float8": {"recipe_name": "rowwise"}},
     {"precision": "fp8-rowwise"}),
    ("deepspeed", DEEPSPEED, {"dp": 16, "microbatches": 1, "zero": 0, "dp_overlap": False}),
    ("deepspeed", DEEPSPEED | {"train_batch_size": "auto", "gradient_accumulation_steps": 4}, {"dp": 16, "microbatches": 4}),
    ("deepspeed", DEEPSPEED | {"train_batch_size": 64, "gradient_accumulation_steps": "auto"}, {"dp": 16, "microbatches": 2}),
    ("deepspeed", nested(DEEPSPEED, "zero_optimization", stage=3), {"zero": 3, "dp_overlap": True}),
    ("deepspeed", nested(DEEPSPEED, "zero_optimization", stage=3, mics_shard_size=8), {"hybrid": 8}),
    ("deepspeed", nested(DEEPSPEED, "zero_optimization", stage=1, reduce_bucket_size=5e8),
     {"bucket_bytes": 1_000_000_000, "gradient_bytes": 2}),
    ("deepspeed", nested(DEEPSPEED, "zero_optimization", stage=2, offload_optimizer={"device": "nvme"}),
     {"offload": "optimizer", "offload_to": "nvme"}),
    ("deepspeed", DEEPSPEED | {"train_batch_size": 64, "gradient_accumulation_steps": 2}, {"dp": 16}),
    ("deepspeed", ACCELERATE, {"dp": 16, "zero": 3, "precision": "bf16", "microbatches": 4, "offload": "none"}),
    ("deepspeed", nested(ACCELERATE, "deepspeed_config", zero_stage=2, offload_optimizer_device="cpu") | {"mixed_precision": False},
     {"zero": 2, "precision": "fp32", "offload": "optimizer"}),
    ("nanotron", NANOTRON, {"schedule": "gpipe", "sequence_parallel": False, "tp_overlap": "none"}),
    ("nanotron", nested(NANOTRON, "parallelism", pp_engine="1f1b", tp_mode="REDUCE_SCATTER",
                        recompute_layer=True), {"recompute": "full", "sequence_parallel": True}),
    ("nanotron", nested(NANOTRON, "model", ddp_bucket_cap_mb=25), {"bucket_bytes": 25 * 2**20}),
    ("nanotron", nested(NANOTRON, "optimizer", accumulate_grad_in_fp32=False), {"gradient_bytes": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("project", "content", "meant"), MEANINGS)
def test_an_option_means_what_the_project_says(project, content, meant):
    made = imported(project, content, gpus=gpus_of(project, content))
    assert {field: getattr(made.plan, field) for field in meant} == meant
    assert not made.left and not made.unsaid and not made.unknown


UNSAID = [
    ("megatron", flags(recompute_granularity="full", recompute_method="block"), "--recompute-method block --recompute-num-layers 1"),
    ("megatron", flags(cp_comm_type="a2a+p2p"), "--cp-comm-type = 'a2a+p2p'"),
    ("megatron", flags(recompute_granularity="selective", recompute_modules="mla_up_proj mlp"), "--recompute-modules = mla_up_proj mlp"),
    ("megatron", flags(recompute_granularity="selective", recompute_modules=["moe_act"]),
     "--recompute-modules = moe_act: a plan's 'outputs' are those of layernorm moe_act mla_up_proj"),
    ("megatron", flags(expert_model_parallel_size=8), "no --moe-token-dispatcher-type"),
    ("megatron", flags(tensor_model_parallel_size=2, expert_tensor_parallel_size=1), "--expert-tensor-parallel-size = 1 without"),
    ("megatron", flags(moe_token_dispatcher_type="allgather"), "--moe-token-dispatcher-type = 'allgather'"),
    ("megatron", flags(mtp_num_layers=1), "--mtp-num-layers = 1: a plan does not say it; give the model mtp_layers = 1"),
    ("megatron", flags(exp_avg_dtype="bf16", use_distributed_optimizer=True), "--exp-avg-dtype and --exp-avg-sq-dtype of different sizes"),
    ("torchtitan", nested(TITAN, "parallelism", pipeline_parallel_degree=2,
                          pipeline_parallel_schedule="InterleavedZeroBubble"),
     "parallelism.pipeline_parallel_schedule = 'InterleavedZeroBubble'"),
    ("torchtitan", nested(TITAN, "activation_checkpoint", mode="selective"), "whole layers"),
    ("torchtitan", nested(TITAN, "model", converters=["mx"]), "model.converters = ['mx']"),
    ("deepspeed", nested(DEEPSPEED, "zero_optimization", stage=2, reduce_bucket_size=5e8), "ZeRO-2 goes by units"),
    ("megatron", flags(deepspeed=True, num_experts=[64, 64]), "on every --expert-interval-th layer: name the model"),
    ("megatron", flags(deepspeed=True, ds_sequence_parallel_size=4), "a plan has fused attention then"),
    ("megatron", flags(checkpoint_in_cpu=True), "what recomputation keeps is on the host"),
    ("megatron", flags(partition_activations=True), "cut over tensor-parallel ranks"),
    ("deepspeed", nested(DEEPSPEED, "zero_optimization", stage=3, offload_param={"device": "cpu"}),
     "the optimizer's states stay on the GPU"),
]  # fmt: skip


@pytest.mark.parametrize(("project", "content", "named"), UNSAID)
def test_what_a_plan_cannot_say_is_named(project, content, named):
    made = imported(project, content, gpus=gpus_of(project, content))
    assert any(named in note for note in made.unsaid)


UNKNOWN = [
    ("megatron", flags(tensor_parallel_size=8), "--tensor-parallel-size, did you mean '--tensor-model-parallel-size'?"),
    ("megatron", flags(rcompute_granularity="full"), "did you mean '--recompute-granularity'?"),
    ("torchtitan", nested(TITAN, "parallelism", expert_parallel_capacity=2), "did you mean 'parallelism.expert_"),
    ("torchtitan", nested(TITAN, "training", sequence_len=2), "training.sequence_len, did you mean 'training.seq_len'?"),
    ("deepspeed", nested(DEEPSPEED, "zero_optimization", stages=8), "did you mean 'zero_optimization.stage'?"),
    ("deepspeed", DEEPSPEED | {"made_up": {"by": 1}}, "made_up.by"),
    ("nanotron", nested(NANOTRON, "parallelism", recompute_layers=True), "did you mean 'parallelism.recompute_layer'?"),
]  # fmt: skip


@pytest.mark.parametrize(("project", "content", "named"), UNKNOWN)
def test_an_option_that_nothing_knows_is_not_understood_and_its_nearest_is_named(
    project, content, named
):
    made = imported(project, content, gpus=gpus_of(project, content))
    (unknown,) = made.unknown
    assert named in unknown and not made.left


@pytest.mark.parametrize("project", FORMATS)
def test_what_is_known_of_an_option_is_said_once(project):
    """No name stands twice, and each says something."""
    its = known_of(project)
    assert len(its.none) == len(set(its.none)) and not set(its.none) & set(its.unsaid)
    assert all(its.unsaid[name][0] or its.unsaid[name][1] for name in its.unsaid)


WRONG = [
    ("torchtitan", nested(TITAN, "compile", components="model"), 16, "compile.components = 'model': give a list of model, loss"),
    ("megatron", {"--bf16": True}, 16, "--micro-batch-size"),
    ("megatron", flags(tensor_model_parallel_size="$TP"), 16, r"'\$TP'"),
    ("megatron", flags(), None, "--gpus"),
    ("megatron", flags(tensor_model_parallel_size=2, expert_model_parallel_size=16), 16, "ep = 16 does not divide"),
    ("megatron", flags(expert_model_parallel_size=8, tensor_model_parallel_size=2, expert_tensor_parallel_size=1), 16, "etp = 1 with"),
    ("megatron", flags(recompute_granularity="selective", recompute_modules=True), 16, "--recompute-modules = True"),
    ("megatron", flags(tensor_model_parallel_size=3), 16, "16 GPUs cannot be split into replicas of 3"),
    ("megatron", flags(global_batch_size=33), 16, "--global-batch-size = 33"),
    ("megatron", flags(num_layers=31, num_layers_per_virtual_pipeline_stage=4), 16, "--num-layers"),
    ("torchtitan", nested(TITAN, "parallelism", data_parallel_shard_degree=0), 16, "= 0"),
    ("torchtitan", nested(TITAN, "compile", enable=1), 16, "compile.enable = 1"),
    ("torchtitan", nested(TITAN, "parallelism", pipeline_parallel_degree=2,
                          pipeline_parallel_microbatch_size=3), 16, "local_batch_size = 8"),
    ("deepspeed", {"train_batch_size": "auto"}, 16, "'auto'"),
    ("deepspeed", {}, 16, "train_batch_size"),
    ("deepspeed", DEEPSPEED | {"gradient_accumulation_steps": 5}, 16, "16 GPUs cannot"),
    ("deepspeed", {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1}, 64, "too small for 64 replicas with 1 sequences"),
    ("deepspeed", DEEPSPEED | {"train_batch_size": 33}, 16, "train_batch_size = 33"),
    ("deepspeed", nested(DEEPSPEED, "zero_optimization", stage=4), 16, "zero = 4"),
    ("torchtitan", {"base_model": "llama", "micro_batch_size": 2, "fsdp_config": {"version": 2}}, 16,
     "none of the file's options is one of torchtitan's, such as 'base_model'"),
    ("deepspeed", {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}, "num_processes": 8}, 16,
     "distributed_type = 'FSDP': this file starts no DeepSpeed"),
    ("deepspeed", ACCELERATE, 8, "num_processes = 16"),
    ("deepspeed", nested(ACCELERATE, "deepspeed_config", deepspeed_config_file="a.json"), 16, "a.json' has the options"),
    ("deepspeed", {"bf16": {"enabled": True}}, 16, "neither train_batch_size nor"),
    ("nanotron", {"parallelism": {"dp": 2, "tp": 2}}, None, "parallelism.pp"),
    ("nanotron", NANOTRON, 16, "8 GPUs, not for 16"),
    ("nanotron", {"parallelism": {1: 2}}, None, "1 is no option"),
    ("megatro", {}, 16, "did you mean 'megatron'"),
]  # fmt: skip


@pytest.mark.parametrize(("project", "content", "gpus", "says"), WRONG)
def test_a_bad_value_is_one_clear_error(project, content, gpus, says):
    with pytest.raises(InputError, match=says) as error:
        imported(project, content, gpus=gpus)
    assert "\n" not in str(error.value)


SAYABLE = {
    "megatron": {
        "dp", "tp", "pp", "cp", "ep", "etp", "dispatcher", "ep_overlap", "moment_bytes", "zero",
        "fp8_param_gather", "fp8_head", "fused_experts", "cp_kind", "microbatch_size", "microbatches", "seq", "precision",
        "sequence_parallel", "dp_overlap", "tp_overlap", "gradient_bytes", "dropout", "compiled_loss",
        "cuda_graphs",
    },
    "torchtitan": {
        "dp", "tp", "pp", "cp", "hybrid", "microbatch_size", "microbatches", "fused", "compiled_loss",
    },
    "deepspeed": {"dp", "tp", "zero", "hybrid", "microbatch_size", "microbatches", "gradient_bytes", "dp_overlap"},
    "nanotron": {"dp", "tp", "pp", "cp", "microbatch_size", "microbatches", "gradient_bytes"},
}  # fmt: skip
"""{format: what it can say of every plan that is drawn below}"""


@st.composite
def plans(draw):
    """Plans of all kinds; fields that would have no effect are left out."""
    choices = {
        "dp": (1, 2, 4), "tp": (1, 2, 4), "pp": (1, 2, 4), "cp": (1, 2), "zero": (0, 1, 2, 3),
        "microbatch_size": (1, 2, 3), "microbatches": (4, 8), "seq": (1024, 8192),
        "schedule": ("1f1b", "interleaved-1f1b", "gpipe", "zb-h1"), "recompute": ("none", "per-op", "full", "outputs"),
        "precision": ("bf16", "fp16", "fp32", "fp8", "fp8-current", "fp8-mx", "fp8-rowwise", "fp4"), "sequence_parallel": (False, True),
        "cp_kind": ("ring", "all-to-all", "all-gather"), "tp_overlap": ("none", "weight-grad", "pipelined"),
        "dp_overlap": (False, True), "reshard": (False, True), "fused": (False, True),
        "library": ("megatron", "torch"), "offload": ("none", "optimizer", "parameters"),
        "bucket_bytes": (None, 25 * 2**20, 4000), "order": ("tp-cp-dp-pp", "tp-cp-pp-dp"),
        "stage_layers": ("auto", "ends-count-as-layers", "uneven"),
    }  # fmt: skip
    values = {field: draw(st.sampled_from(options)) for field, options in choices.items()}
    shards = values["dp"] * values["cp"]
    if values["zero"] and draw(st.booleans()) and values["cp"] < shards:
        values["hybrid"] = values["cp"]
    if "hybrid" not in values and values["offload"] == "none":
        values["ep"] = draw(st.sampled_from([n for n in (1, 2, 4) if shards % n == 0]))
        values["dispatcher"] = draw(st.sampled_from(["all-to-all", "once-a-node"]))
        spread = [n for n in (2, 4, 8) if values["tp"] * shards % n == 0 and n % values["tp"] == 0]
        if values["sequence_parallel"] and values["tp"] > 1 and spread and draw(st.booleans()):
            values |= {"ep": draw(st.sampled_from(spread)), "etp": 1}
        if values["ep"] > 1 and not refusal_beside(SimpleNamespace(**values)):
            values["ep_overlap"] = draw(st.booleans())
    if values["precision"] != "fp32":
        values["gradient_bytes"] = draw(st.sampled_from((2, 4)))
    if values["precision"] == "fp8-rowwise":
        values["library"] = "torch"
    if values["recompute"] == "outputs":
        values["library"] = "megatron"
        values["precision"] = values["precision"].replace("-rowwise", "")
    if values["precision"] in ("fp8-current", "fp8-mx", "fp4"):
        values["library"] = "megatron"
        for field in ("fused_experts", "fp8_head"):
            values[field] = values["precision"] == "fp8-mx" and draw(st.booleans())
    if values["library"] == "megatron" and values["offload"] == "none" and values["zero"]:
        values["moment_bytes"] = draw(st.sampled_from((2, 4)))
        values["fp8_param_gather"] = values["precision"] in ("fp8", "fp8-mx") and draw(
            st.booleans()
        )
    if values["library"] == "megatron":
        values["cuda_graphs"] = draw(st.sampled_from(("none", "router", "parts", "whole")))
    values["compiled_loss"] = draw(st.booleans())
    values = {field: value for field, value in values.items() if value != DEFAULTS[field]}
    idle = without_effect(values)
    return Plan(**{field: value for field, value in values.items() if field not in idle})


@pytest.mark.parametrize("project", FORMATS)
@given(plan=plans())
def test_a_plan_comes_back_but_for_what_is_named(project, plan):
    content, unsaid = exported(project, plan)
    made = imported(project, content, gpus=plan.gpus)
    differ = {field for field in DEFAULTS if getattr(made.plan, field) != getattr(plan, field)}
    assert differ == {*unsaid} and not made.left
    if project == "torchtitan" and (plan.zero == 0 or plan.hybrid):
        return  # sharding comes with context parallelism there
    assert not {*unsaid} & SAYABLE[project] - _given_by_others(project, plan)


def _given_by_others(project, plan):
    """Fields that a format can say, but for the values of others in this plan."""
    if project == "deepspeed" and plan.has_narrow_products:
        return {"precision", "gradient_bytes"}
    by_row = plan.precision == "fp8-rowwise" and project != "torchtitan"
    by_tensor = plan.precision in ("fp8-current", "fp8-mx", "fp4") and project != "megatron"
    if by_row or by_tensor or (plan.has_narrow_products and project == "nanotron"):
        return {"precision", *({"sequence_parallel"} if plan.tp == 1 else ())}
    return {"sequence_parallel"} if plan.tp == 1 else set()


@pytest.mark.parametrize("project", FORMATS)
@given(plan=plans())
def test_what_was_imported_is_exported_whole(project, plan):
    once = imported(project, exported(project, plan).settings, gpus=plan.gpus).plan
    gpus = once.gpus if project == "deepspeed" else plan.gpus
    again = exported(project, once)
    assert not {*again.unsaid} - {"seq"}
    assert imported(project, again.settings, gpus=gpus).plan == once


def test_nothing_of_a_plan_is_lost_without_being_named():
    plan = Plan(dp=2, pp=2, microbatches=4, schedule="zb-h1", prefetch=1, attention="flash-2")
    for project in FORMATS:
        assert {"schedule", "attention"} <= {*exported(project, plan).unsaid}, project
    ranks = Plan(
        dp=2, cp=4, ep=2, microbatches=4, zero=3, cp_kind="ring"
    )  # torchtitan's hold all of cp
    for project, lost in {
        "megatron": False,
        "torchtitan": True,
        "deepspeed": True,
        "nanotron": True,
    }.items():
        assert ("ep" in exported(project, ranks).unsaid) == lost, project
    assert exported("megatron", replace(plan, schedule="1f1b", attention="flash")).unsaid == {}


@pytest.mark.parametrize("schedule", ["eager-1f1b", "dualpipe", "dualpipe-v"])
def test_pairs_of_a_schedule_that_a_format_cannot_say_are_named_with_it(schedule):
    plan = Plan(dp=2, ep=2, pp=2, microbatches=8, schedule=schedule, ep_overlap=True)
    its = exported("megatron", plan)
    assert {"schedule", "ep_overlap"} <= {*its.unsaid}
    assert imported("megatron", its.settings, gpus=4).plan.schedule == "1f1b"


def test_blocks_of_recomputed_layers_are_named_with_their_number():
    block = flags(recompute_granularity="full", recompute_method="block", recompute_num_layers=4)
    made = imported("megatron", block, gpus=16)
    assert made.plan.recompute == "full" and not made.left
    assert [note for note in made.unsaid if "block --recompute-num-layers 4" in note]


@pytest.mark.parametrize("options", [
    {"training": {"pipeline_parallel_degree": 2}}, {"experimental": {"expert_parallel_degree": 2}},
])  # fmt: skip
def test_a_degree_that_nobody_reads_is_refused(options):
    with pytest.raises(InputError, match="parallel_degree is no option that is known"):
        imported("torchtitan", options, gpus=16)


def test_two_names_of_one_option_must_agree():
    both = {"training": {"batch_size": 4, "local_batch_size": 8}}
    with pytest.raises(InputError, match=r"batch_size and training\.local_batch_size differ"):
        imported("torchtitan", both, gpus=16)


@given(plan=plans())
def test_what_is_written_as_a_file_is_read_as_the_same_plan(plan, tmp_path_factory):
    """The text of the file, and not only its settings."""
    path = tmp_path_factory.mktemp("files") / "plan"
    for project, form in FORMATS.items():
        content = exported(project, plan).settings
        path.write_text(config_text(content, form.syntax), encoding="utf-8")
        theirs, ours = (
            imported(project, its, gpus=plan.gpus).plan
            for its in (read_config(str(path), form.syntax), content)
        )
        assert theirs == ours, project
    path.write_text("\n".join(plan_lines(plan, ())) + "\n", encoding="utf-8")
    assert Plan(**read_plan_file(path, FIELDS)) == plan


SPECIAL = {
    "megatron": [
        Plan(pp=4, microbatches=8, stage_layers=(2, 4, 4, 2)),
        Plan(pp=4, microbatches=8, stage_layers=(0, 4, 4, 0)),
        Plan(pp=2, microbatches=8, schedule="interleaved-1f1b", chunks=2, stage_layers=(2, 4, 4, 2)),
        Plan(dp=8, zero=1, hybrid=4), Plan(dp=8, zero=3, library="torch", reshard=False),
        Plan(dp=4, zero=3, library="torch", optimizer="sgd"), Plan(dp=4, optimizer="sgd"),
    ],
    "torchtitan": [
        Plan(dp=4, tp=2, zero=3, library="torch", seq=4096, recompute="per-op", tp_overlap="none"),
        Plan(dp=8, zero=3, library="torch", seq=4096, hybrid=4),
    ],
    "deepspeed": [Plan(dp=8, zero=2, gradient_bytes=2), Plan(dp=8, zero=2, precision="fp16"),
                  Plan(dp=4, optimizer="sgd", gradient_bytes=2)],
    "nanotron": [Plan(dp=8, zero=1, library="nanotron")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("project", "plan"), [(name, plan) for name, its in SPECIAL.items() for plan in its]
)
def test_what_only_one_project_has_comes_back(project, plan):
    its = exported(project, plan)
    again = imported(project, its.settings, gpus=plan.gpus)
    assert its.unsaid == {} and again.plan == plan and not (again.unknown or again.left)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(dp=4, zero=3, library="torch", optimizer="sgd"),
        Plan(dp=4, zero=1, library="torch", optimizer="sgd"),
    ],
)
def test_an_optimizer_that_a_project_has_not_with_zero_is_named(plan):
    for project in ("deepspeed", "nanotron"):
        assert "optimizer" in exported(project, plan).unsaid


SIZES = {
    "--num_layers": 2, "--hidden_size": 64, "--num_attention_heads": 4, "--vocab_size": 512,
    "--micro_batch_size": 1,
}  # fmt: skip


def test_flags_of_megatron_llm_make_its_model():
    """It has no biases unless one is asked for, and an MLP four times as wide, gated ones, too."""
    plain = imported("megatron", SIZES, gpus=4).model
    assert (plain.bias, plain.biases, plain.ffn, plain.gated_mlp) == (False, ("norm",), 256, False)
    more = {"--use_rms_norm": True, "--glu_activation": "swiglu", "--no_tie_embed_logits": True,
            "--num_attention_heads_kv": 2, "--use_bias": False}  # fmt: skip
    made = imported("megatron", SIZES | more, gpus=4)
    llama = made.model
    assert (llama.biases, llama.ffn, llama.gated_mlp, llama.kv_heads) == ((), 256, True, 2)
    assert not llama.tied_head and not made.unknown


def test_torchtitans_flavor_is_a_model_of_the_catalogue_or_is_named():
    def made(**model):
        return imported("torchtitan", TITAN | {"model": model, "training": {"seq_len": 4096}})

    for flavors in torchtitan.MODELS.items():
        for flavor, ours in flavors[1].items():
            model = made(name=flavors[0], flavor=flavor.upper()).model
            assert model == replace(sl.load_model(ours), seq=4096)
    other = made(name="llama3", flavor="debugmodel")
    assert other.model is None and "model.flavor = 'debugmodel'" in other.unsaid[0]
    assert (made(name="llama3").model, made(name="llama3").unsaid) == (None, [])


def test_layers_of_other_kinds_make_no_model():
    sizes = {name.replace("_", "-"): value for name, value in SIZES.items()}
    assert imported("megatron", sizes, gpus=4).model.layers == 2
    hybrid = imported("megatron", sizes | {"--hybrid-override-pattern": "M-*-"}, gpus=4)
    assert hybrid.model is None and any("layers of another kind" in note for note in hybrid.unsaid)


def test_small_letters_of_megatron_deepspeed_name_a_norm_with_a_bias():
    sizes = {name.replace("_", "-"): value for name, value in SIZES.items()}
    for norm, bias in (("layernorm", True), ("rmsnorm", False), ("LayerNorm", True)):
        made = imported("megatron", sizes | {"--normalization": norm}, gpus=4)
        assert made.model.bias == bias


def test_a_model_that_is_not_read_is_named_by_what_the_file_calls_it():
    config = {"is_starcoder2_config": True, "hidden_size": 64, "num_hidden_layers": 4}
    made = imported("nanotron", NANOTRON | {"model": {"model_config": config}})
    assert made.model is None and "is_starcoder2_config" in made.unsaid[0]


def test_nanotrons_qwen2_has_biases_only_where_they_are_asked_for():
    config = {"is_qwen2_config": True, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
              "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 512,
              "max_position_embeddings": 128}  # fmt: skip

    def made(**more):
        return imported("nanotron", NANOTRON | {"model": {"model_config": config | more}})

    assert made().model.biases == made(attention_bias=False).model.biases == ()
    assert made(attention_bias=True).model.biases == ("qkv",)
    assert any("no_rope_layer = 4" in note for note in made(no_rope_layer=4).unsaid)
    experts = made(moe_config={"num_experts": 8})
    assert experts.model is None and any("moe_config" in note for note in experts.unsaid)


def test_options_of_a_converter_that_is_not_used_are_none_of_a_plan():
    sections = {"quantize": {"grouped_mm": {"float8": {"fqns": ["experts"]}}},
                "float8": {"enable_fsdp_float8_all_gather": True, "recipe_name": "rowwise"}}  # fmt: skip
    idle = imported("torchtitan", TITAN | sections, gpus=4)
    assert idle.plan.precision == "bf16" and not idle.unsaid
    assert {"quantize.grouped_mm.float8.fqns", "float8.recipe_name"} <= {*idle.left}
    used = TITAN | sections | {"model": {"converters": ["quantize.grouped_mm.float8"]}}
    assert any("experts in 8 bits" in note for note in imported("torchtitan", used, gpus=4).unsaid)
    used = TITAN | sections | {"model": {"converters": ["Float8"]}}
    made = imported("torchtitan", used, gpus=4)
    assert made.plan.precision == "fp8-rowwise" and made.unsaid
