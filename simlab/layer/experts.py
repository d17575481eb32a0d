"""An MLP of which each token meets some experts, that a router chooses, and perhaps shared ones."""

from typing import TYPE_CHECKING

from simlab.layer.mlp import two_products
from simlab.layer.operation import Cut, Operation, OperationKind, Tensor, linear

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes


def experts(model: "ModelSizes", normed: Tensor, summed: Tensor) -> list[Operation]:
    """The operations from a norm's result to the sum of the experts' results.

    Tokens are copied expert by expert before the products, and back after them. Shared experts
    compute every token besides, after the routed ones, as one MLP of all their widths.
    """
    routed = Tensor("routed", model.hidden, Cut.COPIES)
    made = routed._replace(name="results of experts")
    chosen = Tensor("router's choice", model.experts, Cut.TOKENS)
    kinds = OperationKind.UP, OperationKind.DOWN
    operations = [
        linear(OperationKind.ROUTER, normed, (chosen,), bias=model.has_bias("router")),
        Operation(OperationKind.PERMUTE, (normed, chosen, made), (routed, summed)),
        *two_products(model, kinds, routed, made, model.expert_width, Cut.EXPERTS, model.experts),
    ]
    if not model.shared_experts:
        return operations
    kinds = OperationKind.SHARED_UP, OperationKind.SHARED_DOWN
    width, other = model.shared_experts * model.expert_width, summed._replace(name="shared")
    shared = two_products(model, kinds, normed, other, width, Cut.COLUMNS)
    both = Operation(
        OperationKind.SHARED_DOWN, (summed, other), (summed,), name="add shared experts"
    )
    return [*operations, *shared, both]
