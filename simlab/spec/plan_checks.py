"""What a `Plan` may say: the choices of its fields, and how they go together."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from simlab.errors import InputError, did_you_mean, near, number, require_whole, shortened
from simlab.schedules import SCHEDULES
from simlab.spec.fields import FieldFacts
from simlab.spec.layout import check_expert_ranks, check_order
from simlab.spec.plan_libraries import check_library

if TYPE_CHECKING:
    from simlab.spec.plan import Plan

PRECISIONS = {
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 2,
    "fp8-current": 2,
    "fp8-mx": 2,
    "fp8-rowwise": 2,
    "fp4": 2,
}
"""{precision: bytes of a parameter, an activation or a number of a message}. fp8 and fp4 hold their
numbers in bf16 between matrix products."""

ATTENTIONS = ("flash", "flash-2", "flash-1", "flash-fp8", "unfused")
GRAPHS = ("none", "router", "parts", "whole")
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
    check_library(plan)
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
