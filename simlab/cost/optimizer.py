"""What the optimizer's step takes: on the GPU, or with its states offloaded on the host."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from simlab.cost.groups import host_sharers
from simlab.cost.roofline import matmul_s, memory_s
from simlab.layer.parameters import expert_parameters, stage_matrices, stage_parameters
from simlab.lowering.kernels import Matmul
from simlab.lowering.zero import held_of, most_of, shards_of
from simlab.optimizers import ADAM, ONE, OPTIMIZERS, Matrix, Optimizer
from simlab.program import Program
from simlab.spec.model import Model
from simlab.spec.plan import Plan

if TYPE_CHECKING:
    from simlab.cost.stage_times import StageCost

TENSORS_A_LAYER = 12
"""Parameters (as tensors) of a layer with biases: two norms' two, four matrices' and their
biases."""

CLIPPING_BYTES = 12
"""Read and written per parameter beside the optimizer's own step: 4 for the gradients' norm, 8 to clip
them."""

FLAT_BYTES = {"fp16": 18, "bf16": 4, "fp8": 4, "fp8-current": 4, "fp8-mx": 4, "fp4": 4, "fp32": 0}
"""The same with flat buffers of gradients: 2 for the 16-bit weight, 2 to clear its gradient; in fp16 its
gradient is copied to fp32 (6), unscaled and looked through for infinities (8), too."""

HELD_BYTES = 16
"""The same of each parameter that a rank holds, sharded or not, where the library goes over all gradients:
for their norm 4, to clip them 8 and to clear them 4."""

GATHERED_BYTES, GATHERED_TENSORS_A_LAYER = 12, 6
"""Where ZeRO-1 gathers lists: the bytes that are copied for each parameter of 16 bits (into a
buffer for each rank, torch's from one buffer to these, and back into the parameters), and how many
tensors a layer has. The last copy is an op for each tensor and rank (`all_gather_coalesced` in
nanotron/distributed.py). The views that are made for it are left out."""

OPTIMIZER_OPS_A_TENSOR = {"fp16": 4}
"""{precision: ops that the host dispatches for each parameter tensor}: with a loss scaler its
gradient is copied, checked and cleared one by one; else 1, what calls that take lists of tensors
come to."""

HOST_BYTES_PER_S = 100e9
"""Half of what eight channels of DDR4-3200 carry. An estimate."""

HOST_ADAM_S = ADAM.moved_bytes(fused=True) / HOST_BYTES_PER_S
"""Seconds per parameter of Adam on a node's host. DeepSpeed's CPU-Adam is bound by the memory, too (Ren
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
    plan, cluster, its = cost.plan, cost.cluster, OPTIMIZERS[cost.plan.optimizer]
    if its.whole:
        return _whole_s(cost, program, layers)
    kinds = cost.model.kinds_of_stages(layers)
    experts = [expert_parameters(cost.model, plan, each) for each in kinds]
    own = own_parameters(plan, program, parameters, experts)
    if plan.offload in ("optimizer", "parameters"):
        moved = its.moved_bytes(fused=True)
        return host_sharers(plan, cluster) * own * moved / HOST_BYTES_PER_S
    tensors = TENSORS_A_LAYER * max(
        sum(len(kinds[stage]) for stage in program.stages_of(rank)) for rank in range(plan.pp)
    )
    host_s = tensors * OPTIMIZER_OPS_A_TENSOR.get(plan.precision, 1) * cost.host_op_s
    gpu = cost.gpu or cluster.gpu
    held = max(
        sum(parameters[stage] for stage in program.stages_of(rank)) for rank in range(plan.pp)
    )
    moved = _moved_bytes(plan, its) * own
    if plan.habits.clips_every_gradient:
        updated = its.moved_bytes(fused=True) + (0 if plan.precision == "fp32" else 2)
        moved = updated * own + HELD_BYTES * held
    moved -= 2 * its.states(ONE) * (4 - plan.moment_bytes) * own  # moments, read and written
    moved_s, shards = memory_s(moved, gpu), shards_of(plan, "optimizer")
    updated_s = moved_s + host_s if gpu.is_core else max(moved_s, host_s)
    if shards == 1 or not plan.habits.gathers_lists:
        return updated_s
    copies = tensors / TENSORS_A_LAYER * GATHERED_TENSORS_A_LAYER * shards
    copied_s = max(memory_s(GATHERED_BYTES * held, gpu), copies * cost.host_op_s)
    return updated_s + copied_s


def _moved_bytes(plan: Plan, its: Optimizer) -> float:
    """Read and written for each number that a rank updates, with moments in fp32."""
    flat = FLAT_BYTES.get(plan.precision, 0) if plan.habits.has_flat_gradients else 0
    return its.moved_bytes(fused=plan.habits.fuses_optimizer) + flat + CLIPPING_BYTES


def _whole_s(cost: "StageCost", program: Program, layers: Sequence[int]) -> float:
    """Seconds of an update that needs whole matrices, on the rank for which it takes longest: of what
    it moves, and of its products in 16 bits, or what the host needs to launch all of it.

    The products of matrices are priced as those of a layer are, each by itself. Leaves out that the
    longest rank of one stage may not be that of another.
    """
    plan, gpu, its = cost.plan, cost.gpu or cost.cluster.gpu, OPTIMIZERS[cost.plan.optimizer]

    @cache
    def computed_s(matrix: Matrix) -> float:
        products = its.of(matrix).products(matrix)
        return sum(
            count * matmul_s(Matmul("update", *sizes), gpu, "bf16")
            for sizes, count in Counter(products).items()
        )

    def gpu_s(matrix: Matrix) -> float:
        moved = _moved_bytes(plan, its.of(matrix)) * matrix.numbers
        return memory_s(moved, gpu) + computed_s(matrix)

    def host_s(matrix: Matrix) -> float:
        return its.of(matrix).launches * cost.host_op_s

    ends = program.stages - 1
    stages = [
        stage_matrices(cost.model, plan, kinds, first=s == 0, last=s == ends)
        for s, kinds in enumerate(cost.model.kinds_of_stages(layers))
    ]
    return max(
        max(
            sum(most_of(plan, stages[stage], each) for stage in program.stages_of(rank))
            for each in (gpu_s, host_s)
        )
        for rank in range(plan.pp)
    )
