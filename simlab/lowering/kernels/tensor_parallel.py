"""What tensor parallelism communicates around a matrix product and around a message.

The matrices of a layer come in pairs (Shoeybi et al. 2019, section 3): the first is cut by columns,
so that its product needs no communication, and the second by rows, whose partial products are
summed over the group. With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) the input
of the first is gathered, and the sum of the second is scattered.
"""

from collections.abc import Sequence

from simlab.layer.microbatch import sizes
from simlab.layer.operation import Operation, OperationKind, Tensor
from simlab.layer.saved import Share
from simlab.lowering.kernels.kernel import Communication, Place
from simlab.spec.model import Model
from simlab.spec.plan import Plan


def gathered_input(
    product: OperationKind, inputs: Sequence[Tensor], plan: Plan, share: Share
) -> list[Communication]:
    """What comes before a column-parallel `product`. In 8 and 4 bits the input is cast before it is sent, so
    fewer bytes travel. inputs: the tensors that it reads, and that ranks have a part each of."""
    if plan.tp == 1 or not plan.sequence_parallel:
        return []
    width = plan.cast_bytes if plan.sends_casts else plan.element_bytes
    size_bytes = width * share.tokens * sum(its.numbers for its in inputs)
    return [
        Communication(
            f"{product} gather",
            "all_gather",
            "tp",
            size_bytes,
            Place(product),
            operation=product,
            carries="input",
        )
    ]


def keeps_gathered(plan: Plan) -> bool:
    """Whether a rank keeps what it has gathered for a column-parallel product until the gradient of
    that product's weight is made.

    torch's DTensor does: autograd saves the operand of the product, which is the gathered one
    (`Redistribute` in torch/distributed/tensor/_redistribute.py). Megatron-LM, and nanotron by
    default, keep their part of it and gather it once more.
    """
    return plan.sequence_parallel and plan.habits.keeps_gathered_inputs


def summed_result(product: Operation, plan: Plan, share: Share) -> list[Communication]:
    """What comes after a row-parallel product, or after an embedding."""
    if plan.tp == 1:
        return []
    its = product.kind
    name, kind = (
        (f"{its} scatter", "reduce_scatter")
        if plan.sequence_parallel
        else (f"{its} reduce", "all_reduce")
    )
    size_bytes = plan.element_bytes * share.tokens * product.makes[0].numbers
    return [
        Communication(name, kind, "tp", size_bytes, Place(its), operation=its, carries="result")
    ]


def exchange(
    operation: Operation, tensors: Sequence[Tensor], plan: Plan, share: Share
) -> list[Communication]:
    """The all-to-alls that give each rank all heads of its tokens, or its heads of all tokens: a norm over all
    heads needs the former (`Attention.apply_tp` in allenai/OLMo-core, nn/attention/__init__.py, has
    q and k from ColwiseParallel as Shard(1), and from the norms' SequenceParallel as Shard(2))."""
    if plan.tp == 1:
        return []
    return [
        Communication(
            f"{its.name} exchange",
            "all_to_all",
            "tp",
            share.size_bytes(its, plan.element_bytes),
            operation=operation.kind,
        )
        for its in tensors
    ]


def collected(operation: Operation, plan: Plan, share: Share) -> list[Communication]:
    """What comes after a product whose results ranks collect from each other, whole on each: then one with
    sequence parallelism goes on with its own tokens (`gather_from_tensor_model_parallel_region`,
    then `scatter_to_sequence_parallel_region`), whose gradients it collects in the backward."""
    if plan.tp == 1:
        return []
    its, size_bytes = (
        operation.kind,
        plan.element_bytes * share.tokens * operation.makes[0].numbers,
    )
    return [Communication(f"{its} gather", "all_gather", "tp", size_bytes, operation=its)]


def message_kernels(model: Model, plan: Plan) -> list[Communication]:
    """What follows a message from another stage.

    Each tensor-parallel rank was sent a part of it and gathers the others', so that what is whole
    on all of them crosses the slow links once (Narayanan et al. 2021, section 4.1). With sequence
    parallelism it stays cut.
    """
    if plan.tp == 1 or plan.sequence_parallel:
        return []
    size_bytes = plan.tp * message_bytes(model, plan)
    return [
        Communication(
            "message gather", "all_gather", "tp", size_bytes, operation=OperationKind.MESSAGE
        )
    ]


def message_bytes(model: Model, plan: Plan) -> float:
    """The bytes of what a GPU sends to the next stage: a tp-th of the hidden states of a
    microbatch, see `message_kernels`."""
    return sizes(model, plan).tokens * model.hidden * plan.element_bytes / plan.tp
