"""What one stage holds on a rank: model states for good, activations per microbatch, buffers while an op runs."""

from typing import NamedTuple

from simlab.cost.kernels import sizes
from simlab.schedules import V_SHAPED

OPTIMIZER_STATE_BYTES = {"fp32": 8, "fp16": 12, "bf16": 12, "fp8": 12}
"""Adam's two moments in fp32, and with 16-bit parameters an fp32 copy of those (ZeRO, Rajbhandari et al. 2020, section 3.1)."""


class StageMemory(NamedTuple):
    """Bytes on one rank."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    """Of one microbatch, from its forward to its backward."""
    buffers: float
    """Logits in fp32 and their gradient on the last stage; gathered layers with ZeRO-3; recomputed activations of a layer."""


def stage_parameters(model, plan, layers, *, first=False, last=False):
    """Parameters of a stage on one tensor-parallel rank, before ZeRO: its layers (norms, router and what is added to a sum over the ranks
    whole), embedding, head.

    A tied head on another rank than the embedding is a copy of it; V-shaped schedules have both on one.
    """
    parts = model.layer_parameters
    whole = parts["router"] + parts["norms"] + 2 * model.bias * model.hidden
    count = layers * ((sum(parts.values()) - whole) / plan.tp + whole)
    if first:
        count += (model.vocab / plan.tp + model.positions) * model.hidden
    if last:
        count += model.hidden * (1 + model.bias)
        if not (model.tied_head and (first or plan.schedule in V_SHAPED)):
            count += model.vocab / plan.tp * model.hidden
    return count


def partial_parameters(model, plan, layers, *, first=False, last=False):
    """Of `stage_parameters`, those that every tensor-parallel rank has whole but that meet only its tokens under sequence parallelism, so
    that their gradients are to be summed over tp: norms, and biases that are added after a scatter."""
    if not plan.sequence_parallel:
        return 0
    return layers * (model.layer_parameters["norms"] + 2 * model.bias * model.hidden) + last * model.hidden * (1 + model.bias)


def stage_memory(model, plan, layers, *, first=False, last=False):
    """`StageMemory` of a stage of `layers` layers under `plan`.

    States are shared out over `Plan.shards` ranks from the ZeRO stage on that shards them. Activations are Korthikanti et al.'s
    (2022, section 4). Leaves out: what the allocator wastes, the libraries' own workspaces (one to two GiB with NCCL).
    """
    count = stage_parameters(model, plan, layers, first=first, last=last)
    per_rank = [count / (plan.shards if plan.zero >= stage else 1) for stage in (3, 2, 1)]
    parameters, gradients, optimizer = (
        n * size for n, size in zip(per_rank, (plan.element_bytes, plan.gradient_bytes, OPTIMIZER_STATE_BYTES[plan.precision]))
    )
    if plan.offload in ("optimizer", "parameters"):
        optimizer = 0.0
    if plan.offload == "parameters":
        parameters = 0.0
    layer = layer_activations_bytes(model, plan, plan.recompute)
    whole_layer = layer_activations_bytes(model, plan, "none")
    s = sizes(model, plan)
    activations, buffers = layers * layer, whole_layer - layer if plan.recompute in ("full", "per-op") else 0.0
    if plan.offload == "activations":
        activations, buffers = 0.0, max(buffers, 2 * layer)
    if last:
        logits = s.tokens * model.vocab / plan.tp
        activations += 2 * s.width * s.outside
        buffers += (4 + s.width) * logits
    if plan.zero >= 3 and plan.shards > 1:
        buffers += (1 + plan.prefetch) * stage_parameters(model, plan, 1) * (plan.element_bytes + plan.gradient_bytes)
    return StageMemory(parameters, gradients, optimizer, activations, buffers)


def layer_activations_bytes(model, plan, recompute):
    """Bytes that a layer keeps of a microbatch, on one rank. Per-op recomputation keeps the layer's input, attention's output and its
    inputs (q, k, v are the product that is kept) and the down projection's output, which is the next layer's input.

    With context parallelism by all-gather also the keys and values of all ranks, unless the whole layer is recomputed: 2 x tokens of the
    sequence x key and value heads x head size x element size, beside the rank's own, which are a part of the product. Left out: a kernel's
    own mask, if it wants one stored.
    """
    s, per_op, gathered = sizes(model, plan), recompute == "per-op", 0.0
    if plan.cp > 1 and plan.cp_kind == "all-gather" and recompute != "full":
        gathered = 2 * s.width * s.tokens * plan.cp * max(1, model.kv_heads // plan.tp) * model.head_size
    if per_op:
        heads = (2 * model.heads + 2 * model.kv_heads) * model.head_size / plan.tp
        return s.width * (2 * s.outside + s.tokens * heads) + 4 * s.tokens * model.heads / plan.tp + gathered
    tensors = model.layer_activations(
        plan.microbatch_size, (plan.seq or model.seq) // plan.cp, tp=plan.tp, sequence_parallel=plan.sequence_parallel,
        recompute=recompute, flash=plan.attention != "unfused", dropout=plan.dropout,
    )  # fmt: skip
    if "scores" in tensors:
        tensors["scores"] *= plan.cp  # a rank's queries see all keys
    return sum(tensors.values()) * plan.element_bytes / 2 + gathered
