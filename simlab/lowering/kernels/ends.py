"""The kernels of the two ends of a model: the embedding, and the head with its norm and loss."""

from simlab.layer.operation import OperationKind
from simlab.layer.parameters import unit_parameters
from simlab.lowering.kernels.backward import backward, communication_backward, matmul_backward
from simlab.lowering.kernels.copies import with_copies
from simlab.lowering.kernels.kernel import Communication, Launched, LayerKernels, Matmul, Memory
from simlab.lowering.kernels.memory_bound import norm_of
from simlab.lowering.kernels.microbatch import Sizes, sizes
from simlab.lowering.kernels.tensor_parallel import gathered_input, summed_result
from simlab.spec.model import Model
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


def embedding_kernels(model: Model, plan: Plan) -> LayerKernels:
    """The `LayerKernels` of the begin of the first stage.

    The forward reads the rows of the embedding, adds those of the positions and applies dropout,
    which reads and writes each element and writes a byte of mask, and moves as much backward. The
    result is summed over tp. For the gradient, sequence parallelism gathers that of all tokens.
    It is dense: zeros are written, the tokens' rows are added in fp32, and all of it is added to
    what earlier microbatches made, unless ZeRO-3 scatters it first.
    """
    s = sizes(model, plan)
    dropout_bytes = (2 * s.width + 1) * s.outside if plan.dropout else 0.0
    rows_bytes = 2 * (1 + bool(model.positions)) * s.width * s.outside + dropout_bytes
    rows = Memory("embedding", rows_bytes, OperationKind.EMBEDDING)
    sums = summed_result(model, plan, OperationKind.EMBEDDING)
    grads: list[Launched] = []
    if plan.dropout:
        grads.append(Memory("embedding dropout grad", dropout_bytes, OperationKind.EMBEDDING))
    for kernel in sums:
        grads += communication_backward(kernel, plan)
    dense = (
        model.vocab
        * model.hidden
        / plan.tp
        * (s.width if plan.zero == 3 else 2 * s.width + 2 * plan.gradient_bytes)
    )
    grad_bytes = 3 * 4 * s.tokens * model.hidden / plan.tp + dense
    grad = Memory("embedding grad", grad_bytes, OperationKind.EMBEDDING)
    return with_copies(
        LayerKernels([rows, *sums], grads, [grad], []),
        plan,
        unit_parameters(model, plan, "embedding"),
    )


def head_kernels(model: Model, plan: Plan) -> LayerKernels:
    """The `LayerKernels` of the end of the last stage: norm, output head and cross-entropy."""
    s = sizes(model, plan)
    vocab = -(-model.vocab // plan.tp)
    logits = s.tokens * vocab
    last_norm = norm_of("last norm", OperationKind.LAST_NORM, model, plan)
    norm_grads = [grad for part in reversed(last_norm) for grad in backward(part, plan)[0]]
    loss_bytes, loss_grad_bytes = (size * logits for size in _loss_bytes(s, plan))
    gather = gathered_input(model, plan, OperationKind.HEAD)
    head = Matmul("head", s.tokens, vocab, model.hidden, operation=OperationKind.HEAD)
    head_grads, weight_grads = matmul_backward(head, plan)
    forward: list[Launched] = [
        *last_norm,
        *gather,
        head,
        *_vocabulary_sums(s, plan),
        Memory("loss", loss_bytes, OperationKind.LOSS),
    ]
    grads: list[Launched] = [
        Memory("loss grad", loss_grad_bytes, OperationKind.LOSS),
        *head_grads,
        *(grad for kernel in gather for grad in communication_backward(kernel, plan)),
        *norm_grads,
    ]
    return with_copies(
        LayerKernels(forward, grads, weight_grads, []),
        plan,
        unit_parameters(model, plan, "head", first=plan.stages == 1),
    )


def _loss_bytes(s: Sizes, plan: Plan) -> tuple[int, int]:
    """Bytes that the loss moves of a logit, forward and backward. What torch.compile makes of it reads
    the logits once on a GPU (`online_softmax` in torch/_inductor/config.py; torch counts 4.0 bytes of
    a bf16 logit on a CPU, where it reads them twice), and backward once more to write their gradient
    (4.0 bytes)."""
    if plan.compiled_loss:
        return s.width, 2 * s.width
    cast = 4 + s.width if s.width < 4 else 0  # to fp32, and its gradient's cast back
    forward, grad = MEGATRON_LOSS_BYTES if plan.has_flat_gradients else TORCH_LOSS_BYTES
    return cast + forward, cast + grad


def _vocabulary_sums(s: Sizes, plan: Plan) -> list[Communication]:
    """What the vocabulary-parallel loss needs of the other ranks, in fp32: each token's largest
    logit, then the sum of exponentials and the target's logit (Megatron-LM,
    core/tensor_parallel/cross_entropy.py)."""
    if plan.tp == 1:
        return []
    sums = (("loss maximum", 4 * s.tokens), ("loss sums", 2 * 4 * s.tokens))
    return [
        Communication(name, "all_reduce", "tp", size_bytes, operation=OperationKind.LOSS)
        for name, size_bytes in sums
    ]
