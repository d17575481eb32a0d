"""Context parallelism: each rank has its part of every sequence, and attention needs the keys and
values of all ranks.

There are three ways, forward and backward. They take q (batch, heads, tokens, head size) and k, v
(batch, kv heads, tokens, head size) of this rank's tokens:
    gathered   the naive one: all keys and values are on every rank at once, n times the memory
               (Llama 3 does this: arXiv 2407.21783, 3.3.2)
    ring       keys and values go round, and parts of the softmax are merged as they come (Liu et
               al. 2023, Ring Attention, arXiv 2310.01889)
    ulysses    an all-to-all leads from part of the tokens of all heads to all tokens of part of the
               heads, and another one back (arXiv 2309.14509)

The sequence is cut into n or 2n equal chunks, in one of two layouts. 'contiguous': rank r has chunk
r, so that under a causal mask the last rank has most to do and the first next to nothing. 'zigzag':
rank r has chunks r and 2n-1-r, so that all ranks have the same to do in every step of the ring
(Llama 3; Brandon et al. 2023, Striped Attention, arXiv 2311.09431, is another such order).

Left out: fused kernels (the scores of a block are stored while it is computed, as float64 on a CPU
needs), dropout, sliding windows.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from realrun.comm.group import Group, Pending
from realrun.parallel.layers.sequence import conjugates
from simlab.errors import InputError, did_you_mean
from simlab.lowering.context import context_chunks

LAYOUTS = ("contiguous", "zigzag")
TOKENS = 2


def positions(tokens: int, group: Group, layout: str) -> Tensor:
    """The positions in the sequence of this rank's `tokens` tokens, int64 (tokens,). With them a
    rank takes its part of tokens, targets and embeddings. `InputError` for an unknown layout, and
    for an odd number of tokens in zigzag."""
    return positions_at(group.place, tokens, group.size, layout)


def positions_at(place: int, tokens: int, size: int, layout: str) -> Tensor:
    """The same for the rank at `place` of `size` ranks."""
    _check(tokens, layout)
    chunks = context_chunks(place, size, layout)
    part = tokens // len(chunks)
    return torch.cat([torch.arange(chunk * part, (chunk + 1) * part) for chunk in chunks])


def gathered_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, layout: str = "zigzag", causal: bool = True
) -> Tensor:
    """The naive form: this rank's rows of attention over keys and values that are gathered from all
    ranks. In the backward their gradients are reduce-scattered."""
    tokens = q.shape[TOKENS]
    _check(tokens, layout)
    k, v = (_gather_tokens(x, group) for x in (k, v))
    mask = None
    if causal:
        everyone = torch.cat(
            [positions_at(place, tokens, group.size, layout) for place in range(group.size)]
        )
        mask = (positions(tokens, group, layout).unsqueeze(-1) >= everyone).to(q.device)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def _gather_tokens(x: Tensor, group: Group) -> Tensor:
    return conjugates(
        x,
        lambda x: group.all_gather(x, TOKENS).wait(),
        lambda dy: group.reduce_scatter(dy, TOKENS).wait(),
    )


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, layout: str = "zigzag", causal: bool = True
) -> Tensor:
    """This rank's rows of attention over all ranks' keys and values, which go round the ring one
    step ahead of the computing.

    The forward sends n - 1 messages of K and V. The backward sends n - 1 of them and n - 1 of their
    gradients. The gradients travel beside the keys that they belong to and come home with the last
    one, where the rank's own contribution is added.
    """
    _check(q.shape[TOKENS], layout)
    return _RingAttention.apply(q, k, v, group, layout, causal)


def visible(
    place: int, source: int, tokens: int, layout: str, causal: bool
) -> list[tuple[slice, slice, bool]]:
    """[(query slice, key slice, whether the mask is triangular)]: what the rank at `place` computes
    of the keys of `source`.

    In zigzag it uses the first half of an earlier rank's keys for all queries, and all keys of a
    later rank for the second half of the queries.
    """
    everything, half = slice(0, tokens), tokens // 2
    if not causal or source == place:
        return [(everything, everything, causal)]
    if layout == "contiguous":
        return [(everything, everything, False)] if source < place else []
    return (
        [(everything, slice(0, half), False)]
        if source < place
        else [(slice(half, tokens), everything, False)]
    )


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Group, layout: str, causal: bool
    ) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)  # what is added up over steps
        out = torch.zeros_like(q, dtype=exact)
        lse = q.new_full(q.shape[:-1], -math.inf, dtype=exact)
        kv = torch.stack([k, v])
        for step in range(group.size):
            arriving = group.shift(kv) if step + 1 < group.size else None
            source = (group.place - step) % group.size
            for rows, keys, triangular in visible(
                group.place, source, q.shape[TOKENS], layout, causal
            ):
                its_k, its_v = kv[:, :, :, keys]
                block = block_attention(q[:, :, rows], its_k, its_v, triangular)
                _merge(out[:, :, rows], lse[:, :, rows], *block)
            if arriving is not None:
                kv = arriving.wait()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = group, layout, causal
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        group, layout, causal = ctx.ring
        inner = (dout * out).to(lse.dtype).sum(-1)
        dq, kv = torch.zeros_like(q, dtype=lse.dtype), torch.stack([k, v])
        own = kv  # replaced in the first step
        travelling: Pending | None = None
        for step in range(group.size):
            arriving = group.shift(kv) if step + 1 < group.size else None
            source = (group.place - step) % group.size
            dkv = torch.zeros_like(kv)
            for rows, keys, triangular in visible(
                group.place, source, q.shape[TOKENS], layout, causal
            ):
                its_k, its_v = kv[:, :, :, keys]
                known = dout[:, :, rows], lse[:, :, rows], inner[:, :, rows]
                dq_part, dkv[0, :, :, keys], dkv[1, :, :, keys] = block_gradients(
                    q[:, :, rows], its_k, its_v, triangular, *known
                )
                dq[:, :, rows] += dq_part
            if step == 0:
                own = dkv  # stays here until the others' contributions come home
            else:
                if travelling is not None:
                    dkv = dkv + travelling.wait()
                travelling = group.shift(dkv)
            if arriving is not None:
                kv = arriving.wait()
        dk, dv = own if travelling is None else own + travelling.wait()
        return dq.to(q.dtype), dk, dv, None, None, None


def block_attention(q: Tensor, k: Tensor, v: Tensor, triangular: bool) -> tuple[Tensor, Tensor]:
    """(softmax(q k^T / sqrt d) v, log-sum-exp of the scores): of a block of keys alone, with what
    it takes to merge it with others."""
    scores = _scores(q, k, triangular)
    lse = scores.logsumexp(-1)
    out = torch.exp(scores - lse.unsqueeze(-1)).to(v.dtype) @ v.unsqueeze(2)
    return out.flatten(1, 2), lse.flatten(1, 2)


def _merge(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    """Add a block to `out` and `lse`, in place. Each side is weighted by exp of its log-sum-exp
    (Milakov and Gimelshein 2018, arXiv 1805.02867)."""
    both = torch.logaddexp(lse, block_lse)
    out.mul_((lse - both).exp().unsqueeze(-1)).add_(
        block_out * (block_lse - both).exp().unsqueeze(-1)
    )
    lse.copy_(both)


def block_gradients(
    q: Tensor, k: Tensor, v: Tensor, triangular: bool, dout: Tensor, lse: Tensor, inner: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of a block, given the log-sum-exp over *all* keys and `inner`, each row's sum of
    dout out.

    Algorithm 4 of Dao et al. 2022, FlashAttention, arXiv 2205.14135:

    P = exp(q k^T / sqrt d - lse), dV = P^T dO, dS = P (dO V^T - inner), dQ = dS K / sqrt d, dK =
    dS^T Q / sqrt d.
    """
    grouped = (k.shape[1], q.shape[1] // k.shape[1])  # (kv heads, queries' heads for each)
    p = torch.exp(_scores(q, k, triangular) - lse.unflatten(1, grouped).unsqueeze(-1))
    q, dout, inner = (x.unflatten(1, grouped) for x in (q, dout, inner))
    ds = (p * (dout @ v.unsqueeze(2).mT - inner.unsqueeze(-1)) / math.sqrt(q.shape[-1])).to(q.dtype)
    return (ds @ k.unsqueeze(2)).flatten(1, 2), (ds.mT @ q).sum(2), (p.to(q.dtype).mT @ dout).sum(2)


def _scores(q: Tensor, k: Tensor, triangular: bool) -> Tensor:
    """(batch, kv heads, heads for each, queries, keys), in fp32 at least; -inf above the diagonal
    if triangular."""
    scores = q.unflatten(1, (k.shape[1], -1)) @ k.unsqueeze(2).mT / math.sqrt(q.shape[-1])
    scores = scores.to(torch.promote_types(q.dtype, torch.float32))
    if triangular:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def ulysses_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, layout: str = "zigzag", causal: bool = True
) -> Tensor:
    """This rank's rows of attention. An all-to-all each for q, k and v gives all tokens of 1/n of
    the heads, and one gives the rows back.

    Each rank sends (n-1)/n of its q, k, v and output, whatever n is. For large n that is less than
    the ring's n - 1 times k and v. But n must divide the number of heads, and that of the heads of
    keys and values; `InputError` where it does not.
    """
    tokens, size = q.shape[TOKENS], group.size
    _check(tokens, layout)
    for name, heads in (("heads", q.shape[1]), ("kv heads", k.shape[1])):
        if heads % size:
            raise InputError(
                f"Ulysses over {size} {group.dimension} ranks with {heads} {name}: {size} must divide them; or take the ring"
            )
    q, k, v = (exchange(x, group, 1, TOKENS) for x in (q, k, v))
    everyone = torch.cat([positions_at(place, tokens, size, layout) for place in range(size)]).to(
        q.device
    )
    order = everyone.argsort()
    q, k, v = (x[:, :, order] for x in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return exchange(out[:, :, everyone], group, TOKENS, 1)


def exchange(x: Tensor, group: Group, cut: int, joined: int) -> Tensor:
    """All-to-all: `x` is cut along `cut`, each part goes to its rank, and what comes is joined
    along `joined`. Its backward goes the other way."""
    return conjugates(
        x,
        lambda x: _exchanged(x, group, cut, joined),
        lambda dy: _exchanged(dy, group, joined, cut),
    )


def _exchanged(x: Tensor, group: Group, cut: int, joined: int) -> Tensor:
    return torch.cat(list(group.all_to_all(torch.stack(group.cut(x, cut))).wait()), joined)


Attention = Callable[[Tensor, Tensor, Tensor, Group, str], Tensor]
ATTENTIONS: dict[str, Attention] = {
    "gathered": gathered_attention,
    "ring": ring_attention,
    "ulysses": ulysses_attention,
}


def _check(tokens: int, layout: str) -> None:
    if layout not in LAYOUTS:
        raise InputError(
            f"layout {layout!r}{did_you_mean(layout, LAYOUTS)}: give one of {', '.join(LAYOUTS)}"
        )
    if layout == "zigzag" and tokens % 2:
        raise InputError(
            f"zigzag with {tokens} tokens on a rank: each has two chunks, so give an even number"
        )
