"""What the optimizer's step takes: on the GPU, or with its states offloaded on the host."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simlab.cost.groups import host_sharers
from simlab.cost.roofline import memory_s
from simlab.layer.parameters import expert_parameters, stage_parameters
from simlab.lowering.zero import held_of, shards_of
from simlab.program import Program
from simlab.spec.model import Model
from simlab.spec.plan import Plan

if TYPE_CHECKING:
    from simlab.cost.stage_times import StageCost

TENSORS_A_LAYER = 12
"""Parameters (as tensors) of a layer with biases: two norms' two, four matrices' and their
biases."""

OPTIMIZER_BYTES = {"fp16": 58, "bf16": 44, "fp8": 44, "fp32": 40}
"""Read and written per parameter in a step of Adam. fp32: 28 (gradient, weight and two moments
read; three written), 4 for the gradients' norm, 8 to clip them. bf16: 2 more for the 16-bit weight,
2 to clear its gradient. fp16: its gradient copied to fp32 (6), unscaled and looked through for
infinities (8), too."""

NANOTRON_BYTES = 28, 16
"""nanotron's, of a parameter that a rank updates (and 2 more for a 16-bit weight), and of each that it
holds, sharded or not: for the gradients' norm 4, to clip them 8 and to clear them 4
(nanotron/optim/clip_grads.py, gradient_accumulator.py)."""

GATHERED_BYTES, GATHERED_TENSORS_A_LAYER = 12, 6
"""With ZeRO-1 nanotron gathers lists: the bytes that it copies for each parameter of 16 bits (into a
buffer for each rank, torch's from one buffer to these, and back into the parameters), and how many
tensors a layer has. The last copy is an op for each tensor and rank (`all_gather_coalesced` in
nanotron/distributed.py). The views that are made for it are left out."""

FOREACH_BYTES = 92
"""The same of torch's AdamW, which takes lists of tensors, op by op, in fp32 (torch/optim/adam.py,
`_multi_tensor_adam`): weight decay 8, first moment 12, second 8 and 12, root 8, its correction 8,
epsilon 8, update 16; 4 for the norm, 8 to clip."""

OPTIMIZER_OPS_A_TENSOR = {"fp16": 4}
"""{precision: ops that the host dispatches for each parameter tensor}: with a loss scaler its
gradient is copied, checked and cleared one by one; else 1, what calls that take lists of tensors
come to."""

HOST_ADAM_S = 28 / 100e9
"""Seconds per parameter of Adam on a node's host: 28 bytes read and written, at 100 GB/s, half of
what eight channels of DDR4-3200 carry. An estimate; DeepSpeed's CPU-Adam is bound by the same (Ren
et al. 2021, ZeRO-Offload, section 5.1)."""


def rank_parameters(
    model: Model, plan: Plan, program: Program, layers: Sequence[int]
) -> list[float]:
    """[parameters of each stage] on one rank."""
    ends = program.stages - 1
    return [
        stage_parameters(model, plan, kinds, first=s == 0, last=s == ends)
        for s, kinds in enumerate(model.kinds_of_stages(layers))
    ]


def own_parameters(
    plan: Plan, program: Program, parameters: Sequence[float], experts: Sequence[float] = ()
) -> float:
    """The parameters that a rank updates, of the rank that has most of them. experts: how many of
    each stage's are of experts that only some ranks hold; () without expert parallelism."""
    experts = experts or [0.0] * len(parameters)
    own = [held_of(plan, "optimizer", *each) for each in zip(parameters, experts)]
    return max(sum(own[stage] for stage in program.stages_of(rank)) for rank in range(plan.pp))


def update_s(
    cost: "StageCost", program: Program, parameters: Sequence[float], layers: Sequence[int]
) -> float:
    """Seconds of the update on the rank with most parameters, without the norm of all gradients and
    without moving the optimizer's states."""
    plan, cluster = cost.plan, cost.cluster
    kinds = cost.model.kinds_of_stages(layers)
    experts = [expert_parameters(cost.model, plan, its) for its in kinds]
    own = own_parameters(plan, program, parameters, experts)
    if plan.offload in ("optimizer", "parameters"):
        return host_sharers(plan, cluster) * own * HOST_ADAM_S
    tensors = TENSORS_A_LAYER * max(
        sum(layers[stage] for stage in program.stages_of(rank)) for rank in range(plan.pp)
    )
    host_s = tensors * OPTIMIZER_OPS_A_TENSOR.get(plan.precision, 1) * cost.host_op_s
    gpu = cost.gpu or cluster.gpu
    if plan.library != "nanotron":
        moved = OPTIMIZER_BYTES[plan.precision] if plan.has_flat_gradients else FOREACH_BYTES
        moved -= 2 * 2 * (4 - plan.moment_bytes)  # two moments, read and written
        return max(memory_s(moved * own, gpu), host_s)
    held = max(
        sum(parameters[stage] for stage in program.stages_of(rank)) for rank in range(plan.pp)
    )
    updated_bytes, held_bytes = NANOTRON_BYTES
    updated_bytes += 0 if plan.precision == "fp32" else 2
    moved_s = memory_s(updated_bytes * own + held_bytes * held, gpu)
    shards = shards_of(plan, "optimizer")
    if shards == 1:
        return max(moved_s, host_s)
    copies = tensors / TENSORS_A_LAYER * GATHERED_TENSORS_A_LAYER * shards
    copied_s = max(memory_s(GATHERED_BYTES * held, gpu), copies * cost.host_op_s)
    return max(moved_s, host_s) + copied_s
