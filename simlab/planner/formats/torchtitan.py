"""The configuration of torchtitan (torchtitan/config/job_config.py), as TOML files have it.

What follows from no option: FSDP2 shards parameters, gradients and optimizer states (ZeRO-3), and
with replicas besides it is HSDP. Tensor parallelism always shards sequences. Context parallelism is
zigzag. Gradients are reduced in fp32. With a pipeline, FSDP keeps parameters gathered after the
forward unless 'always' is given. Expert-parallel ranks take all context-parallel ones and a part of
those that shard.
"""

from simlab.errors import InputError, shortened
from simlab.planner.formats.options import Options, Settings, microbatches, replicas
from simlab.spec.plan import Plan

SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
CP_KINDS = {"allgather": "all-gather", "alltoall": "ring"}
"""torch's 'alltoall' passes keys and values round by all-to-alls: each rank sends to the next one."""
COMPONENTS = {"fused": "model", "compiled_loss": "loss"}
"""{field of a plan: what compile.components calls what is compiled}"""
PARALLELISM = "parallelism."
OLDER = {
    "training.batch_size": "training.local_batch_size",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
} | {
    f"{section}.{option}": PARALLELISM + option
    for section, options in {
        "training": (
            "data_parallel_replicate_degree",
            "data_parallel_shard_degree",
            "tensor_parallel_degree",
            "fsdp_reshard_after_forward",
        ),
        "experimental": (
            "context_parallel_degree",
            "context_parallel_rotate_method",
            "pipeline_parallel_degree",
            "pipeline_parallel_schedule",
        ),
    }.items()
    for option in options
}
"""{name of an option until torchtitan 0.1: its name since}."""


def read(options: Options, gpus: int | None) -> Settings:
    """{field of a plan: value}"""

    def degree(option: str, default: int = 1, least: int = 1) -> int:
        return options.whole(PARALLELISM + option, default, least) or 0

    options.rename(OLDER)
    tp = degree("tensor_parallel_degree")
    pp = degree("pipeline_parallel_degree")
    cp = degree("context_parallel_degree")
    replicate = degree("data_parallel_replicate_degree")
    shard = degree("data_parallel_shard_degree", -1, -1)
    if shard == 0:
        raise InputError(
            "data_parallel_shard_degree = 0: give -1 for all that are left, or 1 and up"
        )
    if shard < 0:
        shard = replicas(gpus, replicate * tp * pp * cp)
    rotated = options.choice(PARALLELISM + "context_parallel_rotate_method", CP_KINDS, "all-gather")
    fields: Settings = {
        "dp": replicate * shard,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        **_expert_parallel(options, tp),
        "cp_kind": rotated,
        "zero": 3 if shard * cp > 1 else 0,
        "hybrid": shard * cp if shard * cp > 1 and replicate > 1 else 0,
        "sequence_parallel": tp > 1,
        "library": "torch",
        "seq": options.whole("training.seq_len", 2048),
        "tp_overlap": "pipelined"
        if options.switch(PARALLELISM + "enable_async_tensor_parallel")
        else "none",
        "offload": "parameters" if options.switch("training.enable_cpu_offload") else "none",
        **_compiled(options),
    }
    meanings = {"always": True, "never": False, "default": pp == 1}
    fields["reshard"] = options.choice(
        PARALLELISM + "fsdp_reshard_after_forward", meanings, pp == 1
    )
    fields["schedule"] = options.choice(
        PARALLELISM + "pipeline_parallel_schedule", SCHEDULES, "1f1b"
    )
    if pp == 1:
        fields["schedule"] = "1f1b"
    _read_batch(options, fields)
    _read_rest(options, fields)
    if unknown := [option for option in options.left if option.endswith("parallel_degree")]:
        raise InputError(f"{unknown[0]} is no option that is known: give {PARALLELISM}..._degree")
    return fields


def _expert_parallel(options: Options, tp: int) -> Settings:
    ep = options.whole(PARALLELISM + "expert_parallel_degree", 1) or 1
    cut = options.whole(PARALLELISM + "expert_tensor_parallel_degree", 1)
    kinds = {"standard": "all-to-all", "deepep": "once-a-node", "hybridep": "once-a-node"}
    sent = options.choice(PARALLELISM + "expert_parallel_comm_backend", kinds, "all-to-all")
    return {"ep": ep, "dispatcher": sent} | ({"etp": cut} if ep > 1 and cut != tp else {})


def _compiled(options: Options) -> Settings:
    """What torch.compile makes: without compile.components the layers and, since April 2025, the
    loss."""
    older, newer = options.switch("training.compile"), options.switch("compile.enable")
    components = options.take("compile.components", list(COMPONENTS.values()))
    if not isinstance(components, list):
        raise InputError(
            f"compile.components = {shortened(components)}: give a list of {', '.join(COMPONENTS.values())}"
        )
    return {its: (older or newer) and name in components for its, name in COMPONENTS.items()}


def _read_batch(options: Options, fields: Settings) -> None:
    """Microbatches: of a pipeline, those of the local batch; else the steps of accumulation."""
    local = options.whole("training.local_batch_size", 8) or 1
    batch = options.whole("training.global_batch_size", -1, -1) or 0
    size = options.whole(PARALLELISM + "pipeline_parallel_microbatch_size", 1) or 1
    parts = options.whole("experimental.pipeline_parallel_microbatches")
    if parts is not None:  # an older option, the number of microbatches
        if local % parts:
            raise InputError(f"a batch of {local} cannot be cut into {parts} microbatches")
        size = local // parts
    dp = fields["dp"]
    steps = 1 if batch < 1 else microbatches("training.global_batch_size", batch, dp, local)
    if fields["pp"] == 1:
        fields |= {"microbatch_size": local, "microbatches": steps}
        return
    if local % size:
        raise InputError(
            f"training.local_batch_size = {local} is no multiple of "
            f"pipeline_parallel_microbatch_size = {size}"
        )
    if steps > 1:
        options.unsaid.append(
            f"training.global_batch_size = {batch}: {steps} pipelines one after the other in a step"
        )
    fields |= {"microbatch_size": size, "microbatches": local // size}


def _read_rest(options: Options, fields: Settings) -> None:
    """The recomputation and the precision."""
    mode = options.choice(
        "activation_checkpoint.mode",
        {"none": "none", "full": "full", "selective": "per-op"},
        "per-op",
    )
    of_ops = options.choice("activation_checkpoint.selective_ac_option", {"op": True}, False)
    if mode == "per-op" and not of_ops:
        options.unsaid.append(
            "activation_checkpoint.mode = selective of whole layers: per-op is taken"
        )
    fields["recompute"] = mode
    precision = {"bfloat16": "bf16", "float32": "fp32"}
    fields["precision"] = options.choice("training.mixed_precision_param", precision, "bf16")
    if options.switch("float8.enable_float8_linear"):
        fields["precision"] = "fp8"
    if split := options.take("experimental.pipeline_parallel_split_points"):
        options.unsaid.append(f"experimental.pipeline_parallel_split_points = {split}")
    converters = options.take("model.converters", [])
    if isinstance(converters, list) and "float8" in converters:
        fields["precision"] = "fp8"
        converters = [each for each in converters if each != "float8"]
    if converters:
        options.unsaid.append(f"model.converters = {converters}")
    if fields["precision"] == "fp8":
        recipes = {"tensorwise": "fp8", "rowwise": "fp8-rowwise"}
        fields["precision"] = options.choice("float8.recipe_name", recipes, "fp8")
    options.choice("training.mixed_precision_reduce", {"float32": None}, None)


def written(plan: Plan) -> Settings:
    """{section: {option: value}} of a plan."""
    sharded = plan.zero > 0 and plan.dp * plan.cp > 1
    shard = max(1, (plan.hybrid or plan.dp * plan.cp) // plan.cp) if sharded else 1
    schedules = {ours: theirs for theirs, ours in SCHEDULES.items()}
    kinds = {ours: theirs for theirs, ours in CP_KINDS.items()}
    one = plan.pp == 1
    local = plan.microbatch_size * (1 if one else plan.microbatches)
    parallelism: Settings = {
        "data_parallel_replicate_degree": plan.dp // shard,
        "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": plan.tp,
        "pipeline_parallel_degree": plan.pp,
        "context_parallel_degree": plan.cp,
        "enable_async_tensor_parallel": plan.tp > 1 and plan.tp_overlap == "pipelined",
    }
    block = plan.cp * (plan.tp if plan.spreads_experts else 1)
    if plan.ep > 1 and plan.ep % block == 0 and shard == plan.dp:
        parallelism["expert_parallel_degree"] = plan.ep
        parallelism["expert_tensor_parallel_degree"] = plan.etp
        if plan.dispatcher == "once-a-node":
            parallelism["expert_parallel_comm_backend"] = "deepep"
    if sharded:
        parallelism["fsdp_reshard_after_forward"] = "always" if plan.reshard else "never"
    if plan.cp > 1 and plan.cp_kind in kinds:
        parallelism["context_parallel_rotate_method"] = kinds[plan.cp_kind]
    if not one:
        parallelism["pipeline_parallel_microbatch_size"] = plan.microbatch_size
        if plan.schedule in schedules:
            parallelism["pipeline_parallel_schedule"] = schedules[plan.schedule]
    training: Settings = {
        "local_batch_size": local,
        "global_batch_size": plan.global_batch,
        "mixed_precision_param": "float32" if plan.precision == "fp32" else "bfloat16",
        "enable_cpu_offload": plan.offload == "parameters",
    }
    if plan.seq:
        training["seq_len"] = plan.seq
    compiled = [name for field, name in COMPONENTS.items() if getattr(plan, field)]
    mode = {"none": "none", "full": "full", "per-op": "selective"}.get(plan.recompute, "none")
    content: Settings = {
        "parallelism": parallelism,
        "training": training,
        "activation_checkpoint": {"mode": mode, "selective_ac_option": "op"},
        "compile": {"enable": bool(compiled), "components": compiled},
    }
    if plan.has_eight_bits:
        content["model"] = {"converters": ["float8"]}
    if plan.precision == "fp8-rowwise":
        content["float8"] = {"recipe_name": "rowwise"}
    return content
