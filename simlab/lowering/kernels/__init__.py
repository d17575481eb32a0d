"""The kernels and communications of each unit of a model, forward and backward."""

from simlab.lowering.kernels.attention import softmax_is_fused
from simlab.lowering.kernels.forward import launched_by
from simlab.lowering.kernels.host import runtime_ops
from simlab.lowering.kernels.kernel import (
    Attention,
    Communication,
    GroupedMatmul,
    LayerKernels,
    Matmul,
    Memory,
    Place,
)
from simlab.lowering.kernels.memory_bound import is_one_kernel
from simlab.lowering.kernels.tensor_parallel import keeps_gathered, message_bytes, message_kernels
from simlab.lowering.kernels.units import (
    UnitKernels,
    embedding_kernels,
    head_kernels,
    kernel_names,
    layer_kernels,
)

__all__ = [
    "Attention",
    "Communication",
    "GroupedMatmul",
    "LayerKernels",
    "Matmul",
    "Memory",
    "Place",
    "UnitKernels",
    "embedding_kernels",
    "head_kernels",
    "is_one_kernel",
    "keeps_gathered",
    "kernel_names",
    "launched_by",
    "layer_kernels",
    "message_bytes",
    "message_kernels",
    "runtime_ops",
    "softmax_is_fused",
]
