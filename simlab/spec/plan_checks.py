"""What a `Plan` may say: the choices of its fields, and how they go together and with a model."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from simlab.errors import InputError, did_you_mean, near, number, require_whole, shortened
from simlab.libraries import names_of
from simlab.optimizers import OPTIMIZERS
from simlab.schedules import SCHEDULES
from simlab.spec.fields import FieldFacts
from simlab.spec.layout import check_expert_ranks, check_order

if TYPE_CHECKING:
    from simlab.spec.model import Model
    from simlab.spec.plan import Plan

PRECISIONS = {
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 2,
    "fp8-current": 2,
    "fp8-mx": 2,
    "fp8-rowwise": 2,
}
"""{precision: bytes of a parameter, an activation or a number of a message}. fp8 holds its numbers
in bf16 between matrix products."""

ATTENTIONS = ("flash", "flash-2", "flash-1", "unfused")
TP_OVERLAPS = ("none", "weight-grad", "pipelined")
CP_LAYOUTS = ("zigzag", "contiguous")
CP_KINDS = ("ring", "all-to-all", "all-gather")
DISPATCHERS = ("all-to-all", "once-a-node")
OFFLOADS = ("none", "optimizer", "parameters", "activations")
OFFLOAD_TARGETS = ("host", "nvme")
ZERO_STAGES = (0, 1, 2, 3)
LEAST = {"hybrid": 0, "prefetch": 0}
"""{field of whole numbers: its least value, where that is not 1}."""
MOST_LOAD = 1000
"""The most tokens of a rank over the mean."""


def check_fields(plan: "Plan", fields: Iterable[FieldFacts]) -> None:
    """Raise `InputError` if the value of one of `fields` is not of its kind."""
    for field in fields:
        value = getattr(plan, field.name)
        if value is None and field.default is None:
            continue
        if field.choices is not None:
            _check_choice(field, value)
        elif field.type is bool:
            if not isinstance(value, bool):
                raise InputError(f"{field.name} = {shortened(value)}: give True or False")
        elif field.type in (int, int | None):
            require_whole(field.name, value, LEAST.get(field.name, 1))
        elif field.type is float:
            if not number(value) or not 1 <= value <= MOST_LOAD:
                raise InputError(
                    f"{field.name} = {shortened(value)}: give a number from 1 to {MOST_LOAD}"
                )
        elif field.type is str and not isinstance(value, str):
            raise InputError(
                f"{field.name} = {shortened(value)}: give a text, such as {field.default!r}"
            )


def _check_choice(field: FieldFacts, value: Any) -> None:
    choices = field.choices or ()
    if type(value) is field.type and value in choices:
        return
    text, hint = ", ".join(map(str, choices)), ""
    if field.type is str:
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        if field.name == "schedule":
            raise InputError(f"unknown schedule {shortened(value)}{hint or ';'} there is {text}")
    raise InputError(f"{field.name} = {shortened(value)}: give one of {text}{hint}")


def check_combination(plan: "Plan") -> None:
    """Raise `InputError` if fields of `plan`, each valid by itself, do not go together."""
    schedule = SCHEDULES[plan.schedule]
    if plan.chunks != schedule.chunks and not schedule.chunked:
        chunked = [name for name, its in SCHEDULES.items() if its.chunked]
        raise InputError(
            f"chunks = {plan.chunks!r}: {plan.schedule} has {schedule.chunks}, without a choice; "
            f"leave it out, or take one of {', '.join(chunked)}"
        )
    # blocks of scores are joined inside the fused kernel, as in Megatron-LM
    if plan.cp > 1 and plan.attention == "unfused":
        raise InputError(
            f"cp = {plan.cp} with attention = 'unfused': give a fused one, {', '.join(ATTENTIONS[:-1])}"
        )
    check_order(tuple(plan.order.split("-")))
    _check_gradient_bytes(plan)
    _check_library(plan)
    _check_optimizer(plan)
    _check_narrow_states(plan)
    if plan.hybrid and (plan.dp * plan.cp) % plan.hybrid:
        raise InputError(
            f"hybrid = {plan.hybrid} does not divide dp x cp = {plan.dp * plan.cp}; "
            f"{near(plan.hybrid, plan.dp * plan.cp)}"
        )
    if plan.copies > 1:
        _check_two_ways(plan)
    _check_expert_parallel(plan)


def _check_two_ways(plan: "Plan") -> None:
    """A stage on two ranks, which have run different microbatches when an op is over."""
    name = plan.schedule
    if plan.pp % 2:
        raise InputError(
            f"pp = {plan.pp} with schedule = {name!r}, which begins at both ends: give an even pp, such as {plan.pp + 1}"
        )
    if plan.zero > 1:
        raise InputError(
            f"zero = {plan.zero} with schedule = {name!r}: the two ranks of a stage share the optimizer's states only; "
            "give zero = 0 or 1"
        )
    if plan.hybrid:
        raise InputError(
            f"hybrid = {plan.hybrid} with schedule = {name!r}: shards and copies of a stage are not simulated "
            "together; leave one out"
        )


def _check_expert_parallel(plan: "Plan") -> None:
    check_expert_ranks(plan)
    if plan.spreads_experts and not plan.sequence_parallel:
        raise InputError(
            "etp = 1 with sequence_parallel = False: tensor-parallel ranks would all send the same tokens; "
            f"give sequence_parallel = True, or etp = {plan.tp}"
        )
    if plan.ep == 1:
        return
    if plan.hybrid:
        raise InputError(
            f"ep = {plan.ep} with hybrid = {plan.hybrid}: shard groups with replicas and experts on "
            "ranks of their own are not simulated together; leave one out"
        )
    if plan.offload in ("optimizer", "parameters"):
        raise InputError(
            f"ep = {plan.ep} with offload = {plan.offload!r}: states of experts on ranks of their own "
            "are not simulated on the host; give offload = 'activations', or leave one out"
        )
    if plan.ep_overlap and (why := refusal_beside(plan)):
        raise InputError(why)


def refusal_beside(plan: "Plan") -> str:
    """Why no forward of `plan` runs side by side with a backward: its ranks do not have both at hand, or
    what else comes between layers is not simulated with it; '' if it can."""
    beside = ", ".join(repr(name) for name, its in SCHEDULES.items() if plan.pp <= its.beside)
    valid = beside + ", or pp = 1" * (plan.pp > 1)
    refused = (
        (plan.pp > SCHEDULES[plan.schedule].beside, "schedule", valid),
        (plan.zero == 3, "zero", "0, 1 or 2"),
        (plan.offload != "none", "offload", "'none'"),
        (plan.recompute == "full", "recompute", "another one"),
    )
    for wrong, name, valid in refused:
        if wrong:
            return (
                f"ep_overlap with {name} = {getattr(plan, name)!r}: no forward runs side by side with "
                f"a backward there; give {name} = {valid}, or leave ep_overlap out"
            )
    return ""


def _check_gradient_bytes(plan: "Plan") -> None:
    value = plan.gradient_bytes
    if value not in (None, 2, 4):
        raise InputError(
            f"gradient_bytes = {value}: give 2 or 4, the bytes of a number in 16 or 32 bits"
        )
    if value == 2 and plan.precision == "fp32":
        raise InputError("gradient_bytes = 2 with precision = 'fp32': give 4, or leave it out")


def _check_optimizer(plan: "Plan") -> None:
    """What no library has with an optimizer."""
    its = OPTIMIZERS[plan.optimizer]
    given = f"optimizer = {plan.optimizer!r}"
    if its.libraries is not None and plan.library not in its.libraries:
        raise InputError(
            f"{given} with library = {plan.library!r}, which has none: give library = {_or(its.libraries)}"
        )
    if plan.zero > (most := its.most_zero(plan.library)):
        stages = " or ".join(map(str, range(most + 1)))
        raise InputError(f"{given} with zero = {plan.zero}: {its.because}; give zero = {stages}")
    for name, values in its.without.items():
        if getattr(plan, name) in values:
            raise InputError(
                f"{given} with {name} = {getattr(plan, name)!r}: no library has both; leave one out"
            )
    if its.whole and plan.hybrid:
        raise InputError(
            f"{given} with hybrid = {plan.hybrid}: which rank has which matrix is not known there; "
            "leave one out"
        )


def _check_narrow_states(plan: "Plan") -> None:
    """Moments in 16 bits and parameters in 8."""
    if plan.moment_bytes not in (2, 4):
        raise InputError(
            f"moment_bytes = {plan.moment_bytes}: give 2 or 4, the bytes of a number in 16 or 32 bits"
        )
    if plan.moment_bytes == 2:
        _check_distributed(plan, "moment_bytes", "moments in 16 bits", 4)
    if plan.fp8_param_gather:
        if not plan.sends_eight_bits:
            raise InputError(
                f"fp8_param_gather with precision = {plan.precision!r}: give precision = 'fp8', or leave it out"
            )
        _check_distributed(plan, "fp8_param_gather", "parameters in 8 bits", False)


def _check_distributed(plan: "Plan", field: str, kept: str, without: Any) -> None:
    """Raise `InputError` unless Megatron-LM's distributed optimizer, or its FSDP, runs on GPUs."""
    given = f"{field} = {getattr(plan, field)}"
    if plan.zero == 0:
        raise InputError(
            f"{given} with zero = 0: Megatron-LM keeps {kept} with its distributed optimizer only; "
            f"give zero = 1, or {field} = {without}"
        )
    for name, refused, valid in (
        ("library", not plan.habits.keeps_narrow_states, _or(names_of("keeps_narrow_states"))),
        ("offload", plan.offload in ("optimizer", "parameters"), "'none'"),
    ):
        if refused:
            raise InputError(
                f"{given} with {name} = {getattr(plan, name)!r}: Megatron-LM keeps {kept} on a GPU; give "
                f"{name} = {valid}, or {field} = {without}"
            )


def _check_library(plan: "Plan") -> None:
    library = plan.habits
    if plan.recompute == "outputs" != library.own_recomputation:
        raise InputError(
            f"recompute = 'outputs' with library = {plan.library!r}: it is Megatron-LM's, so give library = 'megatron', or "
            "another recompute"
        )
    if plan.precision == "fp8-rowwise" and not library.scales_rows:
        raise InputError(
            f"precision = 'fp8-rowwise' with library = {plan.library!r}: it is torchao's, so give library = "
            f"{_or(names_of('scales_rows'))}"
        )
    if plan.precision in ("fp8-current", "fp8-mx") and not library.keeps_eight_bit_copies:
        raise InputError(
            f"precision = {plan.precision!r} with library = {plan.library!r}: it is Transformer Engine's, so give library = "
            f"{_or(names_of('keeps_eight_bit_copies'))}"
        )
    if plan.zero > library.most_zero:
        raise InputError(
            f"zero = {plan.zero} with library = {plan.library!r}: it has ZeRO-{library.most_zero} at most"
        )
    if plan.has_eight_bits and not library.has_eight_bits:
        raise InputError(
            f"precision = {plan.precision!r} with library = {plan.library!r}: give bf16, fp16 or fp32"
        )


def _or(names: Iterable[str]) -> str:
    """'a' or 'b'."""
    return " or ".join(map(repr, names))


class Effect(NamedTuple):
    """When a field that is not at its default changes anything."""

    field: str
    has_effect: Callable[["Plan"], bool]
    beside: tuple[str, ...]
    """The fields that decide."""
    wanted: str
    """Their values with which the field has an effect, in words."""


EFFECTS = (
    Effect("hybrid", lambda plan: plan.zero > 0, ("zero",), "zero = 1, 2 or 3"),
    Effect("reshard", lambda plan: plan.zero == 3, ("zero",), "zero = 3"),
    Effect(
        "prefetch",
        lambda plan: plan.zero == 3 or plan.offload == "parameters",
        ("zero", "offload"),
        "zero = 3 or offload = 'parameters'",
    ),
    Effect(
        "offload_to",
        lambda plan: plan.offload != "none",
        ("offload",),
        "offload = 'optimizer', 'parameters' or 'activations'",
    ),
    Effect(
        "compiled_loss",
        lambda plan: plan.library in names_of("compiles_loss"),
        ("library",),
        f"library = {_or(names_of('compiles_loss'))}",
    ),
    Effect("cp_kind", lambda plan: plan.cp > 1, ("cp",), "cp of 2 or more"),
    Effect("cp_layout", lambda plan: plan.cp > 1, ("cp",), "cp of 2 or more"),
    Effect(
        "cp_layout",
        lambda plan: plan.cp_kind != "all-to-all",
        ("cp_kind",),
        "cp_kind = 'ring' or 'all-gather'",
    ),
    Effect("dispatcher", lambda plan: plan.ep > 1, ("ep",), "ep of 2 or more"),
    Effect("ep_overlap", lambda plan: plan.ep > 1, ("ep",), "ep of 2 or more"),
    Effect(
        "ep_overlap",
        lambda plan: plan.microbatches > 1,
        ("microbatches",),
        "microbatches of 2 or more",
    ),
    Effect("expert_load", lambda plan: plan.ep > 1, ("ep",), "ep of 2 or more"),
    Effect("tp_overlap", lambda plan: plan.tp > 1, ("tp",), "tp of 2 or more"),
    Effect(
        "bucket_bytes",
        lambda plan: plan.dp * plan.cp > 1 or SCHEDULES[plan.schedule].copies > 1,
        ("dp", "cp"),
        "dp or cp of 2 or more, or schedule = 'dualpipe'",
    ),
    # ZeRO-2 and 3 reduce and gather unit by unit
    Effect("bucket_bytes", lambda plan: plan.zero < 2, ("zero",), "zero = 0 or 1"),
)


def check_effects(plan: "Plan", fields: Iterable[FieldFacts]) -> None:
    """Raise `InputError` if a field of `plan` that is not at its default has no effect beside the
    others."""
    defaults = {field.name: field.default for field in fields}
    for effect in EFFECTS:
        value = getattr(plan, effect.field)
        if value != defaults[effect.field] and not effect.has_effect(plan):
            beside = " and ".join(f"{name} = {getattr(plan, name)!r}" for name in effect.beside)
            raise InputError(
                f"{effect.field} = {value!r} has no effect with {beside}: "
                f"leave it out, or give {effect.wanted}"
            )


def check_model(plan: "Plan", model: "Model", gpus: int | None = None) -> None:
    """Raise `InputError` if `model` cannot be split as `plan` says, or if the plan does not take
    exactly `gpus`."""
    _check_gpus(plan, gpus)
    name, seq = model.name or "the model", plan.seq or model.seq
    if 0 < model.positions < seq:
        raise InputError(
            f"seq = {seq} is more than {name}'s {model.positions} positions: give at most those"
        )
    _check_modules(plan, model, name)
    for kind in model.counts:
        _check_layer(plan, model.of_kind(kind), name, seq)
    if plan.ep > 1 and not any(model.of_kind(kind).experts for kind in model.counts):
        raise InputError(f"ep = {plan.ep}: {name} has no experts; give ep = 1")
    plan.layers_of_stages(model.layers)


def _check_modules(plan: "Plan", model: "Model", name: str) -> None:
    """Modules that predict one more token are simulated as Megatron-LM has them, without those of its ways
    for which it is not known what becomes of a table and a head that several units use."""
    libraries, modules = (
        names_of("predicts_more_tokens"),
        f"{name}'s mtp_layers = {model.mtp_layers}",
    )
    for field, value, does in (
        ("library", plan.library, plan.library in libraries),
        ("zero", plan.zero, plan.zero < 2),
        ("ep_overlap", plan.ep_overlap, not plan.ep_overlap),
        ("offload", plan.offload, plan.offload in ("none", "optimizer")),
    ):
        if model.mtp_layers and not does:
            raise InputError(
                f"{field} = {value!r}: {modules} are not simulated with it; give library = {_or(libraries)}, zero = 0 or 1, "
                "no ep_overlap and no offload but the optimizer's, or a model with mtp_layers = 0"
            )


def _check_layer(plan: "Plan", model: "Model", name: str, seq: int) -> None:
    """Raise `InputError` if a layer of `model`, whose layers are all alike, cannot be split."""
    cuts_experts = plan.etp if model.experts and not model.shared_experts else plan.tp
    for field, value, what, total in (
        ("tp", plan.tp, "heads", model.heads),
        ("tp", plan.tp, "ffn", model.ffn),
        ("tp", cuts_experts, "expert_ffn", model.expert_width),
        ("cp", plan.cp, "seq", seq),
    ):
        if total % value:
            raise InputError(
                f"{field} = {value} does not divide {name}'s {what} = {total}; {near(value, total)}"
            )
    _check_context_parallel(plan, model, name, seq)
    if plan.sequence_parallel and seq // plan.cp % plan.tp:
        raise InputError(
            f"tp = {plan.tp} with sequence_parallel does not divide the {seq // plan.cp} tokens that "
            f"cp = {plan.cp} leaves of {name}'s seq = {seq}; {near(plan.tp, seq // plan.cp)}"
        )
    if model.kv_heads % plan.tp and plan.tp % model.kv_heads:
        raise InputError(
            f"tp = {plan.tp} neither divides {name}'s kv_heads = {model.kv_heads} nor is a multiple of them; "
            f"{near(plan.tp, model.kv_heads)}"
        )
    _check_latent_attention(plan, model, name)
    if plan.ep > 1 and model.experts % plan.ep:
        raise InputError(
            f"ep = {plan.ep} does not divide {name}'s experts = {model.experts}; "
            f"{near(plan.ep, model.experts)}"
        )
    _check_window(plan, model, name, seq)


def _check_window(plan: "Plan", model: "Model", name: str, seq: int) -> None:
    """What of windows, of sinks, and of norms over all heads, is not cut over ranks: Transformer Engine has
    windows with all-gather and all-to-all, and sinks with all-to-all only (`attn_forward_func_with_cp` in
    transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py)."""
    if plan.cp > 1 and model.keys_met(seq) < seq and not model.window_slides:
        raise InputError(
            f"cp = {plan.cp}: {name}'s windows of {model.window} keys side by side are not cut over sequences; give cp = 1"
        )
    if plan.cp > 1 and model.keys_met(seq) < seq and plan.cp_kind == "ring":
        raise InputError(
            f"cp = {plan.cp}: no ring has {name}'s windows of {model.window} keys; give cp_kind = 'all-gather' or 'all-to-all'"
        )
    if plan.cp > 1 and model.sinks and plan.cp_kind != "all-to-all":
        raise InputError(
            f"cp = {plan.cp}: {name}'s sinks are cut over sequences by all-to-all only; give cp_kind = 'all-to-all'"
        )
    exchanges = (
        plan.habits.exchanges_heads and plan.sequence_parallel and plan.recompute != "per-op"
    )
    if (
        plan.tp > 1
        and model.qk_norm == "whole"
        and not (exchanges and model.kv_heads % plan.tp == 0)
    ):
        libraries = _or(names_of("exchanges_heads"))
        raise InputError(
            f"tp = {plan.tp}: {name}'s norm of all heads' queries is cut over ranks by library = {libraries} with "
            "sequence_parallel, whole key heads on each rank, and no recompute = 'per-op'; give those, or tp = 1"
        )


def _check_latent_attention(plan: "Plan", model: "Model", name: str) -> None:
    """Latent attention is not cut over sequences: what of it would be sent is not simulated."""
    if not model.kv_rank:
        return
    if plan.cp > 1:
        raise InputError(
            f"cp = {plan.cp}: {name}'s latent attention is not cut over sequences; give cp = 1"
        )
    if plan.recompute == "per-op":
        raise InputError(
            f"recompute = 'per-op': which products of {name}'s latent attention it computes again is "
            "not known; give 'none', 'selective' or 'full'"
        )


def _check_gpus(plan: "Plan", gpus: int | None) -> None:
    if gpus is None:
        return
    require_whole("gpus", gpus)
    if plan.gpus == gpus:
        return
    total = f"dp x tp x pp x cp = {plan.dp} x {plan.tp} x {plan.pp} x {plan.cp} = {plan.gpus}"
    rest = plan.tp * plan.pp * plan.cp
    hint = (
        f"dp = {gpus // rest} would use them all"
        if gpus % rest == 0
        else f"tp x pp x cp = {rest} does not divide them; {near(rest, gpus)}"
    )
    raise InputError(f"{total}, but there are {gpus} GPUs: {hint}")


def _check_context_parallel(plan: "Plan", model: "Model", name: str, seq: int) -> None:
    if plan.cp == 1:
        return
    if plan.cp_kind == "all-to-all":
        if model.heads % (plan.tp * plan.cp):
            own = model.heads // plan.tp
            raise InputError(
                f"cp = {plan.cp} all-to-all does not divide the {own} heads that tp = {plan.tp} leaves of "
                f"{name}'s {model.heads}; {near(plan.cp, own)}, or cp_kind = 'ring' or 'all-gather'"
            )
    elif plan.cp_layout == "zigzag" and seq % (2 * plan.cp):
        raise InputError(
            f"2 cp = {2 * plan.cp} zigzag chunks do not divide seq = {seq}; {near(2 * plan.cp, seq)}"
        )
