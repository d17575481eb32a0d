"""How a plan and a model go together: what ranks cannot be given equal parts of."""

from typing import TYPE_CHECKING

from simlab.errors import InputError, either, near, require_whole
from simlab.libraries import names_of

if TYPE_CHECKING:
    from simlab.spec.model import Model
    from simlab.spec.plan import Plan


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
    for field, value in (("fused_experts", True), ("cuda_graphs", "router")):
        if getattr(plan, field) == value and not any(
            model.of_kind(kind).experts for kind in model.counts
        ):
            raise InputError(f"{field} = {value!r}: {name} has no experts; leave it out")
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
                f"{field} = {value!r}: {modules} are not simulated with it; give library = {either(libraries)}, zero = 0 or 1, "
                "no ep_overlap and no offload but the optimizer's, or a model with mtp_layers = 0"
            )


def _check_layer(plan: "Plan", model: "Model", name: str, seq: int) -> None:
    """Raise `InputError` if a layer of `model`, whose layers are all alike, cannot be split."""
    cuts_experts = plan.etp if model.experts and not model.shared_experts else plan.tp
    attends, mamba = model.mixer == "attention", model.mixer == "mamba"
    cut = [("tp", plan.tp, "heads", model.heads)] * attends
    cut += [("tp", plan.tp, "state_groups", model.state_groups)] * mamba
    cut += [
        ("tp", plan.tp, "ffn", model.ffn),
        ("tp", cuts_experts, "expert_ffn", model.expert_width),
    ] * model.has_mlp
    for field, value, what, total in (*cut, ("cp", plan.cp, "seq", seq)):
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
    _check_one_part(plan, model, name)
    if attends and model.kv_heads % plan.tp and plan.tp % model.kv_heads:
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


def _check_one_part(plan: "Plan", model: "Model", name: str) -> None:
    """What is not simulated of layers with a state space, with one part only, or with latents of experts."""
    if plan.cp > 1 and model.mixer == "mamba":
        raise InputError(
            f"cp = {plan.cp}: {name}'s state spaces are not cut over sequences; give cp = 1"
        )
    if plan.recompute == "per-op" and (model.part_count < 2 or model.expert_rank):
        raise InputError(
            f"recompute = 'per-op': which products of {name}'s layers it computes again is not known; give "
            "'none', 'selective' or 'full'"
        )
    if plan.tp > 1 and model.expert_rank and not plan.spreads_experts:
        raise InputError(
            f"tp = {plan.tp}: {name}'s latents of experts are not cut by ranks that cut each expert; give etp = 1 or tp = 1"
        )


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
        libraries = either(names_of("exchanges_heads"))
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
