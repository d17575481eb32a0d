"""The kernels of a unit's backward, made from its operations and from what they have launched."""

from collections.abc import Sequence
from dataclasses import replace

from simlab.layer.operation import Operation, OperationKind
from simlab.layer.passes.tensor import cuts_outputs
from simlab.layer.saved import Share
from simlab.lowering.kernels.ends import embedding_grads, loss_bytes
from simlab.lowering.kernels.grouped import adds_apart, has_bias
from simlab.lowering.kernels.kernel import (
    Attention,
    Carries,
    Communication,
    Kernel,
    Launched,
    Matmul,
    Memory,
    Place,
)
from simlab.lowering.kernels.tensor_parallel import keeps_gathered
from simlab.lowering.zero import autocasts, reduces_each_backward
from simlab.spec.plan import Plan

Grads = tuple[list[Launched], list[Kernel]]
"""What makes the gradient of an input, and what makes that of a weight."""

BACKWARD_BYTES = {
    OperationKind.NORM: 2.5,
    OperationKind.LAST_NORM: 2.5,
    OperationKind.SOFTMAX: 1.5,
    OperationKind.MASK: 2,
    OperationKind.RESIDUAL: 0.8,
    OperationKind.ACTIVATION: 1.6,
    OperationKind.ATTENTION_DROPOUT: 1,
    OperationKind.COPY: 1,
}
"""{operation: bytes that its backward moves over those that its forward moves}. Any other one's reads what
the operation has saved, and otherwise moves as much as the forward.

A norm's backward reads its input and its output's gradient twice, for the gradients of the input
and of the weights, and writes the input's: 5 passes for 2. A softmax's reads its result and that
one's gradient and writes the scores': 3 for 2. A mask's copies the gradient and then masks it: 4
for 2. An activation's takes 5 passes for 3 if it is gated, 3 for 2 if not; 1.6 stands for both. The
figure of a residual, whose backward reads a gradient and dropout's mask, is an estimate.
"""

UNDER_AUTOCAST = {OperationKind.RESIDUAL: 6 / (4 + 2 + 4)}
"""The same under autocast: a residual's backward casts the gradient of the branch to 16 bits."""


def backward(
    operations: Sequence[Operation],
    launched: Sequence[Sequence[Launched]],
    plan: Plan,
    share: Share,
) -> Grads:
    """What a unit's backward launches, from its last operation to the first. launched: what each of
    them has launched in the forward. What is summed up for all of them comes last."""
    input_grad: list[Launched] = []
    weight_grad: list[Kernel] = []
    for its, kernels in zip(reversed(operations), reversed(launched)):
        if its.kind is OperationKind.EMBEDDING:
            dropped, of_table = embedding_grads(its, plan, share)
            input_grad += dropped
            weight_grad += of_table
            kernels = kernels[1:]
        for kernel in reversed(kernels):
            if isinstance(kernel, Matmul):
                grads_in, grads_weight = matmul_backward(kernel, plan, cut=cuts_outputs(its))
            else:
                grads_in, grads_weight = _input_grads(kernel, plan), []
            input_grad += grads_in
            weight_grad += grads_weight
    input_grad += residual_grads(operations, plan, share)
    weight_grad += bias_grads(operations, plan, share)
    return input_grad, weight_grad


def _input_grads(kernel: Attention | Memory | Communication, plan: Plan) -> list[Launched]:
    """What makes the gradient of the input of a `kernel` of the forward that has no weights."""
    if isinstance(kernel, Attention):
        return [replace(kernel, name="attention grad", backward=True)]
    if isinstance(kernel, Communication):
        return [*communication_backward(kernel, plan)]
    size_bytes = kernel.size_bytes
    if kernel.grad_bytes is not None:
        return [Memory(f"{kernel.name} grad", kernel.grad_bytes, kernel.operation)]
    if kernel.operation is OperationKind.LOSS:
        forward, backward = loss_bytes(plan)
        size_bytes = size_bytes / forward * backward
    ratios = BACKWARD_BYTES | (UNDER_AUTOCAST if autocasts(plan) else {})
    ratio = ratios.get(kernel.operation, 1)
    return [Memory(f"{kernel.name} grad", ratio * size_bytes, kernel.operation)]


def matmul_backward(kernel: Matmul, plan: Plan, *, cut: bool = False) -> Grads:
    """The two products that make the gradients of a product y = x w: dx = dy w' and dw = x' dy.

    Where w is `cut` by columns over tensor-parallel ranks, each rank has a part of dx, and all sum up their parts while they
    compute dw. Both operands of the scores and of the values are activations. Where torch shards
    gradients, they are reduced after every backward, so there are none to which dw is added.
    Megatron-LM's buffers of gradients, to which the product's kernel adds, have the type in which they are
    reduced (`grad_dtype` in core/distributed/distributed_data_parallel.py). That is counted of products in 8
    bits; in 16 bits a plan does not say whether torch adds what a product has written in 16 bits, as before
    that kernel and in other libraries, which moves as much as sums in fp32.
    Leaves out: the first microbatch of a step, whose dw is added to nothing everywhere; DeepSpeed and
    Megatron-FSDP, which reduce after every backward and are taken to add in fp32 all the same.
    """
    if kernel.operation in (OperationKind.SCORES, OperationKind.VALUES):
        m, n, k, batch, its = kernel.m, kernel.n, kernel.k, kernel.batch, kernel.operation
        return [
            Matmul(f"{kernel.name} grad left", m, k, n, batch, "input", its),
            Matmul(f"{kernel.name} grad right", k, n, m, batch, "input", its),
        ], []
    grads: list[Launched] = [
        replace(kernel, name=f"{kernel.name} input grad", n=kernel.k, k=kernel.n, role="input")
    ]
    if cut and plan.tp > 1 and not plan.sequence_parallel:
        grads.append(
            Communication(
                f"{kernel.name} grad reduce",
                "all_reduce",
                "tp",
                kernel.m * kernel.k * plan.element_bytes,
                Place(kernel.operation, "weight"),
                operation=kernel.operation,
                carries="input gradient",
            )
        )
    name, m, n, k = f"{kernel.name} weight grad", kernel.n, kernel.k, kernel.m
    reduced = not plan.habits.has_flat_gradients and reduces_each_backward(plan)
    fresh = reduced or autocasts(plan)  # which casts it, and then adds
    narrow = plan.gradient_bytes == 2 and plan.habits.adds_in_place and plan.has_narrow_products
    made = replace(kernel, name=name, m=m, n=n, k=k, role="weight", fresh=fresh)
    return grads, [replace(made, sum_bytes=2) if narrow else made]


def communication_backward(kernel: Communication, plan: Plan) -> list[Communication]:
    """What a backward communicates where the forward has a communication.

    The backward of a gather is a reduce-scatter, and the reverse. Of a row-parallel product's
    all-reduce it is nothing: the gradient is whole on every rank already. The input of a
    column-parallel product is gathered again for its weight's gradient (in nanotron by default:
    tp_recompute_allgather), unless it was kept: see `keeps_gathered`.
    """
    if kernel.dimension == "cp":
        return [_context_backward(kernel)]
    if kernel.kind == "all_to_all":  # gradients go back the way that tokens and results came
        return [replace(kernel, name=f"{kernel.name} grad")]
    if kernel.operation is OperationKind.COLLECT:
        return [replace(kernel, name=f"{kernel.name} grad")] * plan.sequence_parallel
    if kernel.kind == "all_reduce":
        return []
    if kernel.kind == "reduce_scatter":
        return [_of_product(kernel, "gather", "all_gather", "result gradient", 1)]
    # sums are of 16 bits, also where the input was cast
    widening = plan.element_bytes / plan.cast_bytes if plan.sends_casts else 1
    scatter = _of_product(kernel, "scatter", "reduce_scatter", "input gradient", widening)
    if keeps_gathered(plan):
        return [scatter]
    return [_of_product(kernel, "gather again", "all_gather", "input again", 1), scatter]


def _of_product(
    kernel: Communication, what: str, kind: str, carries: Carries, factor: float
) -> Communication:
    """A communication beside the products of a backward, of `factor` times as many bytes."""
    product = kernel.operation
    label = what if carries == "input again" else f"grad {what}"
    return Communication(
        f"{product} {label}",
        kind,
        "tp",
        factor * kernel.size_bytes,
        Place(product, "weight" if carries == "input gradient" else "input"),
        operation=product,
        carries=carries,
    )


def _context_backward(kernel: Communication) -> Communication:
    """What context parallelism communicates in a backward.

    What was gathered is kept, and its gradient is scattered. In an all-to-all a gradient goes back
    the way that its tensor came. In a ring keys and values go round once more, and their gradients
    with them.
    """
    if kernel.kind == "ring":
        place = Place(kernel.operation, "input")
        size_bytes = 2 * kernel.size_bytes
        return replace(kernel, name="attention grad ring", size_bytes=size_bytes, beside=place)
    if kernel.kind == "all_gather":
        return replace(kernel, name=f"{kernel.tensor} grad scatter", kind="reduce_scatter")
    return replace(kernel, name=f"{kernel.tensor} grad exchange")


def residual_grads(operations: Sequence[Operation], plan: Plan, share: Share) -> list[Memory]:
    """The sums of the gradients of residuals' two or three ways: each reads two elements and writes one, under
    autocast in fp32."""
    sums = (its for its in operations if its.kind is OperationKind.RESIDUAL)
    summed = [its.makes[0] for its in sums for _ in its.reads[1:]]
    if not summed:
        return []
    moved = 3 * (4 if autocasts(plan) else plan.element_bytes) * sum(map(share.numbers, summed))
    return [Memory("residual sum grad", moved, OperationKind.RESIDUAL)]


def bias_grads(operations: Sequence[Operation], plan: Plan, share: Share) -> list[Memory]:
    """The gradients of biases: column sums, which read the gradients of the outputs. Those that ops of
    torch add are in `added_biases`."""
    biased = [its for its in operations if has_bias(its) and not adds_apart(its, plan)]
    if not biased:
        return []
    read = sum(share.numbers(made) for its in biased for made in its.makes)
    return [Memory("bias grad", plan.element_bytes * read, OperationKind.BIAS)]
