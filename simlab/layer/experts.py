"""An MLP of which each token meets some experts, that a router chooses, and perhaps shared ones."""

from typing import TYPE_CHECKING

from simlab.layer.mlp import two_products
from simlab.layer.operation import Cut, Operation, OperationKind, Tensor, linear

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes


def experts(model: "ModelSizes", normed: Tensor, summed: Tensor) -> list[Operation]:
    """The operations from a norm's result to the sum of the experts' results.

    Tokens are copied expert by expert before the products, and back after them; with
    `Model.expert_rank` as latents, to which a product leads before, and from which one leads after
    (`fc1_latent_proj` and `fc2_latent_proj` in megatron/core/transformer/moe/moe_layer.py). Shared
    experts compute every token besides, after the routed ones, as one MLP of all their widths.
    """
    entered, left, rank = normed, summed, model.expert_rank
    if rank:
        entered, left = (Tensor(its, rank, Cut.TOKENS) for its in ("latent", "latent's result"))
    routed = Tensor("routed", entered.numbers, Cut.COPIES)
    made = routed._replace(name="results of experts")
    chosen = Tensor("router's choice", model.experts, Cut.TOKENS)
    kinds = OperationKind.UP, OperationKind.DOWN
    operations = [
        linear(OperationKind.ROUTER, normed, (chosen,), bias=model.has_bias("router")),
        *[linear(OperationKind.TO_EXPERTS, normed, (entered,))] * bool(rank),
        Operation(OperationKind.PERMUTE, (entered, chosen, made), (routed, left)),
        *two_products(model, kinds, routed, made, model.expert_width, Cut.EXPERTS, model.experts),
        *[linear(OperationKind.FROM_EXPERTS, left, (summed,))] * bool(rank),
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
