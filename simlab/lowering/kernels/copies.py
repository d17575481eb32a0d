"""What ZeRO-3 copies on the computing stream where torch shards, what nanotron adds up, and what
autocast casts."""

from simlab.layer.operation import OperationKind
from simlab.lowering.kernels.kernel import GroupedMatmul, LayerKernels, Matmul, Memory
from simlab.lowering.zero import autocasts, gathers_for_ops
from simlab.spec.plan import Plan

ADDED_BYTES = 4
"""What nanotron moves for a gradient beyond a product that adds it to its fp32 sum (8 bytes): the
product writes 16 bits (2), which are read and added to fp32 ones (10) once the backward is over
(`_accumulate_grad` in nanotron/optim/gradient_accumulator.py)."""


def with_copies(kernels: LayerKernels, plan: Plan, parameters: float) -> LayerKernels:
    """`kernels` of a unit of so many `parameters`, with the copies that ZeRO-3 adds to them, or
    with nanotron's sums, or with autocast's casts.

    In FSDP2 (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py) a gathered buffer has the
    shards of rank after rank. So each parameter is copied out of it, before the forward and before
    the backward (`foreach_all_gather_copy_out`), and each gradient is copied into what is
    scattered, in the type of the reduction (`foreach_reduce_scatter_copy_in`). In FSDP1 the flat
    parameter is gathered in place, and its gradient is made by joining those of its views.

    Leaves out the one copy a step of a pipeline whose stages stay gathered: kernels are those of
    every microbatch.
    """
    if plan.habits.adds_after_backward:
        added = Memory("sum of gradients", ADDED_BYTES * parameters, OperationKind.COPY)
        return kernels._replace(weight_grad=[*kernels.weight_grad, added])
    if autocasts(plan):
        return _with_casts(kernels, plan)
    copies = plan.habits.cuts_each_tensor or plan.habits.joins_gradients
    if not (copies and gathers_for_ops(plan)):
        return kernels
    size = plan.element_bytes * parameters
    if plan.habits.joins_gradients:
        joined = Memory("copy of gradients", 2 * size, OperationKind.COPY)
        return kernels._replace(weight_grad=[*kernels.weight_grad, joined])
    once = not plan.reshard and plan.is_pipeline
    out = [Memory("copy of parameters", 2 * size, OperationKind.COPY)] * (not once)
    again = [Memory("copy of parameters again", 2 * size, OperationKind.COPY)] * plan.reshard
    into_bytes = size + plan.gradient_bytes * parameters
    into = Memory("copy of gradients", into_bytes, OperationKind.COPY)
    return LayerKernels(
        [*out, *kernels.forward],
        [*again, *kernels.input_grad],
        [*kernels.weight_grad, into],
        kernels.recompute,
    )


def _with_casts(kernels: LayerKernels, plan: Plan) -> LayerKernels:
    """`kernels` with autocast's casts of the weights of products, once for each forward (and for one
    that runs again: a cast is kept until autocast's context ends), and with what becomes of their
    gradients: they are cast back to fp32, and added to those of the microbatches before. Leaves out
    DDP's buckets."""
    products = [kernel for kernel in kernels.forward if isinstance(kernel, Matmul)]
    weights = sum(
        its.k * its.n * (len(its.tokens) if isinstance(its, GroupedMatmul) else 1)
        for its in products
        if its.operation not in (OperationKind.SCORES, OperationKind.VALUES)
    )
    if not weights:
        return kernels
    cast = Memory("copy of weights in 16 bits", (4 + 2) * weights, OperationKind.COPY)
    added = (plan.microbatches - 1) / plan.microbatches * (4 + 4 + 4)
    sums = Memory(
        "copy of gradients in fp32, summed", (2 + 4 + added) * weights, OperationKind.COPY
    )
    return LayerKernels(
        [cast, *kernels.forward],
        kernels.input_grad,
        [*kernels.weight_grad, sums],
        [cast, *kernels.recompute] if plan.recompute == "full" else kernels.recompute,
    )
