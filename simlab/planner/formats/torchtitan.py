"""The configuration of torchtitan (torchtitan/config/), as its TOML files have it, or the JSON file that
it writes of its Python configurations.

What follows from no option stands in docs/convert.md. With a pipeline, FSDP keeps parameters gathered after
the forward unless 'always' is given. Expert-parallel ranks take all context-parallel ones and a part of those
that shard.
"""

from collections.abc import Collection
from typing import Any

from simlab.errors import InputError, shortened
from simlab.planner.formats.options import Options, Settings, microbatches, replicas
from simlab.planner.formats.torchtitan_stages import PARALLELISM, read_stages, written_stages
from simlab.spec.model import load_model
from simlab.spec.plan import Plan

SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
CP_KINDS = {"allgather": "all-gather", "alltoall": "ring"}
"""torch's 'alltoall' passes keys and values round by all-to-alls: each rank sends to the next one."""
COMPONENTS = {"fused": "model", "compiled_loss": "loss"}
"""{field of a plan: what compile.components calls what is compiled}"""
MODELS = {
    "llama2": {"7b": "llama-2-7b", "13b": "llama-2-13b", "70b": "llama-2-70b"},
    "llama3": {"8b": "llama-3-8b", "70b": "llama-3-70b", "405b": "llama-3-405b"},
    "llama4": {"17bx16e": "llama-4-scout", "17bx128e": "llama-4-maverick"},
    "deepseek_v3": {"671b": "deepseek-v3"},
    "qwen3": {
        "0.6b": "qwen3-0.6b",
        "4b": "qwen3-4b",
        "8b": "qwen3-8b",
        "14b": "qwen3-14b",
        "32b": "qwen3-32b",
        "30b-a3b": "qwen3-30b-a3b",
        "235b-a22b": "qwen3-235b-a22b",
    },
}
"""{model.name: {model.flavor in small letters: the model of the catalogue}}."""
EARLY = {"training.data_parallel_degree": "parallelism.data_parallel_shard_degree"} | {
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
            "pipeline_parallel_split_points",
        ),
    }.items()
    for option in options
}
"""{where an option stood until March 2025, when the loss was not compiled: its name since}"""
OLDER = {
    "training.batch_size": "training.local_batch_size",
    "training.enable_float8_linear": "float8.enable_float8_linear",
    "training.fp8_linear": "float8.enable_float8_linear",
    "quantize.linear.float8.recipe_name": "float8.recipe_name",
    "quantize.dense.float8.recipe_name": "float8.recipe_name",
    "compile.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "parallelism.pipeline_parallel_module_fqns_per_model_part": "parallelism.module_fqns_per_model_part",
    "model_spec.name": "model.name",
    "model_spec.flavor": "model.flavor",
} | EARLY
"""{name of an option in another version: its name in 0.2}"""


def read(options: Options, gpus: int | None) -> Settings:
    """{field of a plan: value}"""

    def degree(option: str, default: int = 1, least: int = 1) -> int:
        return options.whole(PARALLELISM + option, default, least) or 0

    early = any(options.given(older) for older in EARLY)
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
        "sequence_parallel": options.switch(PARALLELISM + "enable_sequence_parallel", True)
        and tp > 1,
        "library": "torch",
        "seq": options.whole(
            "training.seq_len", options.whole("training.max_context_length", 2048)
        ),
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
    schedule = PARALLELISM + "pipeline_parallel_schedule"
    other = options.look(schedule) not in (None, *SCHEDULES)
    fields["schedule"] = options.choice(schedule, SCHEDULES, "1f1b")
    if pp == 1:
        fields["schedule"] = "1f1b"
    name = _catalogued(options.look("model.name"), options.look("model.flavor"))
    layers = load_model(name).layers if name else None
    read_stages(options, fields, layers, early=early, other=other)
    fields["compiled_loss"] = fields["compiled_loss"] and not early
    _read_batch(options, fields)
    _read_rest(options, fields)
    if unknown := [option for option in options.names if option.endswith("parallel_degree")]:
        raise InputError(f"{unknown[0]} is no option that is known: give {PARALLELISM}..._degree")
    if gpus not in (None, used := replicate * shard * tp * pp * cp):
        raise InputError(
            f"the degrees are of {used} GPUs, not of {gpus}: give data_parallel_shard_degree = -1, or --gpus {used}"
        )
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
    if options.given(TOKENS) or options.given("parallelism.num_pp_microbatches"):
        size = _sequences(options, TOKENS, fields["seq"], 16_384)
        each = options.whole(PARALLELISM + "num_pp_microbatches", 1) or 1
        local = size * (each if fields["pp"] > 1 else 1)
        if options.look("training.num_tokens_per_train_step") not in (None, -1):
            batch = _sequences(options, "training.num_tokens_per_train_step", fields["seq"], 0)
    options.drop("training.num_tokens_per_train_step")
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


def _sequences(options: Options, option: str, seq: int, default: int) -> int:
    """The sequences of so many tokens as an option says."""
    tokens = options.whole(option, default) or 0
    if tokens % seq:
        raise InputError(f"{option} = {tokens} is no multiple of sequences of {seq} tokens")
    return tokens // seq


def _read_rest(options: Options, fields: Settings) -> None:
    """The recomputation and the precision."""
    _kind_of_checkpoint(options)
    if options.look("activation_checkpoint.mode") == "none":
        options.drop("activation_checkpoint.selective_ac_option")
    mode = options.choice(
        "activation_checkpoint.mode",
        {"none": "none", "full": "full", "selective": "per-op"},
        "per-op",
    )
    given = options.take("activation_checkpoint.selective_ac_option", "2")
    of_ops = given == "op"
    if mode == "per-op" and not of_ops:
        options.unsaid.append(
            f"activation_checkpoint.mode = selective of whole layers, {given}: per-op is taken"
        )
    fields["recompute"] = mode
    precision = {"bfloat16": "bf16", "float32": "fp32"}
    fields["precision"] = options.choice("training.mixed_precision_param", precision, "bf16")
    enabled, converters = options.switch("float8.enable_float8_linear"), _converters(options)
    in_eight_bits = enabled or not {*FLOAT8}.isdisjoint(converters)
    _drop_idle(options, {*converters, *(FLOAT8 if in_eight_bits else ())})
    if in_eight_bits:
        recipes = {"tensorwise": "fp8", "rowwise": "fp8-rowwise"}
        fields["precision"] = options.choice("float8.recipe_name", recipes, "fp8")
    options.drop("float8.recipe_name")
    names = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "muon": "muon"}
    given = options.take("optimizer.name", "AdamW")
    if str(given).lower() not in names:
        options.unsaid.append(f"optimizer.name = {shortened(given)}: Adam is taken")
    fields["optimizer"] = names.get(str(given).lower(), "adam")


def _kind_of_checkpoint(options: Options) -> None:
    """The mode of recomputation where a JSON file says it by which settings there are, as torchtitan's
    have done since June 2026 (torchtitan/distributed/activation_checkpoint.py)."""
    section = "activation_checkpoint"
    if section in options.names:  # null
        options.set(f"{section}.mode", "none")
    elif options.given(f"{section}.mode") or not options.given(f"{section}.preserve_rng_state"):
        return
    elif options.given(f"{section}.memory_budget"):
        options.set(f"{section}.mode", "memory_budget")
    elif options.given(f"{section}.force_recompute_mm_shapes_by_fqns"):
        options.set(f"{section}.mode", "selective")
        options.set(f"{section}.selective_ac_option", "op")
    else:
        options.set(f"{section}.mode", "full")
    options.drop(section, f"{section}.force_recompute_mm_shapes_by_fqns")


FLOAT8 = ("float8", "quantize.linear.float8", "quantize.dense.float8")
"""The names of the converter of products to 8 bits, in all versions."""


CONVERTERS = (
    *FLOAT8,
    "mx",
    "quantize.linear.mx",
    "quantize.grouped_mm.float8",
    "quantize.grouped_mm.mx",
)
"""The names of converters that have sections of options."""


def _drop_idle(options: Options, converters: Collection[str]) -> None:
    """Set the options aside of converters that are not used."""
    for name in CONVERTERS:
        if name not in converters:
            options.set_aside(name)


def _converters(options: Options) -> list[str]:
    """The names of converters, of which those to 8 bits are read. Others go to `unsaid`."""
    given = options.take("model.converters", [])
    names = given.replace(",", " ").split() if isinstance(given, str) else given
    if not isinstance(names, list):
        raise InputError(f"model.converters = {shortened(given)}: give a list of names")
    flat = [str(name.get("_target_", name) if isinstance(name, dict) else name) for name in names]
    if others := [name for name in flat if name.lower() not in FLOAT8]:
        options.unsaid.append(f"model.converters = {others}")
    return [name.lower() for name in flat]


def read_model(options: Options, fields: Settings) -> Settings | None:
    """{field of a `Model`: value} of the model that model.name and model.flavor name; None where they
    are not given, or name none of the catalogue."""
    name, flavor = options.take("model.name"), options.take("model.flavor")
    if flavor is None:
        return None
    ours = _catalogued(name, flavor)
    if ours is None:
        options.unsaid.append(
            f"model.flavor = {shortened(flavor)} of {shortened(name)}: it is none of the catalogue; give "
            "the plan's command a --model"
        )
        return None
    return load_model(ours).to_dict() | {"seq": fields["seq"]}


def _catalogued(name: Any, flavor: Any) -> str | None:
    """The model of the catalogue that they name, if there is one."""
    return MODELS.get(str(name), {}).get(str(flavor).lower())


def written(plan: Plan, layers: int | None) -> Settings:
    """{section: {option: value}} of a plan. layers: those of the model, where it is known."""
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
    if plan.tp > 1 and not plan.sequence_parallel:
        parallelism["enable_sequence_parallel"] = False
    block = plan.cp * (plan.tp if plan.spreads_experts else 1)
    if plan.ep > 1 and plan.ep % block == 0 and shard == plan.dp:
        parallelism["expert_parallel_degree"] = plan.ep
        parallelism["expert_tensor_parallel_degree"] = plan.etp
        if plan.dispatcher == "once-a-node":
            parallelism["expert_parallel_comm_backend"] = "deepep"
    if sharded:
        gathers_twice = plan.reshard and plan.zero == 3  # else, as after 'never', once
        parallelism["fsdp_reshard_after_forward"] = "always" if gathers_twice else "never"
    if plan.cp > 1 and plan.cp_kind in kinds:
        parallelism["context_parallel_rotate_method"] = kinds[plan.cp_kind]
    if not one:
        parallelism["pipeline_parallel_microbatch_size"] = plan.microbatch_size
        if plan.schedule in schedules:
            parallelism["pipeline_parallel_schedule"] = schedules[plan.schedule]
        if plan.schedule in schedules or plan.chunks == 1:
            parallelism |= written_stages(plan, layers)
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
    if plan.precision.startswith("fp8"):
        content["model"] = {"converters": ["float8"]}
    if plan.precision == "fp8-rowwise":
        content["float8"] = {"recipe_name": "rowwise"}
    return content
