"""The kernels of attention itself, and what context parallelism sends for it."""

from dataclasses import replace

from simlab.layer.operation import Operation, OperationKind, Tensor
from simlab.layer.saved import Share
from simlab.lowering.context import busiest_share, window_shares
from simlab.lowering.kernels.kernel import Attention, Communication, Launched, Matmul, Memory, Place
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


CAST_BYTES = 6
"""Bytes that Transformer Engine moves for each number of queries, keys, values and the result's gradient that
attention in 8 bits reads, as it is and transposed: what a cast to MXFP8 takes (`simlab.cost.roofline.CAST_BYTES`,
`mxfp8_quantize_only` in transformer_engine/pytorch/attention/dot_product_attention/utils.py)."""


def casts_for_attention(operation: Operation, plan: Plan, share: Share) -> list[Launched]:
    """The casts before attention in 8 bits. What is kept for the backward is taken to stay in 16 bits."""
    if plan.attention != "flash-fp8":
        return []
    forward, backward = (
        CAST_BYTES * sum(map(share.numbers, tensors))
        for tensors in (operation.reads, operation.makes[:1])
    )
    return [Memory("casts for attention", forward, operation.kind, backward)]


def fused_attention(operation: Operation, model: Model, plan: Plan, share: Share) -> list[Launched]:
    """Fused attention, and what context parallelism sends for it, by `Plan.cp_kind`.

    Where a window of w keys slides, a query of a sequence of s meets w keys, and the first w ones
    meet half as many on average: w s - w^2 / 2 pairs. That is 2 - w / s times the half of w s that a
    causal kernel computes of so many keys; of windows side by side it computes just this half.
    Context parallelism sends what it sends without windows, and each rank computes its own queries'
    pairs (`AttnFuncWithCPAndKVAllGather` and `AttnFuncWithCPAndQKVOA2A` in transformer_engine/pytorch/
    attention/dot_product_attention/context_parallel.py; there is no ring with windows there).

    In a ring every rank passes on its keys and values, cp - 1 times. The time is that of the rank
    with most to compute: of the causal triangle the last one's contiguous chunk has (2 cp - 1) / cp
    times the mean, and zigzag chunks have the mean (`simlab.lowering.context`).

    With all-gather (Llama 3, Dubey et al. 2024, arXiv 2407.21783, section 3.3.2) every rank waits
    for all keys and all values, which it keeps for the backward, and reduce-scatters their
    gradients. The time is the busiest rank's, as in a ring.
    """
    seq, batch, cp = plan.seq or model.seq, plan.microbatch_size, plan.cp
    q, k, v = operation.reads
    d, value = int(q.least), int(v.least)
    attention = Attention(
        "attention", batch, _heads(q, share), seq, seq, d, generation=plan.attention
    )
    met = model.keys_met(seq)
    if met < seq and model.window_slides:
        attention = replace(attention, within=seq)
    if cp == 1 or plan.cp_kind == "all-to-all":
        slides = 2 - met / seq if model.window_slides else 1.0
        value_size = None if value == d else value
        attention = replace(attention, keys=met, share=slides, value_size=value_size)
        return [attention] if cp == 1 else _exchanged(attention, k, plan, share)
    work = busiest_share(cp, plan.cp_layout)
    attention = replace(attention, queries=seq // cp, share=work)
    if met < seq:
        shares = window_shares(cp, plan.cp_layout, seq, met)
        attention = replace(attention, keys=met, share=max(shares), shares=shares)
    sizes = keys_bytes, values_bytes = [share.size_bytes(its, plan.element_bytes) for its in (k, v)]
    if plan.cp_kind == "all-gather":
        keys, values = (
            Communication(
                f"{tensor} gather",
                "all_gather",
                "cp",
                cp * size_bytes,
                operation=OperationKind.ATTENTION,
                tensor=tensor,
            )
            for tensor, size_bytes in zip(("keys", "values"), sizes)
        )
        return [keys, values, attention]
    ring = Communication(
        "attention ring",
        "ring",
        "cp",
        keys_bytes + values_bytes,
        Place(OperationKind.ATTENTION),
        cp - 1,
        OperationKind.ATTENTION,
    )
    return [ring, attention]


def _exchanged(attention: Attention, keys: Tensor, plan: Plan, share: Share) -> list[Launched]:
    """Attention with all-to-all (DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509).

    A rank trades its part of the sequence with all heads for the whole sequence with a cp-th of the
    heads. That takes 4 all-to-alls: of q, k, v and the result, each of 1/cp of a tensor per rank,
    of which it sends (cp - 1) / cp. Every rank has the whole triangle of its heads, so no layout is
    unbalanced. Where there are fewer key and value heads than ranks, they are sent to several.
    """
    cp, heads, kv = plan.cp, attention.heads, _heads(keys, share)
    head, kv_sent = plan.element_bytes * share.tokens * keys.least, -(-kv // cp) * cp
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
    return [q, k, v, replace(attention, heads=heads // cp), result]


def _heads(tensor: Tensor, share: Share) -> int:
    """The heads that a rank has of a tensor."""
    return round(share.width(tensor) / tensor.least)


def stored_scores(operation: Operation, model: Model, plan: Plan, share: Share) -> list[Launched]:
    """What an operation on scores that are stored launches: a product, or passes over the scores. A window
    masks scores, all of which are computed."""
    seq, kind = plan.seq or model.seq, operation.kind
    if kind in (OperationKind.SCORES, OperationKind.VALUES):
        stored = operation.makes[0] if kind is OperationKind.SCORES else operation.reads[0]
        batch = _score_matrices(stored, model, plan)
        queries, size = seq // plan.cp, int(operation.reads[1].least)
        n, k = (seq, size) if kind is OperationKind.SCORES else (size, seq)
        return [Matmul(kind.value, queries, n, k, batch, operation=kind)]
    scores = share.numbers(operation.reads[0])
    fused = softmax_is_fused(operation, model, plan)
    passes = {kind: 2 * plan.element_bytes} if fused else TORCH_SOFTMAX
    return [Memory(its.value, size * scores, its) for its, size in passes.items()]


def _score_matrices(scores: Tensor, model: Model, plan: Plan) -> int:
    """How many matrices of scores a rank has: one for each sequence and head."""
    return plan.microbatch_size * (round(scores.numbers / (plan.seq or model.seq)) // plan.tp)


def softmax_is_fused(softmax: Operation, model: Model, plan: Plan) -> bool:
    """Whether stored scores are scaled, masked and normalised in one pass.

    Leaves out: the longest sequence that the kernel takes (2048 in 2021, longer since); fp32, which
    it does not take but is counted as if it did; and that torch's ops keep their result in fp32.
    """
    matrices = _score_matrices(softmax.reads[0], model, plan)
    return plan.element_bytes != 2 or matrices % FUSED_SOFTMAX_MATRICES == 0
