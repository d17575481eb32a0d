"""Parameters of a whole layer, by its parts."""

from typing import TYPE_CHECKING

from simlab.layer.operation import OperationKind
from simlab.layer.units import layer_operations

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes

PARTS = {
    OperationKind.NORM: "norms",
    OperationKind.LAST_NORM: "norms",
    OperationKind.PROJECTION: "projection",
    OperationKind.ROUTER: "router",
    OperationKind.TO_EXPERTS: "latents of experts",
    OperationKind.FROM_EXPERTS: "latents of experts",
    OperationKind.UP: "mlp",
    OperationKind.DOWN: "mlp",
    OperationKind.SHARED_UP: "shared experts",
    OperationKind.SHARED_DOWN: "shared experts",
}
"""{kind of operation: the part of a layer that its weights are counted with}; all others are
attention's, or the state space's."""


def layer_parameters(model: "ModelSizes") -> dict[str, int]:
    """{part: parameters} of a layer: attention, mlp (all routed experts), router, norms and, where
    there are some, shared experts and a module's projection."""
    found = dict.fromkeys(("attention", "mlp", "router", "norms"), 0)
    mixer = "state space" if model.mixer == "mamba" else "attention"
    for operation in layer_operations(model):
        part = PARTS.get(operation.kind, mixer)
        for weight in operation.weights:
            found[part] = found.get(part, 0) + int(weight.numbers)
    return found
