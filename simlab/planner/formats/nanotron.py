"""The configuration of nanotron (src/nanotron/config), as YAML files have it.

What follows from no option stands in docs/convert.md. `tp_linear_async_communication` runs the
communication of the backward beside the weight gradient. ddp_bucket_cap_mb counts 2**20 bytes.
"""

import re

from simlab.errors import InputError
from simlab.planner.formats.options import Options, Settings
from simlab.spec.model.hugging_face import sizes_of
from simlab.spec.plan import Plan

KINDS = {"is_llama_config": "llama", "is_qwen2_config": "qwen2"}
"""{what says so in model.model_config: model type of a config.json}"""
ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
MODES = {"REDUCE_SCATTER": True, "reduce_scatter": True, "ALL_REDUCE": False, "all_reduce": False}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
MIB = 2**20


def read(options: Options, gpus: int | None) -> Settings:
    """{field of a plan: value}"""
    fields: Settings = {"library": "nanotron"}
    for field in ("dp", "tp", "pp"):
        degree = options.whole(f"parallelism.{field}")
        if degree is None:
            raise InputError(f"there is no parallelism.{field}: give the degree")
        fields[field] = degree
    fields |= {
        "cp": options.whole("parallelism.context_parallel_size", 1),
        "schedule": options.choice("parallelism.pp_engine", ENGINES, "gpipe"),
        "sequence_parallel": options.choice("parallelism.tp_mode", MODES, False),
        "tp_overlap": "weight-grad"
        if options.switch("parallelism.tp_linear_async_communication")
        else "none",
        "recompute": "full" if options.switch("parallelism.recompute_layer") else "none",
        "zero": options.whole("optimizer.zero_stage", 0, 0),
        "precision": options.choice("model.dtype", DTYPES, "bf16"),
        "microbatch_size": options.whole("tokens.micro_batch_size", 1),
        "microbatches": options.whole("tokens.batch_accumulation_per_replica", 1),
        "seq": options.whole("tokens.sequence_length"),
    }
    exact = options.switch("optimizer.accumulate_grad_in_fp32", True)
    if not exact and fields["precision"] != "fp32":
        fields["gradient_bytes"] = 2
    elif fields["precision"] == "fp16":
        fields["gradient_bytes"] = 4
    bucket = options.whole("model.ddp_bucket_cap_mb")
    if bucket is not None:
        fields["bucket_bytes"] = bucket * MIB
    used = fields["dp"] * fields["tp"] * fields["pp"] * fields["cp"]
    if gpus is not None and gpus != used:
        raise InputError(f"the file is for {used} GPUs, not for {gpus}")
    return fields


def read_model(options: Options, fields: Settings) -> Settings | None:
    """{field of `Model`: value} of model.model_config; None where it is not read."""
    config = options.section("model.model_config")
    kind = next((kind for name, kind in KINDS.items() if config.get(name)), None)
    if not config:
        return None
    other = next((name for name in config if re.fullmatch(r"is_\w+_config", name)), None)
    if other and not kind:
        options.unsaid.append(
            f"model.model_config.{other}: such a model is not read, but {' and '.join(KINDS)} are"
        )
        return None
    named = config | {"model_type": kind or config.get("model_type")}
    if kind == "qwen2" and not _read_qwen2(options, config, named):
        return None
    try:
        return sizes_of(named) | ({"seq": fields["seq"]} if fields["seq"] else {})
    except InputError as error:
        options.unsaid.append(f"model.model_config: {error}")
        return None


def _read_qwen2(options: Options, config: Settings, named: Settings) -> bool:
    """What nanotron's Qwen2Config has beside that of transformers (src/nanotron/config/models_config.py):
    queries, keys and values have biases only if attention_bias is set. Whether a `Model` says it."""
    if not named.pop("attention_bias", False):
        named["model_type"] = "llama"
    if config.get("no_rope_layer"):
        options.unsaid.append(
            f"model.model_config.no_rope_layer = {config['no_rope_layer']}: some layers rotate nothing"
        )
    if config.get("moe_config"):
        options.unsaid.append("model.model_config.moe_config: its experts are not read")
    return not config.get("moe_config")


def written(plan: Plan) -> Settings:
    """{section: {option: value}} of a plan."""
    engines = {ours: theirs for theirs, ours in ENGINES.items()}
    dtypes = {ours: theirs for theirs, ours in DTYPES.items()}
    parallelism: Settings = {
        "dp": plan.dp,
        "pp": plan.pp,
        "tp": plan.tp,
        "context_parallel_size": plan.cp,
        "pp_engine": engines.get(plan.schedule, "1f1b"),
        "tp_mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
        "tp_linear_async_communication": plan.tp > 1 and plan.tp_overlap != "none",
        "recompute_layer": plan.recompute == "full",
    }
    tokens: Settings = {
        "micro_batch_size": plan.microbatch_size,
        "batch_accumulation_per_replica": plan.microbatches,
    }
    if plan.seq:
        tokens["sequence_length"] = plan.seq
    model: Settings = {"dtype": dtypes.get(plan.precision, "bfloat16")}
    if plan.bucket_bytes and plan.bucket_bytes % MIB == 0:
        model["ddp_bucket_cap_mb"] = plan.bucket_bytes // MIB
    return {
        "parallelism": parallelism,
        "optimizer": {
            "zero_stage": min(plan.zero, 1),
            "accumulate_grad_in_fp32": plan.gradient_bytes == 4,
        },
        "tokens": tokens,
        "model": model,
    }
