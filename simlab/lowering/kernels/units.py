"""The kernels of each unit of a model: the embedding, a layer and the head."""

from simlab.layer.units import UNITS, UnitKind
from simlab.lowering.kernels.ends import embedding_kernels, head_kernels
from simlab.lowering.kernels.kernel import Communication, LayerKernels
from simlab.lowering.kernels.layer import layer_kernels
from simlab.spec.model import Model
from simlab.spec.plan import Plan


def kernel_names(model: Model, plan: Plan) -> list[str]:
    """The operations that the kernels of a step's forward compute, in order: 'attention', 'qkv',
    'norm' (both norms of a layer), 'head', ..."""
    kernels = unit_kernels(model, plan)
    forward = [
        kernel
        for unit in UNITS
        if unit in kernels
        for kernel in kernels[unit].forward
        if not isinstance(kernel, Communication)
    ]
    return list(dict.fromkeys(kernel.operation.value for kernel in forward))


def unit_kernels(model: Model, plan: Plan) -> dict[UnitKind, LayerKernels]:
    """The `LayerKernels` of each kind of unit that `model` has."""
    kernels: dict[UnitKind, LayerKernels] = {
        "layer": layer_kernels(model, plan),
        "embedding": embedding_kernels(model, plan),
        "head": head_kernels(model, plan),
    }
    if model.dense_layers:
        kernels["dense layer"] = layer_kernels(model.dense, plan)
    return kernels
