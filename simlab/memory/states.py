"""Bytes of a parameter's states under a plan, before ZeRO divides them."""

from typing import NamedTuple

from simlab.lowering.zero import gathers_updated
from simlab.spec.plan import Plan


class StateBytes(NamedTuple):
    """Bytes of a parameter's states, before ZeRO."""

    parameter: int
    gradient: int
    optimizer: int
    """Adam's two moments, and with 16-bit parameters an fp32 copy of those (ZeRO,
    Rajbhandari et al. 2020, section 3.1)."""


def state_bytes(plan: Plan) -> StateBytes:
    """`StateBytes` of `plan`. torch's mixed precision keeps parameters in fp32 and casts them where
    they are used; FSDP that keeps them gathered has them in 16 bits, and shards of them in fp32
    (ZeRO-1 and 2). A gradient of an fp32 parameter is fp32, in whatever type it was reduced."""
    if plan.precision == "fp32":
        return StateBytes(4, plan.gradient_bytes, 2 * plan.moment_bytes)
    if not plan.has_flat_gradients and not gathers_updated(plan):
        return StateBytes(4, 4, 8)
    return StateBytes(plan.element_bytes, plan.gradient_bytes, 4 + 2 * plan.moment_bytes)
