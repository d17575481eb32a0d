"""Activation recomputation: a block holds less for the backward, and computes it again there (Chen
et al. 2016, arXiv 1604.06174).

    mode        a block holds (b sequences, s tokens, h hidden, a heads; numbers)
    none        (16 h + 4) bs, and abs with flash attention or abs^2 with unfused attention
    selective   (16 h + 4) bs
    full        h bs, its input

With selective recomputation the backward computes the attention again: two matrix products and a
softmax. With full recomputation it computes the block's forward again.

The figures are those of realrun's block, which holds the inputs of two norms and four linear
layers, q, k and v, the gelu's input, the mean and the deviation of two norms, and then the
attention's log-sums or its softmax. Selective recomputation (Korthikanti et al. 2022, arXiv
2205.05198, section 5) was made for unfused attention. A fused kernel computes the scores again by
itself, so next to nothing is left to save. torch ends a recomputation when all that was held is
there again: of unfused attention, before the second product. Leaves out dropout, which the block
does not have.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from simlab.errors import InputError

Attend = Callable[..., Tensor]
"""What is called as torch's scaled_dot_product_attention is."""
MODES = ("none", "selective", "full")
ATTENTIONS = ("flash", "unfused")


def recompute(blocks: Iterable[nn.Module], mode: str, *, attention: str = "flash") -> None:
    """From now on, `blocks` hold for the backward what `mode` says. They are modules that call
    torch's scaled_dot_product_attention. `InputError` for an unknown mode or attention.

    attention: 'flash' is torch's kernel; 'unfused' is two matrix products with a softmax between
    them, as before there were such kernels.

    It replaces the blocks' `forward`, so hooks (ZeRO-3's) stay outside: they run once in the
    forward, and not again in the backward.
    """
    if mode not in MODES:
        raise InputError(f"recompute {mode!r}: give one of {', '.join(MODES)}")
    if attention not in ATTENTIONS:
        raise InputError(f"attention {attention!r}: give one of {', '.join(ATTENTIONS)}")
    core = unfused_attention if attention == "unfused" else functional.scaled_dot_product_attention
    for block in blocks:
        forward = type(block).forward.__get__(block)
        inner = partial(
            _with_attention, partial(_again, core) if mode == "selective" else core, forward
        )
        block.forward = partial(_again, inner) if mode == "full" else inner


def unfused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q k' / sqrt(d)) v with all scores in memory. The arguments and the result are (batch,
    heads, seq, d); keys and values may have fewer heads. attn_mask: where keys are met, bool."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    return scores.softmax(-1) @ v


def _again(function: Callable[..., Tensor], *arguments: Tensor, **named: Any) -> Tensor:
    """`function`, of which autograd holds only the arguments. torch's checkpoint runs it again in
    the backward."""
    return checkpoint(function, *arguments, use_reentrant=False, **named)


def _with_attention(core: Attend, forward: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    with _Attention(core):
        return forward(*arguments)


class _Attention(TorchFunctionMode):
    """Inside, calls of torch's attention are calls of `core`."""

    def __init__(self, core: Attend) -> None:
        super().__init__()
        self.core = core

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        function = self.core if function is functional.scaled_dot_product_attention else function
        return function(*args, **(kwargs or {}))
