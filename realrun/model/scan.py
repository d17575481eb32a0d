"""The state space of a layer that runs: the scan of `simlab.layer.mamba`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from simlab.spec.model import Model


class Scan(nn.Module):
    """The mixer of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) between its two products, with the
    parameters that `model` gives it. It keeps what it reads and what the gated norm does, and computes
    the rest again, as mamba_ssm does.

    Gates are (batch, tokens, heads x head size); x, B and C side by side (batch, tokens, that and twice
    groups x state size); steps (batch, tokens, heads). The result has the shape of the gates.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.groups, self.state_size = model.state_groups, model.state_size
        heads, inner, channels = model.state_heads, model.state_inner, model.state_channels
        self.taps = nn.Parameter(torch.randn(channels, model.conv_size) / model.conv_size)
        self.tap_bias = nn.Parameter(torch.zeros(channels))
        self.decay = nn.Parameter(torch.rand(heads))  # the logarithm of its rate
        self.step_bias = nn.Parameter(torch.zeros(heads))
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = nn.Parameter(torch.ones(inner))

    def forward(self, gate: Tensor, mixed: Tensor, steps: Tensor) -> Tensor:
        sizes = self.groups, self.state_size
        own = self.taps, self.tap_bias, self.decay, self.step_bias, self.skip
        return _Scan.apply(gate, mixed, steps, self.norm, sizes, *own)


class _Scan(torch.autograd.Function):
    """Its backward makes the gradients of two parts of the forward, each computed again."""

    @staticmethod
    def forward(
        ctx: Any, gate: Tensor, mixed: Tensor, steps: Tensor, norm: Tensor, sizes: Any, *own: Tensor
    ) -> Tensor:
        before = scanned(mixed, steps, sizes, *own)
        ctx.save_for_backward(gate, mixed, steps, before, norm, *own)
        ctx.sizes = sizes
        return gated_norm(before, gate, norm, sizes[0])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gate, mixed, steps, before, norm, *own = (
            saved.detach().requires_grad_() for saved in ctx.saved_tensors
        )
        with torch.enable_grad():
            result = gated_norm(before, gate, norm, ctx.sizes[0])
            made = scanned(mixed, steps, ctx.sizes, *own)
        dbefore, dgate, dnorm = torch.autograd.grad(result, (before, gate, norm), dy)
        dmixed, dsteps, *down = torch.autograd.grad(made, (mixed, steps, *own), dbefore)
        return dgate, dmixed, dsteps, dnorm, None, *down


def scanned(
    mixed: Tensor,
    steps: Tensor,
    sizes: tuple[int, int],
    taps: Tensor,
    tap_bias: Tensor,
    decay: Tensor,
    step_bias: Tensor,
    skip: Tensor,
) -> Tensor:
    """What a state space makes, before the gated norm. sizes: (groups, numbers of a state for each of a
    head's width).

    A head's state is S_t = exp(-r d_t) S_{t-1} + d_t x_t B_t', from which y_t = S_t C_t is read, for a
    rate r and a step d_t. All tokens at once that is y = M x with M_tu = exp(-r (d_{u+1} + ... + d_t)) d_u
    (C_t' B_u) for u up to t, as attention has it without a softmax: their duality. In fp32 at least.
    """
    wide = torch.promote_types(mixed.dtype, torch.float32)
    before = functional.pad(mixed.to(wide).transpose(1, 2), (taps.shape[1] - 1, 0))
    channels = functional.conv1d(
        before, taps.to(wide).unsqueeze(1), tap_bias.to(wide), groups=len(taps)
    )
    convolved = functional.silu(channels).transpose(1, 2)
    groups, n = sizes
    inner, heads = mixed.shape[-1] - 2 * groups * n, steps.shape[-1]
    x, b, c = convolved.split([inner, groups * n, groups * n], -1)
    x = x.unflatten(-1, (heads, -1))
    step = functional.softplus(steps.to(wide) + step_bias.to(wide))
    passed = (-decay.to(wide).exp() * step).cumsum(1).transpose(1, 2)
    apart = passed.unsqueeze(-1) - passed.unsqueeze(-2)
    later = torch.ones(apart.shape[-2:], dtype=torch.bool, device=apart.device).triu(1)
    fades = apart.masked_fill(later, float("-inf")).exp()
    b, c = (its.unflatten(-1, (groups, n)).transpose(1, 2) for its in (b, c))
    met = (c @ b.transpose(-1, -2)).repeat_interleave(heads // groups, 1) * fades
    read = met @ (step.unsqueeze(-1) * x).transpose(1, 2)
    made = read.transpose(1, 2) + skip.to(wide).unsqueeze(-1) * x
    return made.flatten(-2).to(mixed.dtype)


def gated_norm(before: Tensor, gate: Tensor, weight: Tensor, groups: int) -> Tensor:
    """The root-mean-square norm of each group's numbers, gated before it by the SiLU of `gate`."""
    wide = torch.promote_types(before.dtype, torch.float32)
    gated = before.to(wide) * functional.silu(gate.to(wide))
    parts = gated.unflatten(-1, (groups, -1))
    root = (parts.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return (parts * root).flatten(-2).to(before.dtype) * weight
