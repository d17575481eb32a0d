"""Which fields of a plan have no effect beside the others, so that a value of them is refused."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from simlab.errors import InputError, either
from simlab.libraries import names_of
from simlab.schedules import SCHEDULES
from simlab.spec.fields import FieldFacts

if TYPE_CHECKING:
    from simlab.spec.plan import Plan


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
        f"library = {either(names_of('compiles_loss'))}",
    ),
    Effect(
        "cuda_graphs",
        lambda plan: plan.library in names_of("records_launches"),
        ("library",),
        f"library = {either(names_of('records_launches'))}",
    ),
    Effect(
        "fused_experts",
        lambda plan: plan.precision == "fp8-mx",
        ("precision",),
        "precision = 'fp8-mx'",
    ),
    Effect(
        "fp8_head",
        lambda plan: plan.precision == "fp8-mx",
        ("precision",),
        "precision = 'fp8-mx'",
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
