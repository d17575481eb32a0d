"""The configuration of DeepSpeed (deepspeed/runtime/config.py and zero/config.py), as JSON files
have it.

It says how data parallelism works; pipelines, context parallelism, recomputation and the order of
ranks are in a program's code. MiCS (`mics_shard_size`) shards over so many ranks. What follows from no
option stands in docs/convert.md.
"""

from typing import Any

from simlab.errors import InputError, shortened
from simlab.planner.formats.options import Options, Settings, replicas
from simlab.spec.plan import Plan

DEVICES = {"none": "", "cpu": "host", "nvme": "nvme"}
BATCH = "train_batch_size"
SIZE = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
ZERO = "zero_optimization."
NUMBERS = {"fp32": 4, "float32": 4, "fp16": 2, "float16": 2, "bf16": 2, "bfp16": 2, "bfloat16": 2}
OLDER = {
    "bfloat16.enabled": "bf16.enabled",
    "data_types.bf16_master_weights_and_grads": "bf16.bf16_master_weights_and_grads",
    "tensor_parallel.tp_size": "tensor_parallel.autotp_size",
}
ACCELERATE = {
    f"deepspeed_config.{option}": name
    for option, name in {
        "zero_stage": ZERO + "stage",
        "offload_optimizer_device": ZERO + "offload_optimizer.device",
        "offload_param_device": ZERO + "offload_param.device",
        "gradient_accumulation_steps": STEPS,
        "gradient_clipping": "gradient_clipping",
    }.items()
}
"""{option of accelerate: that of DeepSpeed}"""
OFFLOADS = {
    "cpu_offload": "offload_optimizer.device",
    "cpu_offload_optimizer": "offload_optimizer.device",
    "cpu_offload_param": "offload_param.device",
    "cpu_offload_params": "offload_param.device",
}
"""{switch of an older version: what it sets to 'cpu'}"""


def read(options: Options, gpus: int | None) -> Settings:
    """{field of a plan: value}"""
    gpus = _of_accelerate(options, gpus)
    _rename(options)
    stage = options.whole(ZERO + "stage", 0, 0) or 0
    tp = options.whole("tensor_parallel.autotp_size", 1, 0) or 1
    fields: Settings = {"zero": stage, "tp": tp, **_batch(options, gpus, tp)}
    if gpus is not None and gpus != fields["dp"] * tp:
        options.unsaid.append(f"how the program's code splits the model over the {gpus} GPUs")
    fields["precision"] = _precision(options)
    overlap = options.look(ZERO + "overlap_comm")
    if overlap == "auto":  # as None
        options.drop(ZERO + "overlap_comm")
    fields["dp_overlap"] = options.switch(ZERO + "overlap_comm", stage == 3)
    shards = options.whole(ZERO + "mics_shard_size", -1, -1) or 0
    if shards > 0:
        fields["hybrid"] = shards
    fields["gradient_bytes"] = _gradient_bytes(options, fields["precision"])
    bucket = ZERO + "reduce_bucket_size"
    if stage < 2 or options.look(bucket) not in (None, "auto"):
        numbers = options.whole(bucket)
        if numbers is not None and stage < 2:
            fields["bucket_bytes"] = numbers * fields["gradient_bytes"]
        elif numbers is not None:
            options.unsaid.append(f"{bucket} = {numbers}: ZeRO-{stage} goes by units")
    options.drop(bucket)
    _read_optimizer(options, fields)
    parameters = options.choice(ZERO + "offload_param.device", DEVICES, "")
    optimizer = options.choice(ZERO + "offload_optimizer.device", DEVICES, "")
    if parameters and stage < 3:
        options.unsaid.append(f"{ZERO}offload_param.device: it has an effect with ZeRO-3 only")
        parameters = ""
    if parameters and not optimizer:
        options.unsaid.append(
            f"no {ZERO}offload_optimizer.device: the optimizer's states stay on the GPU, a plan that offloads "
            "parameters offloads them, too"
        )
    if parameters or optimizer:
        fields["offload"] = "parameters" if parameters else "optimizer"
        fields["offload_to"] = parameters or optimizer
        if parameters and optimizer and parameters != optimizer:
            options.unsaid.append(f"{ZERO}offload_optimizer.device: it goes where parameters go")
    return fields


def _of_accelerate(options: Options, gpus: int | None) -> int | None:
    """Say what a YAML file of Hugging Face's accelerate means (src/accelerate/utils/dataclasses.py:
    DeepSpeedPlugin). The number of GPUs, which it says."""
    kind = options.take("distributed_type")
    if kind is None:
        return gpus
    if kind != "DEEPSPEED":
        raise InputError(f"distributed_type = {shortened(kind)}: this file starts no DeepSpeed")
    file = options.take("deepspeed_config.deepspeed_config_file")
    if file is not None:
        raise InputError(f"deepspeed_config_file = {shortened(file)} has the options: convert that")
    options.rename(ACCELERATE)
    if options.look(ZERO + "stage") is None:
        options.set(ZERO + "stage", 2)
    half = options.take("mixed_precision", "no")
    if half in ("bf16", "fp16"):
        options.set(f"{half}.enabled", True)
    elif half not in ("no", False):
        options.unsaid.append(f"mixed_precision = {shortened(half)}")
    processes = options.whole("num_processes")
    if None not in (gpus, processes) and gpus != processes:
        raise InputError(f"num_processes = {processes}: the file is not for {gpus} GPUs")
    return processes or gpus


def _rename(options: Options) -> None:
    """Take options by their names and forms of today."""
    options.rename(OLDER)
    if isinstance(options.look("zero_optimization"), bool):  # of the first versions: stage 1
        options.set(ZERO + "stage", int(options.switch("zero_optimization")))
    for older, name in OFFLOADS.items():
        if options.look(ZERO + older) is not None and options.switch(ZERO + older):
            options.set(ZERO + name, "cpu")
    for name in ("bf16", "fp16", "bfloat16"):
        if isinstance(options.look(name), bool):
            options.set(f"{'fp16' if name == 'fp16' else 'bf16'}.enabled", options.switch(name))


def _precision(options: Options) -> str:
    """The precision. One that is on settles the other, which may be 'auto' then."""
    for name in ("bf16", "fp16"):
        if options.look(f"{name}.enabled") is True:
            options.drop("bf16.enabled", "fp16.enabled")
            return name
    return next((name for name in ("bf16", "fp16") if options.switch(f"{name}.enabled")), "fp32")


def _gradient_bytes(options: Options, precision: str) -> int:
    """The bytes of a number of a gradient that is summed and reduced."""
    own = 4 if precision == "fp32" else 2
    summed = options.choice("data_types.grad_accum_dtype", NUMBERS, own)
    reduced = options.choice("communication_data_type", NUMBERS, None)
    if reduced not in (None, summed):
        options.unsaid.append(
            f"gradients that are summed in {summed} bytes a number and reduced in {reduced}: a plan has "
            "one number for both"
        )
    return 4 if precision == "fp32" else int(reduced or summed)


OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "muon": "muon"}


def _read_optimizer(options: Options, fields: Settings) -> None:
    given = options.take("optimizer.type")
    if given is None:
        return
    name = str(given).lower().replace("_", "")
    if name in OPTIMIZERS and (OPTIMIZERS[name] == "adam" or not fields["zero"]):
        fields["optimizer"] = OPTIMIZERS[name]
    elif name in ("cpuadam", "fusedadam", "deepspeedcpuadam"):
        fields["optimizer"] = "adam"
    else:
        options.unsaid.append(f"optimizer.type = {given} with ZeRO-{fields['zero']}: Adam is taken")


def _batch(options: Options, gpus: int | None, tp: int) -> dict[str, Any]:
    """dp and the microbatches. As in DeepSpeed, the third of three numbers follows from two."""
    asked = {option: options.look(option) for option in (BATCH, SIZE, STEPS)}
    options.drop(*asked)
    known = {}
    for option, value in asked.items():
        if value not in (None, "auto"):
            known[option] = Options({option: value}).whole(option) or 1
    for option, value in asked.items():
        if value == "auto" and len(known) < 2:
            raise InputError(
                f"{option} = 'auto' is set by the trainer: give its number, or the two others, there or "
                f"with --set {option}=N"
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
    if not dp or not size or not steps:
        raise InputError(
            f"{BATCH} = {batch} is too small for {dp or 1} replicas with {size or 1} sequences each: give "
            "--gpus of fewer, or a larger batch"
        )
    if batch not in (None, dp * size * steps):
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
        "bf16": {"enabled": plan.precision == "bf16" or plan.has_narrow_products},
        "fp16": {"enabled": plan.precision == "fp16"},
    }
    if plan.gradient_bytes == 4 and plan.precision != "fp32":
        content["communication_data_type"] = "fp32"
        content["data_types"] = {"grad_accum_dtype": "fp32"}
    if plan.optimizer != "adam" and plan.optimizer in OPTIMIZERS:
        content["optimizer"] = {"type": plan.optimizer.upper()}
    if plan.tp > 1:
        content["tensor_parallel"] = {"autotp_size": plan.tp}
    return content
