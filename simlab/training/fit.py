"""What a GPU holds besides tensors, and the judgement whether a plan fits."""

from collections.abc import Mapping
from typing import NamedTuple

from simlab.spec.cluster import Cluster
from simlab.spec.hardware import Gpu
from simlab.spec.model import Model
from simlab.spec.plan import Plan
from simlab.units import MIB, bytes_text

CONTEXT_BYTES = 1.06e9
"""What a process holds on an H100 outside of PyTorch's allocator before its first collective, in
bytes: the CUDA context, loaded kernels and libraries' workspaces (measured in NVIDIA/nccl#1685)."""

COMMUNICATOR_BYTES = 688e6
"""What one NCCL communicator of more than two GPUs takes after its first all-reduce, in bytes:
measured for every group of 4 A100s, one after the other (NVIDIA/nccl#964). It grows with the
channels, and beyond two nodes no longer with the GPUs (NVIDIA/nccl#986). A group of a plan has one
each: dp, tp, pp and cp, and with expert parallelism the ranks that share experts (ep) and those that
hold the same ones (edp). Connections for all-to-all take more, see NVIDIA/nccl#1685."""

PAIR_BYTES = 544e6
"""The same of a communicator of two GPUs (NVIDIA/nccl#964)."""

TORCH_HANDLES = 2
"""cuBLAS handles of torch's products, with a workspace each: one of the thread that runs forwards, one of
autograd's (getCurrentCUDABlasHandle in aten/src/ATen/cuda/CublasHandlePool.cpp)."""
WORKSPACE_BYTES = {True: 32 * MIB, False: 8_519_680}
"""{whether a GPU has products in 8 bits, as Hopper and later: what torch gives a handle
(parseChosenWorkspaceSize in CublasHandlePool.cpp)}"""
OWN_WORKSPACE_BYTES = {True: 32 * MIB, False: 4 * MIB}
"""The same of Transformer Engine (get_cublas_workspace_size_bytes in pytorch/cpp_extensions/gemm.py)."""
EXPERT_STREAMS = 4
"""Streams of the products of experts, with a workspace each (get_num_compute_streams in Transformer
Engine's common/util/multi_stream.cpp)."""

FRAGMENTATION = 0.15
"""The part of what PyTorch's caching allocator has reserved that it cannot use. Source: Guo et al.
2024 (GMLake, arXiv 2401.08156, abstract), the mean over eight language models on A100s of 80 GB. It
is counted for what comes and goes; parameters, gradients and optimizer states are allocated once
and leave no gaps."""

MOST_FRAGMENTATION = 0.33
"""The most of it in the same measurements."""

STATES = ("parameters", "gradients", "optimizer")
"""The categories of a prediction's memory that stay from step to step."""


FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"


class Fit(NamedTuple):
    """The judgement whether a plan fits into the memory of a GPU, and of a host what is offloaded to it."""

    verdict: str
    """'fits': also if the allocator wastes as much as was ever measured (`MOST_FRAGMENTATION`);
    'tight': if it wastes no more than usual (`FRAGMENTATION`); else 'does not fit'."""
    margin_bytes: float
    """What stays free with the usual waste, in bytes; negative if it is missing. Of a GPU, or of a host
    where that is what offloaded states exceed."""
    why: str
    """The sentence that says so, with the numbers."""
    held_bytes: float
    """The bytes of tensors at the peak."""
    waste_bytes: float
    """The bytes that the allocator has reserved and cannot use, see `FRAGMENTATION`."""
    reserve_bytes: float
    """The bytes beside the allocator's, see `reserve_bytes`."""
    capacity_bytes: float
    """The bytes of a GPU."""

    @property
    def fits(self) -> bool:
        """Whether the plan runs, be it tightly."""
        return self.verdict != DOES_NOT_FIT

    @property
    def needed_bytes(self) -> float:
        """The bytes of tensors, waste and reserve."""
        return self.held_bytes + self.waste_bytes + self.reserve_bytes

    @property
    def missing_bytes(self) -> float:
        """By how many bytes the plan exceeds the memory; 0 if it does not."""
        return max(0.0, -self.margin_bytes)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}"


def reserve_bytes(plan: Plan) -> float:
    """The bytes that a GPU holds besides the allocator's: the CUDA context, and NCCL's buffers for
    each dimension that the plan splits."""
    return CONTEXT_BYTES + sum(
        PAIR_BYTES if n == 2 else COMMUNICATOR_BYTES for n in _communicators(plan) if n > 1
    )


def workspace_bytes(model: Model, plan: Plan, gpu: Gpu, has_head: bool) -> int:
    """The bytes that cuBLAS's callers take from torch's allocator and keep. `reserve_bytes` counts
    them, too; `torch.cuda.max_memory_allocated` counts them with the tensors.

    With a library that has workspaces of its own, torch's products are those of the head and of
    routers. has_head: whether the rank has the last stage.
    """
    newer = "fp8" in gpu.peak_flops
    torchs = TORCH_HANDLES * WORKSPACE_BYTES[newer]
    if not plan.habits.has_product_workspace:
        return torchs
    experts = any(model.of_kind(kind).experts for kind in model.counts)
    streams = EXPERT_STREAMS if experts and plan.habits.launches_each_expert else 0
    own = (1 + streams) * OWN_WORKSPACE_BYTES[newer]
    return own + (torchs if has_head or experts else 0)


def _communicators(plan: Plan) -> list[int]:
    """How many ranks each of a GPU's communicators has: one for each dimension of the plan.

    nanotron has one of all ranks, for barriers, and in the stead of the pipeline's one of all that
    hold a part of the same replica, for the norm of the gradients (parallel/context.py, `mp_pg`).
    Left out: what its single sends between two stages connect.
    """
    experts = [plan.ep, plan.expert_holders] if plan.ep > 1 else []
    replicas = plan.dp * plan.copies
    if not plan.habits.has_world_communicator:
        return [replicas, plan.tp, plan.pp, plan.cp, *experts]
    replica = plan.tp * plan.pp if plan.pp > 1 else 1
    return [replicas, plan.tp, replica, plan.cp, *experts, plan.gpus]


def judged(plan: Plan, cluster: Cluster, held: Mapping[str, float], host_bytes: float = 0.0) -> Fit:
    """The `Fit` of a plan.

    held:       {category: bytes} of tensors at the peak.
    host_bytes: what a node's host holds of offloaded states.
    """
    total, reserve = sum(held.values()), reserve_bytes(plan)
    capacity = cluster.gpu_memory_bytes
    moving = total - sum(held.get(name, 0.0) for name in STATES)

    def free(part: float) -> float:
        return capacity - total - moving * part / (1 - part) - reserve

    margin, waste = free(FRAGMENTATION), moving * FRAGMENTATION / (1 - FRAGMENTATION)
    verdict = DOES_NOT_FIT if margin < 0 else TIGHT if free(MOST_FRAGMENTATION) < 0 else FITS
    left = f"{bytes_text(abs(margin))} {'missing' if margin < 0 else 'free'}"
    why = (
        f"{bytes_text(total)} of tensors + {bytes_text(waste + reserve)} reserve of {bytes_text(capacity)}, "
        + left
    )
    if host_bytes and host_bytes > (host := cluster.node_memory_bytes):
        verdict, margin = DOES_NOT_FIT, host - host_bytes
        why = f"{bytes_text(host_bytes)} of {plan.offload} on a node's host, which has {bytes_text(host)}"
    return Fit(verdict, margin, why, total, waste, reserve, capacity)
