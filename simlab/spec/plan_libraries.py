"""What no library has: fields of a plan that do not go together with its library or its optimizer."""

from typing import TYPE_CHECKING, Any

from simlab.errors import InputError, either
from simlab.libraries import names_of
from simlab.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from simlab.spec.plan import Plan


def check_library(plan: "Plan") -> None:
    """Raise `InputError` if the library of `plan` does not have what its other fields say."""
    _check_library(plan)
    _check_optimizer(plan)
    _check_narrow_states(plan)


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
            f"{either(names_of('scales_rows'))}"
        )
    if plan.precision in ("fp8-current", "fp8-mx", "fp4") and not library.keeps_eight_bit_copies:
        raise InputError(
            f"precision = {plan.precision!r} with library = {plan.library!r}: it is Transformer Engine's, so give library = "
            f"{either(names_of('keeps_eight_bit_copies'))}"
        )
    if plan.attention == "flash-fp8" and plan.precision != "fp8-mx":
        raise InputError(
            f"attention = 'flash-fp8' with precision = {plan.precision!r}: give precision = 'fp8-mx', or another attention"
        )
    if plan.zero > library.most_zero:
        raise InputError(
            f"zero = {plan.zero} with library = {plan.library!r}: it has ZeRO-{library.most_zero} at most"
        )
    if plan.has_narrow_products and not library.has_eight_bits:
        raise InputError(
            f"precision = {plan.precision!r} with library = {plan.library!r}: give bf16, fp16 or fp32"
        )


def _check_optimizer(plan: "Plan") -> None:
    """What no library has with an optimizer."""
    its = OPTIMIZERS[plan.optimizer]
    given = f"optimizer = {plan.optimizer!r}"
    if its.libraries is not None and plan.library not in its.libraries:
        raise InputError(
            f"{given} with library = {plan.library!r}, which has none: give library = {either(its.libraries)}"
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
        if not plan.sends_casts or plan.precision == "fp4":
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
        ("library", not plan.habits.keeps_narrow_states, either(names_of("keeps_narrow_states"))),
        ("offload", plan.offload in ("optimizer", "parameters"), "'none'"),
    ):
        if refused:
            raise InputError(
                f"{given} with {name} = {getattr(plan, name)!r}: Megatron-LM keeps {kept} on a GPU; give "
                f"{name} = {valid}, or {field} = {without}"
            )
