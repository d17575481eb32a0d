"""Activation recomputation: hold less for the backward, compute it again there (Chen et al. 2016, arXiv 1604.06174).

    mode        a block holds (b sequences, s tokens, h hidden, a heads; numbers)               computed again
    none        (16 h + 4) bs, and abs with flash attention, abs^2 with unfused       nothing
    selective   (16 h + 4) bs                                                         the attention: two matrix products and a softmax
    full        h bs: its input                                                       its forward

Of realrun's block: inputs of two norms and four linears, q, k and v, the gelu's input; mean and deviation of two norms; then the
attention's log-sums, or its softmax. Selective recomputation (Korthikanti et al. 2022, arXiv 2205.05198, section 5) was made for unfused
attention: with a fused kernel, which computes the scores again by itself, next to nothing is left for it to save. (torch ends a
recomputation when all that was held is there again: of unfused attention, before the second product.) Leaves out dropout, which the block
has not.
"""

from functools import partial

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from simlab.errors import InputError

MODES = ("none", "selective", "full")
ATTENTIONS = ("flash", "unfused")


def recompute(blocks, mode, *, attention="flash"):
    """From now on, `blocks` (modules that call torch's scaled_dot_product_attention) hold for the backward what `mode` says.

    attention: 'flash': torch's kernel; 'unfused': matrix products with a softmax between them, as before there were such kernels.

    Works on the blocks' `forward`, so hooks (ZeRO-3's) stay outside: they run once in the forward, not again in the backward.
    """
    if mode not in MODES:
        raise InputError(f"recompute {mode!r}: give one of {', '.join(MODES)}")
    if attention not in ATTENTIONS:
        raise InputError(f"attention {attention!r}: give one of {', '.join(ATTENTIONS)}")
    core = unfused_attention if attention == "unfused" else functional.scaled_dot_product_attention
    for block in blocks:
        forward = type(block).forward.__get__(block)
        inner = partial(_with_attention, partial(_again, core) if mode == "selective" else core, forward)
        block.forward = partial(_again, inner) if mode == "full" else inner


def unfused_attention(q, k, v, is_causal=False):
    """softmax(q k' / sqrt(d)) v, scores and all: (batch, heads, seq, d) → the same. Masks but the causal one are left out."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), float("-inf"))
    return scores.softmax(-1) @ v


def _again(function, *arguments, **named):
    """`function`, of which autograd holds the arguments only; torch's checkpoint runs it again in the backward."""
    return checkpoint(function, *arguments, use_reentrant=False, **named)


def _with_attention(core, forward, *arguments):
    with _Attention(core):
        return forward(*arguments)


class _Attention(TorchFunctionMode):
    """Inside, calls of torch's attention are calls of `core`."""

    def __init__(self, core):
        super().__init__()
        self.core = core

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = self.core if function is functional.scaled_dot_product_attention else function
        return function(*args, **(kwargs or {}))
