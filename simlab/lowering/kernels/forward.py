"""What each operation of a unit launches in its forward."""

from collections.abc import Sequence
from math import ceil

from simlab.layer.microbatch import evenly_routed, own_tokens, routed_tokens, sent_tokens
from simlab.layer.operation import Cut, Operation, OperationKind, Tensor
from simlab.layer.passes.precision import under_autocast
from simlab.layer.passes.tensor import exchanged, gathers, is_partial, sums
from simlab.layer.saved import Share
from simlab.lowering.kernels.attention import (
    casts_for_attention,
    fused_attention,
    stored_scores,
)
from simlab.lowering.kernels.ends import embedding_kernel, loss_kernels
from simlab.lowering.kernels.grouped import (
    added_biases,
    adds_apart,
    is_limited_apart,
    limited,
)
from simlab.lowering.kernels.kernel import Communication, GroupedMatmul, Launched, Matmul, Memory
from simlab.lowering.kernels.memory_bound import is_one_kernel, memory_kernel, scan_kernels
from simlab.lowering.kernels.tensor_parallel import (
    collected,
    exchange,
    gathered_input,
    summed_result,
)
from simlab.lowering.zero import autocasts
from simlab.spec.model import Model
from simlab.spec.plan import Plan

NORMS = (OperationKind.NORM, OperationKind.LAST_NORM)
ONE_GATHER = (OperationKind.ROUTER, OperationKind.UP, OperationKind.SHARED_UP)
"""A router and all experts, which one gather serves; any other product gathers what it reads by itself."""


def launched_by(
    operations: Sequence[Operation], model: Model, plan: Plan, share: Share
) -> list[list[Launched]]:
    """[what each operation launches, in order] of a unit. What is gathered for an operation comes
    with it. A sum over tensor-parallel ranks comes with the operation that reads it, or where none
    does with the one that makes its parts."""
    found: list[list[Launched]] = []
    gathered: set[str] = set()
    if autocasts(plan):
        norms = is_one_kernel(OperationKind.NORM, model, plan)
        operations = under_autocast(operations, norms=norms)
    *before, left = sums(operations, spreads_experts=plan.spreads_experts)
    parts = False
    for its, summed, recut in zip(operations, before, exchanged(operations)):
        own = summed_result(summed, plan, share) if summed else list[Launched]()
        own += exchange(its, recut, plan, share)
        if gathers(its, spreads_experts=plan.spreads_experts) and its.weights:
            inputs = [read for read in its.reads if read.cut is Cut.TOKENS]
            if not gathered.issuperset(read.name for read in inputs):
                product = OperationKind.UP if its.kind is OperationKind.ROUTER else its.kind
                own += gathered_input(product, inputs, plan, share)
                if its.kind in ONE_GATHER:
                    gathered.update(read.name for read in inputs)
        parts = parts and not summed
        own += _kernels(its, model, plan, share, whole=parts)
        found.append(own)
        parts = parts or is_partial(its, spreads_experts=plan.spreads_experts)
    if left:
        found[-1] += summed_result(left, plan, share)
    return found


def _kernels(
    operation: Operation, model: Model, plan: Plan, share: Share, *, whole: bool
) -> list[Launched]:
    """What an operation launches apart from tensor parallelism's communication. whole: whether its
    tensors are parts of sums, of all tokens."""
    kind = operation.kind
    if kind is OperationKind.EMBEDDING:
        return [embedding_kernel(operation, plan, share)]
    if kind is OperationKind.LOSS:
        return loss_kernels(operation, plan, share)
    if kind is OperationKind.ATTENTION:
        casts = casts_for_attention(operation, plan, share)
        return [*casts, *fused_attention(operation, model, plan, share)]
    if kind in (OperationKind.SCORES, OperationKind.SOFTMAX, OperationKind.VALUES):
        return stored_scores(operation, model, plan, share)
    if kind is OperationKind.SCAN:
        return [*scan_kernels(operation, model, plan, share)]
    if kind is OperationKind.PERMUTE:
        return _permuted(operation, model, plan)
    if kind is OperationKind.COLLECT:
        return [*collected(operation, plan, share)]
    if operation.is_product:
        return _product(operation, model, plan, share)
    if kind in NORMS and len(operation.makes) > len(operation.reads):  # under autocast
        (read,), (made, copy) = operation.reads, operation.makes
        name = f"copy of {operation.label} in 16 bits"
        copied = operation._replace(kind=OperationKind.COPY, name=name)
        parts = (operation, (read, made)), (copied, (made, copy))
        return [memory_kernel(its, tensors, model, plan, share) for its, tensors in parts]
    tensors = (*operation.reads, *operation.makes)
    if whole:
        tensors = tuple(
            its._replace(cut=Cut.WHOLE) if its.cut is Cut.TOKENS else its for its in tensors
        )
    if plan.fused_experts and kind is OperationKind.ACTIVATION and tensors[0].cut is Cut.EXPERTS:
        return []  # a part of both products
    own: list[Launched] = [memory_kernel(operation, tensors, model, plan, share)]
    if is_limited_apart(operation, model, plan):
        return [limited(operation, plan, share), *own]
    return own


def _product(operation: Operation, model: Model, plan: Plan, share: Share) -> list[Launched]:
    """A product, one for each expert where the model has them; nanotron's copies after that of
    queries, keys and values; and after that of routed experts the way back."""
    kind, read = operation.kind, operation.reads[0]
    n, k = ceil(sum(map(share.width, operation.makes))), round(share.width(read))
    if experts := int(operation.weights[0].experts):
        rows, own = round(share.routed), experts // plan.ep
        tokens = evenly_routed(rows, own)
        apart = plan.habits.launches_each_expert and not plan.fused_experts
        grouped = GroupedMatmul(kind.value, rows, n, k, operation=kind, tokens=tokens, apart=apart)
        down = kind is OperationKind.DOWN
        back = _exchange(operation.makes[0], model, plan, "combine") if down else []
        biased = [added_biases(operation, plan, share)] * adds_apart(operation, plan)
        return [grouped, *biased, *back]
    rows = round(share.tokens)
    if operation.weights[0].cut is Cut.WHOLE:
        alone = kind is OperationKind.ROUTER
        if plan.spreads_experts if alone else plan.sequence_parallel:
            rows //= plan.tp
    product = Matmul(kind.value, rows, n, k, operation=kind)
    if kind is OperationKind.QKV and plan.habits.reorders_heads:
        return [product, _reordered(operation, plan, share)]
    return [product]


def _reordered(qkv: Operation, plan: Plan, share: Share) -> Memory:
    """nanotron's copies of queries, keys and values: from the order of the product to sequence by
    sequence, then keys and values joined, and both put side by side for each token
    (`CausalSelfAttention.forward` in nanotron/models/llama.py)."""
    q, k, v = map(share.numbers, qkv.makes)
    moved = 2 * plan.element_bytes * (q + 3 * (k + v))
    return Memory("order of q, k and v", moved, OperationKind.TRANSPOSE)


def _permuted(operation: Operation, model: Model, plan: Plan) -> list[Launched]:
    """What brings copies of tokens to their experts, in the order of these.

    With expert parallelism an all-to-all brings the copies to the ranks of their experts before the
    products (dispatch), and another one takes the results back (combine). Between them the copies
    lie rank by rank, and are copied once more where a rank has several experts. Tensor-parallel
    ranks that cut each expert exchange all tokens each. Those with experts of their own (`Plan.etp`)
    exchange the tokens that they have, which for routed experts are neither gathered nor summed; shared
    experts are cut all the same. `Plan.dispatcher` says whether each copy travels. Leaves out: a dispatch
    in 8 bits, and with 'all-to-all' copies for several experts of one rank that travel as one.
    """
    routed, experts = operation.makes[0], operation.reads[1].numbers
    copies = own_tokens(model, plan) * model.experts_per_token
    moved = 4 * plan.element_bytes * copies * routed.numbers
    copied = [Memory("permute", moved, OperationKind.PERMUTE)]
    if plan.ep > 1 and plan.dispatcher == "once-a-node":
        copied = []  # tokens leave as they are
    several = experts > plan.ep
    dispatch = _exchange(routed, model, plan, "dispatch")
    return [*copied, *dispatch, *_sorted(routed, model, plan, several=several)]


def _exchange(copies: Tensor, model: Model, plan: Plan, name: str) -> list[Communication]:
    """The all-to-all with which tokens go to their experts, or back."""
    if plan.ep == 1:
        return []
    size_bytes = plan.element_bytes * sent_tokens(model, plan) * copies.numbers
    return [Communication(name, "all_to_all", "ep", size_bytes, operation=OperationKind.PERMUTE)]


def _sorted(copies: Tensor, model: Model, plan: Plan, *, several: bool) -> list[Memory]:
    """The copies, there and back, of what came from several ranks for several experts, or of tokens
    that came once for all experts of a rank. several: whether a rank has several experts."""
    width, routed = plan.element_bytes * copies.numbers, routed_tokens(model, plan)
    if plan.ep > 1 and plan.dispatcher == "once-a-node":
        moved = 2 * width * (sent_tokens(model, plan) + routed)
    elif plan.ep > 1 and several:
        moved = 4 * width * routed
    else:
        return []
    return [Memory("permute by expert", moved, OperationKind.PERMUTE)]
