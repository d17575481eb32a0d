"""The configuration of DeepSpeed (deepspeed/runtime/config.py and zero/config.py), as JSON files
have it.

It says how data parallelism works; pipelines, context parallelism, recomputation and the order of
ranks are in a program's code. MiCS (`mics_shard_size`) shards over so many ranks.
"""

from typing import Any

from simlab.errors import InputError
from simlab.planner.formats.options import Options, Settings, replicas
from simlab.spec.plan import Plan

DEVICES = {"none": "", "cpu": "host", "nvme": "nvme"}
BATCH = "train_batch_size"
SIZE = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
ZERO = "zero_optimization."
NUMBERS = {"fp32": 4, "fp16": 2, "bfp16": 2}


def read(options: Options, gpus: int | None) -> Settings:
    """{field of a plan: value}"""
    stage = options.whole(ZERO + "stage", 0, 0) or 0
    tp = options.whole("tensor_parallel.autotp_size", 1) or 1
    fields: Settings = {"zero": stage, "tp": tp, **_batch(options, gpus, tp)}
    if gpus is not None and gpus != fields["dp"] * tp:
        options.unsaid.append(f"how the program's code splits the model over the {gpus} GPUs")
    half = "fp16" if options.switch("fp16.enabled") else "fp32"
    fields["precision"] = "bf16" if options.switch("bf16.enabled") else half
    fields["dp_overlap"] = options.switch(ZERO + "overlap_comm", stage == 3)
    shards = options.whole(ZERO + "mics_shard_size", -1, -1) or 0
    if shards > 0:
        fields["hybrid"] = shards
    reduced = options.choice("communication_data_type", NUMBERS, None)
    if reduced:
        fields["gradient_bytes"] = reduced
    bucket = options.whole(ZERO + "reduce_bucket_size")
    if bucket is not None:
        if stage < 2:
            usual = 2 if fields["precision"] == "fp16" else 4
            fields["bucket_bytes"] = bucket * (reduced or usual)
        else:
            options.unsaid.append(
                f"{ZERO}reduce_bucket_size = {bucket}: ZeRO-{stage} goes by units"
            )
    parameters = options.choice(ZERO + "offload_param.device", DEVICES, "")
    optimizer = options.choice(ZERO + "offload_optimizer.device", DEVICES, "")
    if parameters or optimizer:
        fields["offload"] = "parameters" if parameters else "optimizer"
        fields["offload_to"] = parameters or optimizer
        if parameters and optimizer and parameters != optimizer:
            options.unsaid.append(f"{ZERO}offload_optimizer.device: it goes where parameters go")
    return fields


def _batch(options: Options, gpus: int | None, tp: int) -> dict[str, Any]:
    """dp and the microbatches. As in DeepSpeed, the third of three numbers follows from two."""
    asked = {option: options.take(option) for option in (BATCH, SIZE, STEPS)}
    known = {}
    for option, value in asked.items():
        if value not in (None, "auto"):
            known[option] = Options({option: value}).whole(option) or 1
    for option, value in asked.items():
        if value == "auto" and len(known) < 2:
            raise InputError(
                f"{option} = 'auto' is set by the trainer: give its number, or the two others"
            )
    if len(known) == 3:
        dp = known[BATCH] // (known[SIZE] * known[STEPS])
        replicas(gpus or dp * tp, max(1, dp) * tp)
    else:
        dp = replicas(gpus, tp)
    size, steps, batch = known.get(SIZE), known.get(STEPS), known.get(BATCH)
    if size is None and batch is None:
        raise InputError(f"neither {BATCH} nor {SIZE} is given: give one of them")
    if size is None:
        steps = steps or 1
        size = (batch or 0) // (dp * steps)
    elif steps is None:
        steps = (batch or dp * size) // (dp * size)
    if not dp or batch not in (None, dp * size * steps):
        raise InputError(
            f"{BATCH} = {batch} is not {dp} replicas x {SIZE} = {size} x {STEPS} = {steps}"
        )
    return {"dp": dp, "microbatch_size": size, "microbatches": steps}


def written(plan: Plan) -> Settings:
    """The configuration of a plan."""
    zero: Settings = {"stage": plan.zero, "overlap_comm": plan.dp_overlap}
    if plan.hybrid:
        zero["mics_shard_size"] = plan.hybrid
    if plan.bucket_bytes:
        zero["reduce_bucket_size"] = plan.bucket_bytes // plan.gradient_bytes
    device = {"host": "cpu", "nvme": "nvme"}[plan.offload_to]
    if plan.offload in ("optimizer", "parameters"):
        zero["offload_optimizer"] = {"device": device}
    if plan.offload == "parameters":
        zero["offload_param"] = {"device": device}
    content: Settings = {
        BATCH: plan.global_batch,
        SIZE: plan.microbatch_size,
        STEPS: plan.microbatches,
        "zero_optimization": zero,
        "bf16": {"enabled": plan.precision == "bf16" or plan.has_eight_bits},
        "fp16": {"enabled": plan.precision == "fp16"},
    }
    half = "fp16" if plan.precision == "fp16" else "bfp16"
    content["communication_data_type"] = "fp32" if plan.gradient_bytes == 4 else half
    if plan.tp > 1:
        content["tensor_parallel"] = {"autotp_size": plan.tp}
    return content
