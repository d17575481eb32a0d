"""Which work of a GPU is communication: by its name, by what the profiler says of it, or by the
annotation of torch in which it was launched.

Sources of the names, each a file of that library in 2025 or 2026. A name is matched anywhere, since
profilers write whole signatures.
"""

import re
from typing import NamedTuple


class Kind(NamedTuple):
    """pattern: what names of this kind hold. dimension: the one that it always serves; '' if it may be
    any. kind: the collective; '' if the name says it. source: who writes such names."""

    pattern: re.Pattern[str]
    dimension: str
    kind: str
    source: str


def _kind(pattern: str, dimension: str, kind: str, source: str) -> Kind:
    return Kind(re.compile(pattern, re.IGNORECASE), dimension, kind, source)


KINDS = (
    _kind(r"deep_ep::|(?:intra|inter)node(?:_ll)?::\w*(?:dispatch|combine|notify|barrier)", "ep",
          "all_to_all", "deepseek-ai/DeepEP: csrc/kernels/intranode.cu, internode.cu, internode_ll.cu"),
    _kind(r"hybrid_ep::|\bmori::|Ep(?:Dispatch|Combine)\w*Kernel|pplx\w*::|uccl::", "ep", "all_to_all",
          "deepseek-ai/DeepEP branch hybrid-ep; ROCm/mori: src/ops/dispatch_combine; "
          "perplexityai/pplx-kernels; uccl-project/uccl: ep"),
    _kind(r"nccl|rccl", "", "", "NVIDIA/nccl: src/device; ROCm/rccl: src/device"),
    _kind(r"nvshmem|rocshmem|roc_shmem", "", "", "NVIDIA/nvshmem: src/device; ROCm/rocSHMEM"),
    _kind(r"(?:one|two)_?shot_?all_?reduce|multimem_\w*(?:all_reduce|all_gather|reduce)|symm_?mem", "", "",
          "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu"),
    _kind(r"cross_device_reduce|allreduce_fusion|lamport\w*all_?reduce", "", "all_reduce",
          "vllm-project/vllm: csrc/custom_all_reduce.cuh; NVIDIA/TensorRT-LLM: "
          "cpp/tensorrt_llm/kernels/communicationKernels"),
    _kind(r"userbuffers", "tp", "",
          "NVIDIA/TransformerEngine: transformer_engine/common/comm_gemm_overlap/userbuffers"),
    _kind(r"msccl", "", "", "microsoft/mscclpp: src and apps/nccl"),
    _kind(r"\bucc_|\bucx_|\bucp_", "", "", "openucx/ucc: src/components/ec/cuda"),
    _kind(r"memcpy[\s_]*(?:p(?:eer)?\s*to\s*p|p2p|peer)", "", "copy",
          "pytorch/kineto: libkineto/src/CuptiActivity.cpp, memcpyKindString"),
)  # fmt: skip
BACKENDS = re.compile(r"(?:gloo|mpi|ucc):(\w+)")
"""How the CPU's own work of a back-end is named (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp)."""
COLLECTIVES = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall", "barrier": "barrier", "broadcast": "broadcast",
    "send_recv": "sendrecv|send|recv",
}  # fmt: skip
"""{kind: what names of it hold, without underscores}."""


def communication_of(name: str) -> tuple[str, str] | None:
    """(dimension or '', collective) that work of a GPU with that name communicates; None if it is none."""
    for kind in KINDS:
        if kind.pattern.search(name):
            return kind.dimension, kind.kind or collective_in(name)
    return None


def collective_in(name: str) -> str:
    """The collective that a name says, else the name."""
    squeezed = name.replace("_", "").lower()
    for known, spelled in COLLECTIVES.items():
        if re.search(spelled, squeezed):
            return known
    return name
