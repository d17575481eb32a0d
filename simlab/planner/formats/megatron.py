"""The arguments of Megatron-LM (megatron/training/arguments.py), by their flags.

What follows from no flag stands in docs/convert.md. ZeRO-2 and 3 are those of Megatron-FSDP, of torch's
FSDP2 or, in Megatron-DeepSpeed, of DeepSpeed.
"""

from typing import Any

from simlab.errors import InputError, shortened
from simlab.libraries.torch import TORCH
from simlab.planner.formats.megatron_forks import read_forks
from simlab.planner.formats.megatron_model import read_model
from simlab.planner.formats.megatron_stages import read_stages, written_stages
from simlab.planner.formats.options import Options, Settings, microbatches, replicas
from simlab.spec.plan import Plan

__all__ = ["read", "read_model", "written"]

SHARDED = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3, "no_shard": 0}
CP_KINDS = {"p2p": "ring", "a2a": "all-to-all", "allgather": "all-gather"}
DISPATCHERS = {"all-to-all": "alltoall", "once-a-node": "flex"}
"""{dispatcher of a plan: --moe-token-dispatcher-type}"""
GRANULARITIES = {"full": "full", "selective": "selective", "outputs": "selective"}
"""{recomputation of a plan: --recompute-granularity}"""
OUTPUTS = ("layernorm", "moe_act", "mla_up_proj")
"""The modules of --recompute-modules that are recompute 'outputs'. The last one is only of models with
latent attention, which a plan does not say: it is read, and not written."""
RECORDED = {
    "router": ("transformer_engine", "moe_router moe_preprocess"),
    "parts": ("transformer_engine", "attn moe_router moe_preprocess"),
    "whole": ("full_iteration", None),
}
"""{CUDA graphs of a plan: (--cuda-graph-impl, --cuda-graph-modules)}"""
OPTIMIZERS = {"adam": "adam", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}
"""{--optimizer: optimizer of a plan}. dist_muon is that of ZeRO-1."""
ORDERS = {False: "tp-cp-dp-pp", True: "tp-cp-pp-dp"}


def read(options: Options, gpus: int | None) -> Settings:
    """{field of a plan: value}"""
    take, whole, switch = options.take, options.whole, options.switch
    read_forks(options)
    degrees = {
        "tp": whole("--tensor-model-parallel-size", 1),
        "pp": whole("--pipeline-model-parallel-size", 1),
        "cp": whole("--context-parallel-size", 1),
    }
    dp = replicas(_gpus(options, gpus), degrees["tp"] * degrees["pp"] * degrees["cp"])  # type: ignore[operator]
    size = whole("--micro-batch-size")
    if size is None:
        asks = [name[3:] for name in options.names if name[:3] == "--$"]
        raise InputError(
            f"there is no --micro-batch-size, and the script does not say what {asks[0]} is: give --set "
            f"{asks[0]}=VALUE"
            if asks
            else "there is no --micro-batch-size: give the sequences of a microbatch"
        )
    batch = whole("--global-batch-size", dp * size) or 1
    fields: Settings = {
        "dp": dp,
        **degrees,
        **_experts(options, degrees["tp"] or 1),
        "cp_kind": options.choice("--cp-comm-type", CP_KINDS, "ring"),
        **_zero(options),
        "microbatch_size": size,
        "microbatches": microbatches("--global-batch-size", batch, dp, size),
        "seq": whole("--seq-length"),
        "recompute": _recomputed(options),
        "sequence_parallel": switch("--sequence-parallel"),
        "attention": _attention(options),
        "dropout": not _zeros(take("--attention-dropout", 0.1), take("--hidden-dropout", 0.1)),
        "compiled_loss": _fuses_loss(options),
        "cuda_graphs": _graphs(options),
        "dp_overlap": switch("--overlap-grad-reduce"),
        "offload": "optimizer" if switch("--optimizer-cpu-offload") else "none",
        "order": ORDERS[switch("--use-tp-pp-dp-mapping")],
    }
    overlap = "none" if switch("--no-async-tensor-model-parallel-allreduce") else "weight-grad"
    fields["tp_overlap"] = "pipelined" if switch("--tp-comm-overlap") else overlap
    switch("--overlap-param-gather")  # goes with --overlap-grad-reduce, as in a plan
    _optimizer(options, fields)
    _read_numbers(options, fields)
    read_stages(options, fields)
    _fit_zero(options, fields)
    return fields


def _gpus(options: Options, gpus: int | None) -> int | None:
    """The number of GPUs: as given, else the processes that the script's launcher starts."""
    started = []
    for names in (
        ("--nproc_per_node", "--nproc-per-node", "--num_gpus"),
        ("--nnodes", "--num_nodes"),
    ):
        given = next((options.look(name) for name in names if options.given(name)), None)
        number = given[0] if isinstance(given, list) else given
        started.append(number if isinstance(number, int) and number > 0 else None)
    each, nodes = started
    if gpus is None:
        known = each and (nodes or not options.given("--nnodes"))
        return each * (nodes or 1) if each and known else None
    if each and nodes and each * nodes != gpus:
        raise InputError(
            f"the script starts {nodes} x {each} processes: give --gpus {each * nodes}, or its number of "
            "nodes by --set"
        )
    return gpus


def _attention(options: Options) -> str:
    kinds = {
        "unfused": "unfused",
        "local": "unfused",
        "flash": "flash",
        "fused": "flash",
        "auto": "flash",
    }
    flash = options.switch("--use-flash-attn")
    local = options.take("--transformer-impl", "transformer_engine") == "local"
    return str(
        options.choice("--attention-backend", kinds, "unfused" if local and not flash else "flash")
    )


def _graphs(options: Options) -> str:
    """What CUDA graphs have. Where no modules are named they have all of each layer."""
    kinds = {its: its for its in ("none", "local", "transformer_engine", "full_iteration")}
    kind = options.choice("--cuda-graph-impl", kinds, "none")
    given = options.take("--cuda-graph-modules", options.take("--cuda-graph-scope"))
    modules = {*(given.replace(",", " ").split() if isinstance(given, str) else given or ())}
    if kind == "none" or kind == "full_iteration" or "full_iteration" in modules:
        return "none" if kind == "none" else "whole"
    if not modules or modules & {"mlp", "moe"}:
        options.unsaid.append(
            "--cuda-graph-impl: graphs of whole layers are taken for one of a step"
        )
        return "whole"
    return "parts" if modules & {"attn", "mamba"} else "router"


def _experts(options: Options, tp: int) -> Settings:
    """Who holds experts, and how tokens get there."""
    ep = options.whole("--expert-model-parallel-size", 1) or 1
    cut = options.whole("--expert-tensor-parallel-size", tp)
    types = {theirs: ours for ours, theirs in DISPATCHERS.items()}
    sent = options.choice("--moe-token-dispatcher-type", types, None)
    if ep == 1 < tp and cut == 1:
        options.unsaid.append(
            "--expert-tensor-parallel-size = 1 without --expert-model-parallel-size: a plan's tensor-parallel "
            "ranks cut experts that all ranks have"
        )
    fields: Settings = {
        "ep": ep,
        "dispatcher": sent or "all-to-all",
        "ep_overlap": options.switch("--overlap-moe-expert-parallel-comm"),
    }
    options.take("--moe-flex-dispatcher-backend")  # both of them send a token once
    if options.switch("--moe-enable-deepep"):
        sent = fields["dispatcher"] = "once-a-node"
    if ep > 1 and sent is None:
        options.unsaid.append(
            "no --moe-token-dispatcher-type: Megatron-LM's allgather is taken as alltoall"
        )
    return fields | ({"etp": cut} if ep > 1 and cut != tp else {})


def _fuses_loss(options: Options) -> bool:
    """Whether Transformer Engine's kernel makes the loss. 'native' is torch's fusion of Megatron-LM's own,
    which a plan does not have."""
    if options.look("--cross-entropy-fusion-impl") != "te":
        return False
    options.drop("--cross-entropy-fusion-impl")
    return options.switch("--cross-entropy-loss-fusion")


def _zeros(*rates: Any) -> bool:
    return all(rate in (0, "0", "0.0", 0.0) for rate in rates)


def _zero(options: Options) -> Settings:
    """ZeRO's stage, and the library whose code shards."""
    sharded = options.switch("--use-megatron-fsdp")
    strategy = options.choice("--data-parallel-sharding-strategy", SHARDED, 3)
    optimizer = options.switch("--use-distributed-optimizer")
    kept = options.switch("--torch-fsdp2-no-reshard-after-forward")
    stage = options.whole("--zero-stage", 0, 0)
    if options.switch("--deepspeed") and stage:
        return {"zero": stage}
    if options.switch("--use-torch-fsdp2"):
        return {"zero": 3, "library": "torch", "reshard": not kept}
    return {"zero": int(strategy) if sharded else int(optimizer)}


def _fit_zero(options: Options, fields: Settings) -> None:
    """What goes with ZeRO only: groups of ranks that shard, and parameters in 8 bits."""
    groups = options.whole("--num-distributed-optimizer-instances", 1) or 1
    ranks = fields["dp"] * (fields["cp"] or 1)
    if groups > 1 and fields["zero"]:
        if ranks % groups:
            raise InputError(
                f"--num-distributed-optimizer-instances = {groups} does not divide {ranks} ranks"
            )
        fields["hybrid"] = ranks // groups
    sent = fields["precision"] in ("fp8", "fp8-current", "fp8-mx")
    if fields["fp8_param_gather"] and not (sent and fields["zero"]):
        fields["fp8_param_gather"] = False
        if sent:
            options.unsaid.append(
                "--fp8-param-gather without --use-distributed-optimizer: a plan has it with ZeRO only"
            )


def _optimizer(options: Options, fields: Settings) -> None:
    given = options.choice("--optimizer", {name: name for name in OPTIMIZERS}, "adam")
    fields["optimizer"] = OPTIMIZERS[given]
    if given == "dist_muon":
        fields["zero"] = 1


def _recomputed(options: Options) -> str:
    named = "selective" if options.switch("--recompute-activations") else "none"
    older = options.switch("--checkpoint-activations")
    options.drop("--deepspeed-activation-checkpointing")  # DeepSpeed's code does the same
    if older or (named == "none" and options.given("--recompute-method")):
        named = "full"
    kind = options.choice(
        "--recompute-granularity", {"full": "full", "selective": "selective"}, named
    )
    if kind == "selective":
        kind = _recomputed_modules(options)
    methods = {"uniform": "uniform", "block": "block"}
    method = options.choice("--recompute-method", methods, "uniform")
    count = options.whole("--recompute-num-layers", 1)
    if kind == "full" and method == "block":
        options.unsaid.append(
            f"--recompute-method block --recompute-num-layers {count}: only so many layers of a stage "
            "are recomputed, a plan recomputes all"
        )
    elif count != 1:
        options.unsaid.append(f"--recompute-num-layers = {count}: a plan recomputes each layer")
    return str(kind)


def _recomputed_modules(options: Options) -> str:
    """What --recompute-modules says, of which a plan knows attention's core, or all whose outputs are
    discarded together."""
    given = options.take("--recompute-modules", ["core_attn"])
    if not isinstance(given, (str, list, tuple)):
        raise InputError(
            f"--recompute-modules = {shortened(given)}: give some of {' '.join(OUTPUTS)}"
        )
    modules = given.replace(",", " ").split() if isinstance(given, str) else list(given)
    if modules == ["core_attn"]:
        return "selective"
    if not set(modules) <= set(OUTPUTS):
        options.unsaid.append(f"--recompute-modules = {' '.join(map(str, modules))}")
        return "selective" if "core_attn" in modules else "none"
    if not set(OUTPUTS[:2]) <= set(modules):
        options.unsaid.append(
            f"--recompute-modules = {' '.join(modules)}: a plan's 'outputs' are those of {' '.join(OUTPUTS)}, "
            "as far as the model has them"
        )
    return "outputs"


def _read_numbers(options: Options, fields: Settings) -> None:
    """The precision and the bytes of a gradient."""
    half = "bf16" if options.switch("--bf16") else "fp32"
    half = "fp16" if options.switch("--fp16") else half
    recipes = {"delayed": "fp8", "tensorwise": "fp8-current", "mxfp8": "fp8-mx"}
    eighth = options.choice("--fp8-recipe", recipes, "fp8")
    in_eight_bits = options.choice("--fp8-format", {"hybrid": True, "e4m3": True}, False)
    older = [options.switch(flag) for flag in ("--fp8-hybrid", "--fp8-e4m3")]
    in_eight_bits = in_eight_bits or any(older)
    fields["precision"] = eighth if in_eight_bits else half
    if options.choice("--fp4-format", {"e2m1": True}, False):
        fields["precision"] = options.choice("--fp4-recipe", {"nvfp4": "fp4"}, "fp4")
    fields["fp8_param_gather"] = options.switch("--fp8-param-gather")
    fuser = options.switch("--use-transformer-engine-op-fuser")
    fields["fused_experts"] = fuser and fields["precision"] == "fp8-mx"
    fields["fp8_head"] = options.switch("--fp8-output-proj") and fields["precision"] == "fp8-mx"
    if options.switch("--accumulate-allreduce-grads-in-fp32"):
        fields["gradient_bytes"] = 4
    if options.switch("--grad-reduce-in-bf16"):
        fields["gradient_bytes"] = 2
    kinds = {"fp32": 4, "bf16": 2, "fp16": 2}
    moments = [options.choice(f"--exp-avg{sq}-dtype", kinds, 4) for sq in ("", "-sq")]
    fields["moment_bytes"] = max(moments)
    options.switch("--use-precision-aware-optimizer")  # which --exp-avg-dtype needs
    if moments[0] != moments[1]:
        options.unsaid.append("--exp-avg-dtype and --exp-avg-sq-dtype of different sizes")
    bucket = options.whole("--ddp-bucket-size")
    if bucket is not None:
        each = fields.get("gradient_bytes", 2 if fields["precision"] == "fp16" else 4)
        fields["bucket_bytes"] = bucket * each


def written(plan: Plan) -> Settings:
    """{flag: value} of a plan; True for a flag without a value."""
    reduced = {2: "--grad-reduce-in-bf16", 4: "--accumulate-allreduce-grads-in-fp32"}
    sharded = {1: "--use-distributed-optimizer", 2: "--use-megatron-fsdp", 3: "--use-megatron-fsdp"}
    strategy = {stage: text for text, stage in SHARDED.items()}
    kinds = {kind: text for text, kind in CP_KINDS.items()}
    flags: Settings = {
        "--tensor-model-parallel-size": plan.tp,
        "--pipeline-model-parallel-size": plan.pp,
        "--context-parallel-size": plan.cp,
        "--expert-model-parallel-size": plan.ep if plan.ep > 1 else None,
        "--expert-tensor-parallel-size": 1 if plan.spreads_experts else None,
        "--moe-token-dispatcher-type": DISPATCHERS[plan.dispatcher] if plan.ep > 1 else None,
        "--overlap-moe-expert-parallel-comm": plan.ep_overlap
        and (plan.pp == 1 or plan.schedule == "interleaved-1f1b"),
        "--micro-batch-size": plan.microbatch_size,
        "--global-batch-size": plan.global_batch,
        "--seq-length": plan.seq,
        "--cp-comm-type": kinds[plan.cp_kind] if plan.cp > 1 else None,
        **written_stages(plan),
        **_written_fsdp2(plan),
        ""
        if _is_fsdp2(plan)
        else sharded.get(plan.zero, "")
        if plan.optimizer != "muon"
        else "": True,
        "--optimizer": _written_optimizer(plan),
        "--data-parallel-sharding-strategy": strategy[plan.zero]
        if plan.zero > 1 and not _is_fsdp2(plan)
        else None,
        "--sequence-parallel": plan.sequence_parallel,
        "--recompute-granularity": GRANULARITIES.get(plan.recompute),
        "--recompute-modules": " ".join(OUTPUTS[:2]) if plan.recompute == "outputs" else None,
        "--recompute-method": "uniform" if plan.recompute == "full" else None,
        "--recompute-num-layers": 1 if plan.recompute == "full" else None,
        "--fp16": plan.precision == "fp16",
        "--bf16": plan.precision == "bf16" or plan.has_narrow_products,
        "--fp8-format": "hybrid" if plan.precision.startswith("fp8") else None,
        "--fp4-format": "e2m1" if plan.precision == "fp4" else None,
        "--fp8-recipe": {"fp8-current": "tensorwise", "fp8-mx": "mxfp8"}.get(plan.precision),
        "--fp8-param-gather": plan.fp8_param_gather,
        "--use-transformer-engine-op-fuser": plan.fused_experts,
        "--fp8-output-proj": plan.fp8_head,
        "--attention-backend": "unfused" if plan.attention == "unfused" else None,
        **dict(
            zip(("--cuda-graph-impl", "--cuda-graph-modules"), RECORDED.get(plan.cuda_graphs, ()))
        ),
        "--cross-entropy-loss-fusion": plan.compiled_loss,
        "--cross-entropy-fusion-impl": "te" if plan.compiled_loss else None,
        "--attention-dropout": None if plan.dropout else 0.0,
        "--hidden-dropout": None if plan.dropout else 0.0,
        "--overlap-grad-reduce": plan.dp_overlap,
        "--overlap-param-gather": plan.dp_overlap and plan.zero > 0,
        "--tp-comm-overlap": plan.tp_overlap == "pipelined",
        "--no-async-tensor-model-parallel-allreduce": plan.tp_overlap == "none",
        "--exp-avg-dtype": "bf16" if plan.moment_bytes == 2 else None,
        "--exp-avg-sq-dtype": "bf16" if plan.moment_bytes == 2 else None,
        "--use-precision-aware-optimizer": plan.moment_bytes == 2,
        "--ddp-bucket-size": plan.bucket_bytes // plan.gradient_bytes
        if plan.bucket_bytes
        else None,
        "--optimizer-cpu-offload": plan.offload == "optimizer",
        "--use-tp-pp-dp-mapping": plan.order == ORDERS[True],
    }
    if plan.gradient_bytes != (2 if plan.precision == "fp16" else 4):
        flags[reduced[plan.gradient_bytes]] = True
    if plan.hybrid:
        groups = plan.dp * plan.cp // plan.hybrid
        flags["--num-distributed-optimizer-instances"] = groups if groups > 1 else None
    given = {flag: value for flag, value in flags.items() if value is not None}
    return {flag: value for flag, value in given.items() if flag and value is not False}


def _is_fsdp2(plan: Plan) -> bool:
    """Whether torch's FSDP2 shards, which Megatron-LM has beside its own."""
    return plan.zero == 3 and plan.library == TORCH.name


def _written_fsdp2(plan: Plan) -> Settings:
    kept = "--torch-fsdp2-no-reshard-after-forward"
    return {"--use-torch-fsdp2": True, kept: not plan.reshard} if _is_fsdp2(plan) else {}


def _written_optimizer(plan: Plan) -> str | None:
    """The --optimizer of a plan; None for Adam, and for what Megatron-LM has not."""
    if plan.optimizer == "muon":
        return "dist_muon" if plan.zero else "muon"
    if plan.zero and not _is_fsdp2(plan):  # its distributed optimizer is Adam's
        return None
    return plan.optimizer if plan.optimizer in OPTIMIZERS and plan.optimizer != "adam" else None
