"""The kernels of a layer's first half: norm, queries, keys and values, attention, output."""

from dataclasses import replace

from simlab.layer.operation import OperationKind
from simlab.lowering.context import busiest_share
from simlab.lowering.kernels.kernel import Attention, Communication, Launched, Matmul, Memory, Place
from simlab.lowering.kernels.memory_bound import eager, norm, residual
from simlab.lowering.kernels.microbatch import sizes
from simlab.lowering.kernels.tensor_parallel import gathered_input, summed_result
from simlab.spec.model import Model
from simlab.spec.plan import Plan

FUSED_SOFTMAX_MATRICES = 4
"""What the number of a rank's matrices of scores, heads x sequences, must be a multiple of for
Megatron-LM's kernel that scales, masks and normalises them in one pass.

A block of that kernel has 4 warps, each with a row of its own matrix. Any other number goes through
torch's own ops (megatron/model/fused_softmax.py, `attn_batch_size % 4 == 0`; vTrain's copy,
src/model/fused_softmax.py of VIA-Research/vTrain, has the same).
"""

TORCH_SOFTMAX = {
    OperationKind.CAST: 6,
    OperationKind.SCALING: 8,
    OperationKind.MASK: 8,
    OperationKind.SOFTMAX: 8,
    OperationKind.CAST_BACK: 6,
}
"""{operation: bytes that it reads and writes of a score} of torch's own ops.

They cast the scores to fp32, multiply them with the layer's number (query-key layer scaling), mask
them in place, normalise them and cast them back to 16 bits. That is 36 bytes, where the one kernel
moves 4. The backward moves 48 bytes, where the one kernel moves 6: a softmax's gradient needs its
result, too, and a mask's gradient is a copy that is then masked.
"""


def attention_part(model: Model, plan: Plan) -> list[Launched]:
    """The forward of a layer from its input to its second norm."""
    s, t, d = sizes(model, plan), plan.tp, model.head_size
    heads, kv = model.heads // t, max(1, model.kv_heads // t)
    kernels: list[Launched] = [*norm(1, model, plan)]
    if model.kv_rank:
        kernels += _latent(model, plan)
    else:
        kernels += gathered_input(model, plan, OperationKind.QKV)
        columns = (heads + 2 * kv) * d
        kernels.append(Matmul("qkv", s.tokens, columns, model.hidden, operation=OperationKind.QKV))
        kernels += _reordered(model, plan, heads, kv)
    if model.qk_norm:
        normed = 2 * s.width * s.tokens * (heads + kv) * d
        kernels.append(eager(Memory("norm of q and k", normed, OperationKind.NORM), model, plan))
    if not model.positions:
        turned = (heads + 1) * model.rope_size if model.kv_rank else (heads + kv) * d
        rotated = 2 * s.width * s.tokens * turned
        kernels.append(eager(Memory("rotary", rotated, OperationKind.ROTARY), model, plan))
    kernels += (
        _unfused(model, plan, heads)
        if plan.attention == "unfused"
        else _flash(model, plan, heads, kv)
    )
    return [
        *kernels,
        Matmul(
            "output",
            s.tokens,
            model.hidden,
            heads * model.value_width,
            operation=OperationKind.OUTPUT,
        ),
        *summed_result(model, plan, OperationKind.OUTPUT),
        residual(1, model, plan),
    ]


def _reordered(model: Model, plan: Plan, heads: int, kv: int) -> list[Memory]:
    """nanotron's copies of queries, keys and values: from the order of the product to sequence by
    sequence, then keys and values joined, and both put side by side for each token
    (`CausalSelfAttention.forward` in nanotron/models/llama.py)."""
    if plan.library != "nanotron":
        return []
    s = sizes(model, plan)
    copied = (heads + 2 * kv) + 2 * kv + 2 * kv
    size_bytes = 2 * s.width * s.tokens * copied * model.head_size
    return [Memory("order of q, k and v", size_bytes, OperationKind.TRANSPOSE)]


def _latent(model: Model, plan: Plan) -> list[Launched]:
    """Queries, keys and values by way of latents (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1):
    down to a latent, its norm, and up to all heads.

    Keys are put together from what comes up and from the rotary part that all heads have in common,
    which is a copy of each head's key. Tensor-parallel ranks have their heads of the products up, and
    all of those down, which with sequence parallelism meet a rank's own tokens; then the latents
    are gathered (`MLASelfAttention` in megatron/core/transformer/multi_latent_attention.py).
    """
    s, heads = sizes(model, plan), model.heads // plan.tp
    tokens, queries = s.tokens, heads * model.head_size
    own_tokens = round(s.outside / model.hidden)

    def latent_norm(name: str, rank: int) -> Memory:
        normed = Memory(
            f"norm of {name} latent", 2 * s.width * own_tokens * rank, OperationKind.NORM
        )
        return eager(normed, model, plan)

    kernels: list[Launched] = []
    if model.q_rank:
        kernels += [
            Matmul(
                "q down", own_tokens, model.q_rank, model.hidden, operation=OperationKind.Q_DOWN
            ),
            latent_norm("q", model.q_rank),
        ]
    entered = model.q_rank or model.hidden
    kernels += gathered_input(model, plan, OperationKind.Q_UP, entered)
    kernels.append(Matmul("q up", tokens, queries, entered, operation=OperationKind.Q_UP))
    down, own = model.kv_rank + model.rope_size, model.head_size - model.rope_size
    up = heads * (own + model.value_width)
    joined = 2 * s.width * tokens * queries
    return [
        *kernels,
        Matmul("kv down", own_tokens, down, model.hidden, operation=OperationKind.KV_DOWN),
        latent_norm("kv", model.kv_rank),
        *gathered_input(model, plan, OperationKind.KV_UP, down),
        Matmul("kv up", tokens, up, model.kv_rank, operation=OperationKind.KV_UP),
        Memory("copy of keys", joined, OperationKind.COPY),
    ]


def _flash(model: Model, plan: Plan, heads: int, kv: int) -> list[Launched]:
    """Fused attention, and what context parallelism sends for it, by `Plan.cp_kind`.

    In a ring every rank passes on its keys and values, cp - 1 times. The time is that of the rank
    with most to compute: of the causal triangle the last one's contiguous chunk has (2 cp - 1) / cp
    times the mean, and zigzag chunks have the mean (`simlab.lowering.context`).

    With all-gather (Llama 3, Dubey et al. 2024, arXiv 2407.21783, section 3.3.2) every rank waits
    for all keys and all values, which it keeps for the backward, and reduce-scatters their
    gradients. The time is the busiest rank's, as in a ring.
    """
    seq, d, batch, cp = plan.seq or model.seq, model.head_size, plan.microbatch_size, plan.cp
    value = model.value_size or None
    if cp == 1:
        whole = Attention("attention", batch, heads, seq, seq, d, generation=plan.attention)
        return [replace(whole, value_size=value)]
    if plan.cp_kind == "all-to-all":
        return _exchanged(model, plan, heads, kv)
    share = busiest_share(cp, plan.cp_layout)
    attention = Attention(
        "attention", batch, heads, seq // cp, seq, d, generation=plan.attention, share=share
    )
    kv_bytes = kv * _head_bytes(model, plan)
    if plan.cp_kind == "all-gather":
        keys, values = (
            Communication(
                f"{tensor} gather",
                "all_gather",
                "cp",
                cp * kv_bytes,
                operation=OperationKind.ATTENTION,
                tensor=tensor,
            )
            for tensor in ("keys", "values")
        )
        return [keys, values, attention]
    ring = Communication(
        "attention ring",
        "ring",
        "cp",
        2 * kv_bytes,
        Place(OperationKind.ATTENTION),
        cp - 1,
        OperationKind.ATTENTION,
    )
    return [ring, attention]


def _exchanged(model: Model, plan: Plan, heads: int, kv: int) -> list[Launched]:
    """Attention with all-to-all (DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509).

    A rank trades its part of the sequence with all heads for the whole sequence with a cp-th of the
    heads. That takes 4 all-to-alls: of q, k, v and the result, each of 1/cp of a tensor per rank,
    of which it sends (cp - 1) / cp. Every rank has the whole triangle of its heads, so no layout is
    unbalanced. Where there are fewer key and value heads than ranks, they are sent to several.
    """
    seq, cp = plan.seq or model.seq, plan.cp
    head, kv_sent = _head_bytes(model, plan), -(-kv // cp) * cp
    q, k, v, result = (
        Communication(
            f"{tensor} exchange",
            "all_to_all",
            "cp",
            count * head,
            operation=OperationKind.ATTENTION,
            tensor=tensor,
        )
        for tensor, count in (("q", heads), ("k", kv_sent), ("v", kv_sent), ("result", heads))
    )
    attention = Attention(
        "attention",
        plan.microbatch_size,
        heads // cp,
        seq,
        seq,
        model.head_size,
        generation=plan.attention,
    )
    return [q, k, v, attention, result]


def _head_bytes(model: Model, plan: Plan) -> int:
    """The bytes of one head of one tensor (queries, keys or values) on a rank."""
    s = sizes(model, plan)
    return s.width * s.tokens * model.head_size


def _unfused(model: Model, plan: Plan, heads: int) -> list[Launched]:
    """Attention whose scores are stored: two products, and what lies between them."""
    seq, d, s = plan.seq or model.seq, model.head_size, sizes(model, plan)
    batch, queries = plan.microbatch_size * heads, seq // plan.cp
    scores = batch * queries * seq
    fused = softmax_is_fused(model, plan)
    passes = {OperationKind.SOFTMAX: 2 * s.width} if fused else TORCH_SOFTMAX
    kernels: list[Launched] = [
        Matmul("scores", queries, seq, d, batch, operation=OperationKind.SCORES),
        *(Memory(its.value, size * scores, its) for its, size in passes.items()),
    ]
    if plan.dropout:
        dropped = (2 * s.width + 1) * scores
        kernels.append(Memory("attention dropout", dropped, OperationKind.ATTENTION_DROPOUT))
    return [
        *kernels,
        Matmul("values", queries, model.value_width, seq, batch, operation=OperationKind.VALUES),
        Memory(
            "transpose", 2 * s.width * s.tokens * heads * model.value_width, OperationKind.TRANSPOSE
        ),
    ]


def softmax_is_fused(model: Model, plan: Plan) -> bool:
    """Whether stored scores are scaled, masked and normalised in one pass.

    Leaves out: the longest sequence that the kernel takes (2048 in 2021, longer since); fp32, which
    it does not take but is counted as if it did; and that torch's ops keep their result in fp32.
    """
    matrices = plan.microbatch_size * (model.heads // plan.tp)
    return plan.element_bytes != 2 or matrices % FUSED_SOFTMAX_MATRICES == 0
