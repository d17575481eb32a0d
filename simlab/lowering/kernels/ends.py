"""What the two ends of a model launch: the embedding, and the loss after the head."""

from collections.abc import Sequence
from math import ceil

from simlab.layer.operation import Operation, OperationKind
from simlab.layer.parameters import on_rank
from simlab.layer.saved import Share
from simlab.lowering.kernels.kernel import Communication, Launched, Memory
from simlab.spec.plan import Plan

MEGATRON_LOSS_BYTES = (32, 8)
"""Bytes that a logit's loss reads and writes in fp32, forward and backward, in Megatron-LM's
vocabulary-parallel form, which it has without tensor parallelism, too.

The forward takes the maximum (4), subtracts it (8), takes the exponential (8), sums (4) and divides
(8); the backward multiplies by the gradient of the loss (8). All but the maximum and the sum happen
in place (Megatron-Core, core/tensor_parallel/cross_entropy.py).
"""

TORCH_LOSS_BYTES = (8, 16)
"""The same of torch's own loss: log-softmax forward; backward zeros for its gradient (4), and that
gradient, for which it reads the zeros and the result (12)."""


def embedding_kernel(embedding: Operation, plan: Plan, share: Share) -> Memory:
    """The rows of the embedding are read and written, and those of the positions added. Dropout reads
    and writes each element and writes a byte of mask, and moves as much backward."""
    rows_bytes = (
        2 * len(embedding.weights) * share.size_bytes(embedding.makes[0], plan.element_bytes)
    )
    return Memory("embedding", rows_bytes + _dropout_bytes(embedding, plan, share), embedding.kind)


def _dropout_bytes(embedding: Operation, plan: Plan, share: Share) -> float:
    if not plan.dropout:
        return 0.0
    moved = (share.size_bytes(its, plan.element_bytes) for its in embedding.makes)
    return next(moved) * 2 + next(moved)


def embedding_grads(
    embedding: Operation, plan: Plan, share: Share
) -> tuple[list[Memory], list[Memory]]:
    """What dropout's backward moves, and the gradient of the table. That is dense: zeros are written,
    the tokens' rows are added in fp32, and all of it is added to what earlier microbatches made,
    unless ZeRO-3 scatters it first."""
    width, table = plan.element_bytes, embedding.weights[0]
    number_bytes = width if plan.zero == 3 else 2 * width + 2 * plan.gradient_bytes
    dense = on_rank(table, plan.tp, plan.etp, plan.ep).numbers * number_bytes
    rows = 3 * 4 * share.tokens * table.columns / plan.tp
    grad = Memory("embedding grad", rows + dense, embedding.kind)
    if not plan.dropout:
        return [], [grad]
    dropped = _dropout_bytes(embedding, plan, share)
    return [Memory("embedding dropout grad", dropped, embedding.kind)], [grad]


def loss_kernels(loss: Operation, plan: Plan, share: Share) -> list[Launched]:
    """The loss, and before it what a vocabulary-parallel one needs of the other ranks, in fp32: each
    token's largest logit, then the sum of exponentials and the target's logit (Megatron-LM,
    core/tensor_parallel/cross_entropy.py)."""
    sums: Sequence[tuple[str, float]] = ()
    if plan.tp > 1:
        sums = ("loss maximum", 4 * share.tokens), ("loss sums", 2 * 4 * share.tokens)
    logits = share.tokens * ceil(share.width(loss.reads[0]))
    return [
        *(Communication(name, "all_reduce", "tp", its, operation=loss.kind) for name, its in sums),
        Memory("loss", loss_bytes(plan)[0] * logits, OperationKind.LOSS),
    ]


def loss_bytes(plan: Plan) -> tuple[int, int]:
    """Bytes that the loss moves of a logit, forward and backward. What torch.compile makes of it reads
    the logits once on a GPU (`online_softmax` in torch/_inductor/config.py; torch counts 4.0 bytes of
    a bf16 logit on a CPU, where it reads them twice), and backward once more to write their gradient
    (4.0 bytes). Transformer Engine's kernels read the logits twice and write their gradient in their
    place, and the backward multiplies it by that of the loss (common/triton/cross_entropy.py; in fp32
    since July 2026, which is left out)."""
    width = plan.element_bytes
    if plan.compiled_loss:
        return (3 if plan.habits.fuses_loss else 1) * width, 2 * width
    cast = 4 + width if width < 4 else 0  # to fp32, and its gradient's cast back
    forward, grad = MEGATRON_LOSS_BYTES if plan.habits.fuses_loss else TORCH_LOSS_BYTES
    return cast + forward, cast + grad
