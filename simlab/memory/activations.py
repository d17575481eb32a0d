"""What the forward of a layer leaves for its backward, in bytes on one rank."""

from collections.abc import Sequence

from simlab.layer.microbatch import plan_operations, share_of, sizes
from simlab.layer.operation import Operation, OperationKind
from simlab.layer.passes.context import gathering
from simlab.layer.passes.precision import cast
from simlab.layer.passes.recomputation import marked
from simlab.layer.passes.tensor import keeping_gathered, sums
from simlab.layer.saved import saved_bytes
from simlab.lowering.kernels import keeps_gathered
from simlab.spec.model import Model
from simlab.spec.plan import Plan

UNSCALED = ("dropout masks", "softmax statistics")
"""Tensors whose numbers have the same size in every precision: a byte, and four."""


def layer_activations_bytes(model: Model, plan: Plan, recompute: str) -> float:
    """Bytes that a layer keeps of a microbatch, on one rank. Leaves out: the statistics of norms
    (`statistics_bytes`), and a mask that a kernel wants stored."""
    return sum(layer_tensors(model, plan, recompute).values())


def layer_tensors(model: Model, plan: Plan, recompute: str) -> dict[str, float]:
    """{tensors: bytes} of what a layer keeps of a microbatch, on one rank.

    For the GPT kind it is what Korthikanti et al. 2022 (arXiv 2205.05198) count in section 4 and
    Table 2; besides, the keys and values of all ranks where context parallelism gathers them, the
    copies of tokens that experts read, and whole what library torch has gathered for a
    column-parallel product (`keeps_gathered`).
    """
    operations = keeping_operations(model, plan, recompute)
    return saved_bytes(operations, share_of(model, plan), plan.element_bytes)


def keeping_operations(model: Model, plan: Plan, recompute: str) -> list[Operation]:
    """The operations of a layer with what each of them saves on a rank of `plan`, and what of it is
    made again."""
    operations = saving(plan_operations(model, plan), plan)
    sent = _sent(operations, plan) if recompute == "per-op" else ()
    return marked(operations, recompute, sent=sent)


def saving(operations: Sequence[Operation], plan: Plan) -> list[Operation]:
    """The operations of a unit, with what they save on a rank of `plan` without recomputation."""
    operations = [*operations]
    if keeps_gathered(plan):
        operations = keeping_gathered(operations, spreads_experts=plan.spreads_experts)
    if plan.cp > 1 and plan.cp_kind == "all-gather":
        operations = gathering(operations, plan.cp)
    if keeps_casts(plan):
        operations = cast(operations, plan.cast_bytes, copies=plan.habits.keeps_eight_bit_inputs)
    return operations


def _sent(operations: Sequence[Operation], plan: Plan) -> set[str]:
    """The names of tensors that come from other ranks: copies of tokens, and sums."""
    found = set[str]()
    for its, partial in zip(operations, sums(operations, spreads_experts=plan.spreads_experts)):
        if its.kind is OperationKind.PERMUTE and plan.ep > 1:
            found.add(its.makes[0].name)
        if partial and plan.tp > 1:
            found.add(its.reads[-1].name)
    return found


def keeps_casts(plan: Plan) -> bool:
    """Whether the inputs of a layer's products are kept as they were cast. Transformer Engine, which
    Megatron-LM uses for fp8 and fp4, saves the cast of an input for the weight's gradient
    (transformer_engine/pytorch/module/linear.py, and grouped_linear.py for experts). Attention's result is kept in both forms, for its
    own backward is in 16 bits. torch's float8 (torchao, float8_linear.py) keeps the 16-bit input
    and casts it again, but where it is cast before it is gathered (float8_tensor_parallel.py)."""
    return plan.sends_casts and (plan.habits.keeps_eight_bit_inputs or keeps_gathered(plan))


def statistics_bytes(model: Model, plan: Plan) -> float:
    """What a norm keeps of each token in fp32: LayerNorm the mean and the deviation, RMSNorm the
    root of the mean square."""
    s = sizes(model, plan)
    return 4 * (1 + model.has_bias("norm")) * s.outside / model.hidden
