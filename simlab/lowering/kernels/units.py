"""The kernels of each unit of a model on one GPU: what the forward, the input gradient and the weight
gradient of the embedding, a layer and the head launch, in order.

The sizes follow Megatron-LM's layer (Shoeybi et al. 2019; Korthikanti et al. 2022). Tensors have
tokens x hidden elements. Tensor parallelism divides what lies between a column-parallel and a
row-parallel matrix, and with sequence parallelism also the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simlab.layer.microbatch import plan_operations, share_of
from simlab.layer.operation import Operation
from simlab.layer.parameters import unit_parameters
from simlab.layer.units import UnitKind, embedding_operations, head_operations, is_layer
from simlab.lowering.kernels.backward import backward
from simlab.lowering.kernels.copies import with_copies
from simlab.lowering.kernels.forward import launched_by
from simlab.lowering.kernels.kernel import Communication, LayerKernels
from simlab.lowering.kernels.recomputed import recomputed
from simlab.spec.model import Model
from simlab.spec.plan import Plan


def layer_kernels(model: Model, plan: Plan) -> LayerKernels:
    """The `LayerKernels` of a layer of `model` under `plan`."""
    return _kernels_of("layer", plan_operations(model, plan), model, plan)


def embedding_kernels(model: Model, plan: Plan) -> LayerKernels:
    """The `LayerKernels` of the begin of the first stage."""
    operations = embedding_operations(model, dropout=plan.dropout)
    return _kernels_of("embedding", operations, model, plan)


def head_kernels(model: Model, plan: Plan) -> LayerKernels:
    """The `LayerKernels` of the end of the last stage: norm, output head and cross-entropy."""
    return _kernels_of("head", head_operations(model), model, plan)


def _kernels_of(
    unit: UnitKind, operations: Sequence[Operation], model: Model, plan: Plan
) -> LayerKernels:
    share = share_of(model, plan)
    launched = launched_by(operations, model, plan, share)
    kernels = LayerKernels(
        [kernel for its in launched for kernel in its],
        *backward(operations, launched, plan, share),
        recomputed(operations, launched, plan, share) if is_layer(unit) else [],
    )
    parameters = unit_parameters(model, plan, unit, first=model.tied_head and not plan.is_pipeline)
    return with_copies(kernels, plan, parameters)


def kernel_names(model: Model, plan: Plan) -> list[str]:
    """The operations that the kernels of a step's forward compute, in order: 'attention', 'qkv',
    'norm' (both norms of a layer), 'head', ..."""
    forward = [
        kernel
        for its in UnitKernels(model, plan).values()
        for kernel in its.forward
        if not isinstance(kernel, Communication)
    ]
    return list(dict.fromkeys(kernel.operation.value for kernel in forward))


class UnitKernels(Mapping[UnitKind, LayerKernels]):
    """The `LayerKernels` of each kind of unit that `model` has under `plan`, in the order in which these
    come; of each when it is first asked for."""

    def __init__(self, model: Model, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self._known: dict[UnitKind, LayerKernels] = {}

    def __iter__(self) -> Iterator[UnitKind]:
        return iter(("embedding", *self.model.counts, "head"))

    def __len__(self) -> int:
        return len(self.model.counts) + 2

    def __contains__(self, unit: Any) -> bool:
        return unit in tuple(self)

    def __getitem__(self, unit: UnitKind) -> LayerKernels:
        if unit not in self._known:
            ends = {"embedding": embedding_kernels, "head": head_kernels}
            find, model = ends.get(unit, layer_kernels), self.model
            self._known[unit] = find(model.of_kind(unit) if is_layer(unit) else model, self.plan)
        return self._known[unit]
