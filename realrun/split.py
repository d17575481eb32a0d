"""A linear layer whose backward can leave the weight gradient for later: what I and W are made of.

Most of a transformer's weight gradient is in its linear layers, and there it is a product of its own: the input gradient
is dY W, the weight gradient dY^T X. So I computes the first and keeps (X, dY); W computes the second from them and
redoes nothing. Gradients of norms and embeddings are cheap and stay in I. (Qi et al. 2023, arXiv 2401.10241.)
"""

from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional


class SplitLinear(nn.Linear):
    """`nn.Linear`; while `keep` is set, its backward hands (layer, X, dY) to it instead of computing dY^T X."""

    keep = None

    @property
    def product_bias(self):
        """The bias that is a part of the product, or None."""
        return self.bias

    def forward(self, x):
        return _Product.apply(x, self.weight, self.product_bias, self)

    def complete(self, dx):
        """Begin the communication that the input's gradient needs, if any; what to call for the result, when the weight's is computed."""
        return lambda: dx

    def own_gradients(self, x, dy):
        """(weight's, bias's gradient), or (None, None) if they are left for later."""
        if self.keep is None:
            return weight_gradients(x, dy, self.product_bias)
        self.keep(self, x, dy)
        return None, None

    @torch.no_grad()
    def add_weight_gradient(self, x, dy):
        """Add this microbatch's dY^T X (and the bias's sum of dY) to the gradients."""
        for parameter, gradient in zip((self.weight, self.product_bias), weight_gradients(x, dy, self.product_bias)):
            if parameter is not None:
                gradient = gradient.to(parameter.grad_dtype)
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, layer):
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        completed = ctx.layer.complete(dy @ weight)
        gradients = ctx.layer.own_gradients(x, dy)
        return completed(), *gradients, None


def weight_gradients(x, dy, bias):
    """(dY^T X, the sum of dY over rows or, where there is no `bias`, None)."""
    rows = dy.flatten(0, -2)
    return rows.T @ x.flatten(0, -2), None if bias is None else rows.sum(0)


@contextmanager
def keeping_weight_gradients(module, keep):
    """Backwards inside call `keep(layer, X, dY)` instead of computing the weight gradients of `module`'s linear layers."""
    layers = [layer for layer in module.modules() if isinstance(layer, SplitLinear)]
    for layer in layers:
        layer.keep = keep
    try:
        yield
    finally:
        for layer in layers:
            layer.keep = None
