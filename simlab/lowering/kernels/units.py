"""The kernels of each unit of a model: the embedding, a layer and the head."""

from simlab.layer.units import UnitKind
from simlab.lowering.kernels.ends import embedding_kernels, head_kernels
from simlab.lowering.kernels.kernel import Communication, LayerKernels
from simlab.lowering.kernels.layer import layer_kernels
from simlab.spec.model import Model
from simlab.spec.plan import Plan


def kernel_names(model: Model, plan: Plan) -> list[str]:
    """The operations that the kernels of a step's forward compute, in order: 'attention', 'qkv',
    'norm' (both norms of a layer), 'head', ..."""
    forward = [
        kernel
        for its in unit_kernels(model, plan).values()
        for kernel in its.forward
        if not isinstance(kernel, Communication)
    ]
    return list(dict.fromkeys(kernel.operation.value for kernel in forward))


def unit_kernels(model: Model, plan: Plan) -> dict[UnitKind, LayerKernels]:
    """The `LayerKernels` of each kind of unit that `model` has, in the order in which these come."""
    layers = {kind: layer_kernels(model.of_kind(kind), plan) for kind in model.counts}
    ends = embedding_kernels(model, plan), head_kernels(model, plan)
    return {"embedding": ends[0], **layers, "head": ends[1]}
