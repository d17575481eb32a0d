"""Bytes of a parameter's states under a plan, before ZeRO divides them."""

from typing import NamedTuple

from simlab.layer.parameters import Layers, expert_parameters, product_parameters
from simlab.lowering.zero import SHARDED_FROM, gathers_updated, held_of
from simlab.optimizers import ONE, OPTIMIZERS, Matrix
from simlab.spec.model import Model
from simlab.spec.plan import Plan


class StateBytes(NamedTuple):
    """Bytes of a parameter's states, before ZeRO."""

    parameter: int
    gradient: int
    copy: int
    """An fp32 copy of 16-bit parameters (ZeRO, Rajbhandari et al. 2020, section 3.1)."""


def state_bytes(plan: Plan) -> StateBytes:
    """`StateBytes` of `plan`. torch's mixed precision keeps parameters in fp32 and casts them where
    they are used; FSDP that keeps them gathered has them in 16 bits, and shards of them in fp32
    (ZeRO-1 and 2). A gradient of an fp32 parameter is fp32, in whatever type it was reduced."""
    if plan.precision == "fp32":
        return StateBytes(4, plan.gradient_bytes, 0)
    if not plan.habits.has_flat_gradients and not gathers_updated(plan):
        return StateBytes(4, 4, 0)
    return StateBytes(plan.element_bytes, plan.gradient_bytes, 4)


def optimizer_bytes(plan: Plan, parameter: Matrix = ONE) -> float:
    """Bytes that the optimizer keeps of a parameter, before ZeRO, or of each number of one."""
    kept = OPTIMIZERS[plan.optimizer].kept(parameter)
    return state_bytes(plan).copy * parameter.numbers + plan.moment_bytes * kept


def eight_bit_bytes(model: Model, plan: Plan, layers: Layers) -> float:
    """By how many bytes the parameters of `layers` take more on a rank where Transformer
    Engine computes their products in 8 bits, or in 4, than in 16.

    Each weight is there in two forms of `Plan.cast_bytes` a number, as it is and transposed: Hopper multiplies
    such matrices in one layout only (`with_transpose` in Transformer Engine's
    pytorch/csrc/quantizer.cpp), and MXFP8 and NVFP4 have scales along either dimension. A module keeps both
    from a step's first microbatch on, beside the parameter in 16 bits (`quantize_weight` in
    pytorch/module/base.py, `_fp8_workspaces` in pytorch/module/linear.py; Megatron-Core says
    `is_first_microbatch` in core/extensions/transformer_engine.py), and ZeRO-3 does not shard them.
    With `Plan.fp8_param_gather` they are all that there is, the parameter and its transpose
    (`post_all_gather_processing`), as many bytes as in 16 bits; ZeRO-3 keeps a byte of its shard,
    and frees transposes with what was gathered (`release_params_fp8_transpose_cache` in
    Megatron-FSDP).

    Leaves out scales (1/32 of a byte for each number of either form in MXFP8), tensor-wise scaling
    on Blackwell, which needs no transpose and a byte less (`nvte_is_non_tn_fp8_gemm_supported`), and
    layers that a recipe leaves in 16 bits (--first-last-layers-bf16).
    """
    if not plan.sends_casts or not plan.habits.keeps_eight_bit_copies:
        return 0.0
    weights = product_parameters(model, plan, layers)
    if not plan.fp8_param_gather:
        return 2 * plan.cast_bytes * weights
    if plan.zero < SHARDED_FROM["parameters"]:
        return 0.0
    experts = min(weights, expert_parameters(model, plan, layers))
    return -held_of(plan, "parameters", weights, experts)
