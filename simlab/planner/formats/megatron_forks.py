"""What older versions and forks of Megatron-LM do otherwise, in its flags of today."""

from simlab.errors import shortened
from simlab.planner.formats.known import known_of
from simlab.planner.formats.options import Options

OLDER = {
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--batch-size": "--micro-batch-size",
    "--expert-parallel-size": "--expert-model-parallel-size",
    "--activations-checkpoint-method": "--recompute-method",
    "--checkpoint-method": "--recompute-method",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--activations-checkpoint-granularity": "--recompute-granularity",
    "--checkpoint-granularity": "--recompute-granularity",
    "--fp32-allreduce": "--accumulate-allreduce-grads-in-fp32",
    "--use-custom-fsdp": "--use-megatron-fsdp",
    "--intermediate-size": "--ffn-hidden-size",
    "--decoder-num-layers": "--num-layers",
    "--cp-comm-types": "--cp-comm-type",
    "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--cpu-optimizer": "--optimizer-cpu-offload",
    "--pad-vocab-size-to": "--padded-vocab-size",
}
"""{name of a flag in an older version: its name since}"""
LOCAL = (
    "--data-impl",
    "--DDP-impl",
    "--checkpoint-activations",
    "--activations-checkpoint-method",
    "--attention-head-type",
)
"""Flags of Megatron-LM before October 2023, and one of BigCode's fork of it, whose layers are their own ones
where --transformer-impl is not given."""
OF_SWIFT = (
    "--dataset",
    "--cached_dataset",
    "--max_length",
    "--save_safetensors",
    "--load_safetensors",
)
"""Flags of ms-swift that Megatron-LLM has not, which has underscores, too."""


def read_forks(options: Options) -> None:
    """Say what a fork or an older version means in the flags of Megatron-LM."""
    known = known_of("megatron")
    is_swift = any(options.given(flag) for flag in OF_SWIFT)
    names = [name for name in options.names if "_" in name and not known.is_none(name)]
    if is_swift or {"--micro_batch_size", "--tensor_model_parallel_size"} & {*names}:
        options.rename({name: name.replace("_", "-") for name in names})
        (_of_swift if is_swift else _of_megatron_llm)(options)
    if any(options.given(flag) for flag in LOCAL) and not options.given("--transformer-impl"):
        options.set("--transformer-impl", "local")
    options.rename(OLDER)
    one = options.choice("--attention-head-type", {"multiquery": 1, "multihead": None}, None)
    heads = options.whole("--num-key-value-heads", one)
    if heads is not None:
        options.set("--group-query-attention", True)
        options.set("--num-query-groups", heads)
    if options.given("--deepspeed"):
        _of_deepspeed(options)


def _of_swift(options: Options) -> None:
    """ms-swift's defaults (modelscope/ms-swift 006938b, swift/megatron/arguments/megatron_args.py)."""
    options.rename(
        {"--virtual-pipeline-model-parallel-size": "--num-virtual-stages-per-pipeline-rank"}
    )
    half = str(options.take("--torch-dtype", "bfloat16"))
    usual = {
        "--micro-batch-size": 1,
        "--global-batch-size": 16,
        "--recompute-granularity": "selective",
        "--use-distributed-optimizer": True,
        "--moe-token-dispatcher-type": "alltoall",
        "--expert-tensor-parallel-size": 1
        if options.given("--expert-model-parallel-size")
        else None,
        "--attention-dropout": 0,
        "--hidden-dropout": 0,
        "--seq-length": options.take("--max-length"),
        "--fp16": True if half == "float16" else None,
        "--bf16": True if half == "bfloat16" and not options.given("--fp16") else None,
    }
    for name, value in usual.items():
        if value is not None and not options.given(name):
            options.set(name, value)
    if options.look("--recompute-granularity") == "none":
        options.drop("--recompute-granularity")


def _of_megatron_llm(options: Options) -> None:
    """Megatron-LLM's flags (epfLLM/Megatron-LLM, megatron/arguments.py) have underscores, some have
    other names, and its layers have no bias unless one is asked for."""
    options.rename({"--num-attention-heads-kv": "--num-query-groups"})
    options.set("--transformer-impl", "local")
    means = {
        "--normalization": "RMSNorm" if options.switch("--use-rms-norm") else None,
        "--untie-embeddings-and-output-weights": options.switch("--no-tie-embed-logits"),
        "--disable-bias-linear": not options.switch("--use-bias"),
        "--swiglu": options.choice("--glu-activation", {"swiglu": True}, False),
        "--group-query-attention": options.given("--num-query-groups"),
    }
    if options.given("--hidden-size") and not options.given("--ffn-hidden-size"):
        options.set(
            "--ffn-hidden-size", 4 * (Options({"": options.look("--hidden-size")}).whole("") or 0)
        )
    for name, value in means.items():
        if value:
            options.set(name, value)


FLASH = (
    "--use-flash-attn-v1",
    "--use-flash-attn-v2",
    "--use-flash-attn-triton",
    "--use-flash-attn-builder",
)


def _of_deepspeed(options: Options) -> None:
    """What Megatron-DeepSpeed does otherwise (microsoft/Megatron-DeepSpeed, megatron/arguments.py): its
    layers are its own ones, its sequence parallelism is Ulysses', and its experts are on every
    --expert-interval-th layer."""
    if not options.given("--transformer-impl"):
        options.set("--transformer-impl", "local")
    flash = [options.switch(flag) for flag in FLASH]
    if any(flash):
        options.set("--use-flash-attn", True)
    ranks = options.whole("--ds-sequence-parallel-size", 1) or 1
    if ranks > 1:
        options.set("--context-parallel-size", ranks)
        options.set("--cp-comm-type", "a2a")
        if not any(flash):
            options.set("--use-flash-attn", True)
            options.unsaid.append(
                "attention of several kernels with --ds-sequence-parallel-size: a plan has fused attention then"
            )
    if options.given("--bf16"):  # DeepSpeed's default
        options.set("--grad-reduce-in-bf16", True)
    if options.look("--zero-stage") == 3:
        options.set("--overlap-grad-reduce", True)
    if (options.look("--expert-model-parallel-size") or 1) != 1:
        options.set("--moe-token-dispatcher-type", "alltoall")
    experts = options.look("--num-experts")
    if experts not in (None, 1):
        options.drop("--num-experts", "--expert-interval")
        options.unsaid.append(
            f"--num-experts = {shortened(experts)} on every --expert-interval-th layer: name the model"
        )
        options.drop("--num-layers")
