"""Functions of a layer that keep for the backward what their fused kernels keep, and no more: put
together of torch's own, each would keep some tensors several times."""

from typing import Any

import torch
from torch import Tensor, nn

from simlab.errors import InputError

BASE = 10_000.0
"""Of the angles of rotary embeddings."""


class RMSNorm(nn.Module):
    """Each vector of the last dimension divided by the root of its mean square, times a scale (Zhang
    and Sennrich 2019, arXiv 1910.07467), of so many numbers; 0: without one. It keeps its input and a
    number for each vector."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)) if size else None, eps

    def forward(self, x: Tensor) -> Tensor:
        return _RMSNorm.apply(x, self.weight, self.eps)


class _RMSNorm(torch.autograd.Function):
    """With n = x r, where r is one over the root: dx = r (g - n mean(g n)) for g = dy w, since r falls
    by r^3 x / size where x grows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        r = (exact.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, r)
        n = (exact * r).to(x.dtype)
        return n if weight is None else n * weight

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, r = ctx.saved_tensors
        n, g = x * r, (dy if weight is None else dy * weight).to(r.dtype)
        dx = (r * (g - n * (g * n).mean(-1, keepdim=True))).to(x.dtype)
        if weight is None:
            return dx, None, None
        return dx, (dy * n).sum([*range(x.dim() - 1)]).to(weight.dtype), None


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU of `gate`, times `up` (Shazeer 2020, arXiv 2002.05202). It keeps these two."""
    return _Gated.apply(gate, up)


class _Gated(torch.autograd.Function):
    """SiLU(x) = x s for s = sigmoid(x), whose derivative is s + x s (1 - s)."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return nn.functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        s = gate.sigmoid()
        return dy * up * (s + gate * s * (1 - s)), dy * gate * s


def rotary(x: Tensor, where: Tensor, turned: int | None = None, base: float = BASE) -> Tensor:
    """`x` (..., tokens, head size) with each pair (x_i, x_{i + d/2}) of a token at position p
    turned by the angle p base^(-2i/d), where d is how many of a head's numbers are `turned`, the
    first ones; None: all. It keeps nothing. `InputError` for an odd d.

    where: (tokens,), the position of each token in the sequence
    (`realrun.parallel.layers.context.positions`): a rank turns its slice and needs nothing of other
    ranks. The halves are paired as in GPT-NeoX and in Hugging Face's Llama, and not neighbours as in
    the paper (Su et al. 2021, arXiv 2104.09864). Angles are in float64.
    """
    size = x.shape[-1] if turned is None else turned
    if size % 2:
        raise InputError(
            f"rotary embedding of head size {size}: it turns pairs, so give an even one"
        )
    return _Rotary.apply(x, where, size, base)


class _Rotary(torch.autograd.Function):
    """A turn back is the gradient of a turn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *how: Any) -> Tensor:
        ctx.how = how
        return _turned(x, 1.0, *how)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _turned(dy, -1.0, *ctx.how), None, None, None


def _turned(x: Tensor, way: float, where: Tensor, size: int, base: float) -> Tensor:
    half = size // 2
    frequency = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = where.to(x.device, torch.float64).unsqueeze(-1) * frequency
    cos, sin = angle.cos().to(x.dtype), way * angle.sin().to(x.dtype)
    first, second, rest = x.split([half, half, x.shape[-1] - size], -1)
    made = torch.empty_like(x)  # in the order in memory that `x` has
    made[..., :half] = first * cos - second * sin
    made[..., half:size] = second * cos + first * sin
    made[..., size:] = rest
    return made
