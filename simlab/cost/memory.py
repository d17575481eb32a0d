"""What one stage holds on a rank: model states for good, activations per microbatch, buffers while an op runs."""

from typing import NamedTuple

from simlab.cost.kernels import sizes
from simlab.cost.parameters import stage_parameters, unit_parameters


class StateBytes(NamedTuple):
    """Bytes of a parameter's states, before ZeRO."""

    parameter: int
    gradient: int
    optimizer: int
    """Adam's two moments in fp32, and with 16-bit parameters an fp32 copy of those (ZeRO, Rajbhandari et al. 2020, section 3.1)."""


class StageMemory(NamedTuple):
    """Bytes on one rank."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    """Of one microbatch, from its forward to its backward."""
    buffers: float
    """Logits in fp32 and their gradient on the last stage; recomputed activations of a layer; of the largest neighbouring units (the
    embedding, layers, the head) what ZeRO-3 has gathered at once and their gradients, with ZeRO-2 the gradients of two."""


def state_bytes(plan):
    """`StateBytes` of `plan`. torch's mixed precision keeps parameters in fp32 and casts them where they are used; FSDP that keeps them
    gathered has them in 16 bits, and shards of them in fp32 (ZeRO-1 and 2)."""
    if plan.precision == "fp32" or (plan.library != "megatron" and (plan.zero in (0, 3) or plan.shards == 1)):
        return StateBytes(4, plan.gradient_bytes, 8)
    return StateBytes(plan.element_bytes, plan.gradient_bytes, 12)


def stage_memory(model, plan, layers, *, first=False, last=False):
    """`StageMemory` of a stage of `layers` layers under `plan`.

    States are shared out over `Plan.shards` ranks from the ZeRO stage on that shards them. Activations are Korthikanti et al.'s
    (2022, section 4). Leaves out: what the allocator wastes, the libraries' own workspaces (one to two GiB with NCCL).
    """
    count = stage_parameters(model, plan, layers, first=first, last=last)
    per_rank = [count / (plan.shards if plan.zero >= stage else 1) for stage in (3, 2, 1)]
    parameters, gradients, optimizer = (n * size for n, size in zip(per_rank, state_bytes(plan)))
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
        buffers += ((4 if plan.library == "megatron" else 8) + s.width) * logits
    if plan.zero >= 2 and plan.shards > 1:
        units = ["embedding"] * first + ["layer"] * layers + ["head"] * last
        units = [unit_parameters(model, plan, unit, first=first) for unit in units]
        at_once = 2 if plan.zero == 2 else 1 + plan.prefetch
        size = plan.gradient_bytes + (plan.element_bytes if plan.zero == 3 else 0)
        buffers += size * max(sum(units[n : n + at_once]) for n in range(len(units)))
    return StageMemory(parameters, gradients, optimizer, activations, buffers)


def layer_activations_bytes(model, plan, recompute):
    """Bytes that a layer keeps of a microbatch, on one rank. Per-op recomputation keeps the layer's input, q, v, attention's output, the
    MLP's first product and, with a gate, down's; with tensor parallelism also what two reduce-scatters (or all-reduces) left.

    With context parallelism by all-gather also the keys and values of all ranks, unless the whole layer is recomputed: 2 x tokens of the
    sequence x key and value heads x head size x element size, beside the rank's own, which are a part of the product. Left out: a kernel's
    own mask, if it wants one stored.
    """
    s, per_op, gathered = sizes(model, plan), recompute == "per-op", 0.0
    if plan.cp > 1 and plan.cp_kind == "all-gather" and recompute != "full":
        gathered = 2 * s.width * s.tokens * plan.cp * max(1, model.kv_heads // plan.tp) * model.head_size
    if per_op:
        columns = ((2 * model.heads + model.kv_heads) * model.head_size + model.ffn * max(1, model.experts_per_token)) / plan.tp
        rows = s.outside * (1 if plan.tp == 1 else 3) + s.tokens * model.hidden * model.gated_mlp
        return s.width * (s.tokens * columns + rows) + 4 * s.tokens * model.heads / plan.tp + gathered
    tensors = model.layer_activations(
        plan.microbatch_size, (plan.seq or model.seq) // plan.cp, tp=plan.tp, sequence_parallel=plan.sequence_parallel,
        recompute=recompute, flash=plan.attention != "unfused", dropout=plan.dropout,
    )  # fmt: skip
    if "scores" in tensors:
        tensors["scores"] *= plan.cp  # a rank's queries see all keys
    return sum(tensors.values()) * plan.element_bytes / 2 + gathered
