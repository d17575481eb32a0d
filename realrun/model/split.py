"""A linear layer whose backward can leave the weight gradient for later, so that a backward can be
split into I and W.

Most of a transformer's weight gradient belongs to its linear layers. There the gradient of the
input is dY W and the gradient of the weight is dY^T X, two products that do not need each other. So
I computes the first one and keeps (X, dY), and W computes the second one from them without
computing anything twice. The gradients of norms and embeddings are cheap and are computed in I. (Qi
et al. 2023, arXiv 2401.10241.)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Keep = Callable[["SplitLinear", Tensor, Tensor], None]
"""What takes (layer, X, dY) and computes dY^T X later."""


class SplitLinear(nn.Linear):
    """An `nn.Linear` whose backward, while `keep` is set, hands (layer, X, dY) to `keep` and does
    not compute dY^T X. Inputs are (..., inputs), outputs (..., outputs)."""

    keep: Keep | None = None
    """What takes (layer, X, dY) of a backward; None: the backward computes the weight gradient."""
    is_split = True
    """Whether a backward may leave something for later. If not, and nothing is communicated in it, it is
    torch's own."""
    communicates = False
    """Whether a backward has something to `complete` over several ranks."""

    @property
    def product_bias(self) -> Tensor | None:
        """The bias that is added within the product, or None."""
        return self.bias

    def forward(self, x: Tensor) -> Tensor:
        if not (self.is_split or self.communicates):
            return functional.linear(x, self.weight, self.product_bias)
        return _Product.apply(x, self.weight, self.product_bias, self)

    def complete(self, dx: Tensor) -> Callable[[], Tensor]:
        """Begin the communication that the input's gradient `dx` needs, if it needs any, and return
        what waits for the result. The weight gradient is computed between the two."""
        return lambda: dx

    def own_gradients(self, x: Tensor, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The gradients (of the weight, of the bias), or (None, None) if they are left for
        later."""
        if self.keep is None:
            return weight_gradients(x, dy, self.product_bias)
        self.keep(self, x, dy)
        return None, None

    @torch.no_grad()
    def add_weight_gradient(self, x: Tensor, dy: Tensor) -> None:
        """Add this microbatch's dY^T X, and the sum of dY for the bias, to the parameters'
        gradients."""
        for parameter, gradient in zip(
            (self.weight, self.product_bias), weight_gradients(x, dy, self.product_bias)
        ):
            if parameter is not None and gradient is not None:
                gradient = gradient.to(parameter.grad_dtype)
                parameter.grad = (
                    gradient if parameter.grad is None else parameter.grad.add_(gradient)
                )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: SplitLinear
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        completed = ctx.layer.complete(dy @ weight)
        gradients = ctx.layer.own_gradients(x, dy)
        return completed(), *gradients, None


def weight_gradients(x: Tensor, dy: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(dY^T X, the sum of dY over its rows). The second is None where there is no `bias`."""
    rows = dy.flatten(0, -2)
    return rows.T @ x.flatten(0, -2), None if bias is None else rows.sum(0)


def split_layers(module: nn.Module) -> list[SplitLinear]:
    """The layers of `module` whose backward can be split."""
    return [layer for layer in module.modules() if isinstance(layer, SplitLinear)]


@contextmanager
def keeping_weight_gradients(layers: Sequence[SplitLinear], keep: Keep) -> Iterator[None]:
    """Inside the context, backwards call `keep(layer, X, dY)` for `layers` and do not compute their
    weight gradients."""
    for layer in layers:
        layer.keep = keep
    try:
        yield
    finally:
        for layer in layers:
            layer.keep = None
