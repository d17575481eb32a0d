"""The MLP of a layer, plain or gated."""

from typing import TYPE_CHECKING

from simlab.layer.operation import Cut, Operation, OperationKind, Tensor, linear

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes


def mlp(model: "ModelSizes", normed: Tensor, summed: Tensor) -> list[Operation]:
    """The operations from a norm's result to the second product's."""
    kinds = OperationKind.UP, OperationKind.DOWN
    return two_products(model, kinds, normed, summed, model.ffn, Cut.COLUMNS)


def two_products(
    model: "ModelSizes",
    kinds: tuple[OperationKind, OperationKind],
    read: Tensor,
    made: Tensor,
    width: float,
    cut: Cut,
    experts: int = 0,
) -> list[Operation]:
    """A product to so much `width`, which with a gate makes two tensors, the activation function, and
    a product back."""
    up, down = kinds
    name = "shared " if up is OperationKind.SHARED_UP else ""
    names = ("gate", "up", "activated")[not model.gated_mlp :]
    *parts, inner = (Tensor(name + its, width, cut, group="mlp between") for its in names)
    bias = model.has_bias("mlp")
    return [
        linear(up, read, parts, cut=cut, bias=bias, experts=experts),
        Operation(
            OperationKind.ACTIVATION,
            tuple(parts),
            (inner,),
            saves=tuple(parts),
            name=f"{name}activation",
        ),
        linear(down, inner, (made,), cut=cut, by_columns=True, bias=bias, experts=experts),
    ]
