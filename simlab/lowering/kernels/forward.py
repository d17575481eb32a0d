"""What each operation of a layer launches in its forward."""

from collections.abc import Sequence

from simlab.layer.operation import Cut, Operation, OperationKind
from simlab.layer.passes.tensor import gathers
from simlab.layer.saved import Share
from simlab.lowering.kernels.attention import fused_attention, stored_scores
from simlab.lowering.kernels.kernel import Communication, GroupedMatmul, Launched, Matmul, Memory
from simlab.lowering.kernels.memory_bound import EAGER, eager, norm_of, residual
from simlab.lowering.kernels.microbatch import evenly_routed, own_tokens, routed_tokens, sent_tokens
from simlab.lowering.kernels.tensor_parallel import gathered_input, summed_result
from simlab.spec.model import Model
from simlab.spec.plan import Plan


def launched_by(
    operations: Sequence[Operation], model: Model, plan: Plan, share: Share
) -> list[list[Launched]]:
    """[what each operation launches, in order] of a layer. What is gathered for an operation comes
    with it. A sum over tensor-parallel ranks comes with the operation that reads it."""
    found: list[list[Launched]] = []
    gathered: set[str] = set()
    partial: OperationKind | None = None
    begins = True
    for its in operations:
        own: list[Launched] = []
        if partial and _needs_sum(its, plan):
            own += summed_result(model, plan, partial)
            partial = None
        if gathers(its, spreads_experts=plan.spreads_experts) and its.weights:
            inputs = [read for read in its.reads if read.cut is Cut.TOKENS]
            if not gathered.issuperset(read.name for read in inputs):
                # one gather serves a router and all experts
                product = OperationKind.UP if its.kind is OperationKind.ROUTER else its.kind
                width = sum(read.numbers for read in inputs)
                own += gathered_input(model, plan, product, width)
                gathered.update(read.name for read in inputs)
        if its.kind is OperationKind.NORM and begins:
            own += norm_of(its.label, its.kind, model, plan)
        else:
            whole = partial is not None
            own += _kernels(its, model, plan, share, whole=whole)
        found.append(own)
        begins = its.kind is OperationKind.RESIDUAL
        if _is_partial(its, plan):
            partial = partial or its.kind
    return found


def _is_partial(operation: Operation, plan: Plan) -> bool:
    """Whether each tensor-parallel rank makes a part of a sum."""
    return any(
        its.by_columns and not (its.cut is Cut.EXPERTS and plan.spreads_experts)
        for its in operation.weights
    )


def _needs_sum(operation: Operation, plan: Plan) -> bool:
    """Whether an operation reads a sum over the ranks, and not a rank's part of it: the addition of a
    skipped path, and that of shared experts to routed ones that are whole."""
    if operation.kind is OperationKind.SHARED_DOWN and not operation.weights:
        return plan.spreads_experts
    return operation.kind is OperationKind.RESIDUAL


def _kernels(
    operation: Operation, model: Model, plan: Plan, share: Share, *, whole: bool
) -> list[Launched]:
    """What an operation launches apart from tensor parallelism's communication. whole: whether its
    tensors are parts of sums, of all tokens."""
    kind = operation.kind
    if kind is OperationKind.ATTENTION:
        return fused_attention(model, plan)
    if kind in (OperationKind.SCORES, OperationKind.SOFTMAX, OperationKind.VALUES):
        return stored_scores(operation, model, plan, share)
    if kind is OperationKind.PERMUTE:
        return _permuted(model, plan)
    if kind is OperationKind.RESIDUAL:
        return [residual(operation.label, model, plan)]
    if operation.weights and kind is not OperationKind.NORM:
        return _product(operation, model, plan, share)
    tensors = (*operation.reads, *operation.makes)
    if whole:
        tensors = tuple(
            its._replace(cut=Cut.WHOLE) if its.cut is Cut.TOKENS else its for its in tensors
        )
    moved = sum((its.number_bytes or plan.element_bytes) * share.numbers(its) for its in tensors)
    kernel = Memory(operation.label, moved, kind)
    return [eager(kernel, model, plan) if kind in EAGER else kernel]


def _product(operation: Operation, model: Model, plan: Plan, share: Share) -> list[Launched]:
    """A product, one for each expert where the model has them; nanotron's copies after that of
    queries, keys and values; and after that of routed experts the way back."""
    kind, read = operation.kind, operation.reads[0]
    n, k = round(sum(map(share.width, operation.makes))), round(share.width(read))
    if operation.weights[0].experts:
        rows, own = round(share.routed), model.experts // plan.ep
        tokens = evenly_routed(rows, own)
        grouped = GroupedMatmul(kind.value, rows, n, k, operation=kind, tokens=tokens)
        back = _exchange(model, plan, "combine") if kind is OperationKind.DOWN else []
        return [grouped, *back]
    rows = round(share.tokens)
    if operation.weights[0].cut is Cut.WHOLE:
        alone = kind is OperationKind.ROUTER
        if plan.spreads_experts if alone else plan.sequence_parallel:
            rows //= plan.tp
    product = Matmul(kind.value, rows, n, k, operation=kind)
    if kind is OperationKind.QKV and plan.library == "nanotron":
        return [product, _reordered(operation, plan, share)]
    return [product]


def _reordered(qkv: Operation, plan: Plan, share: Share) -> Memory:
    """nanotron's copies of queries, keys and values: from the order of the product to sequence by
    sequence, then keys and values joined, and both put side by side for each token
    (`CausalSelfAttention.forward` in nanotron/models/llama.py)."""
    q, k, v = map(share.numbers, qkv.makes)
    moved = 2 * plan.element_bytes * (q + 3 * (k + v))
    return Memory("order of q, k and v", moved, OperationKind.TRANSPOSE)


def _permuted(model: Model, plan: Plan) -> list[Launched]:
    """What brings copies of tokens to their experts, in the order of these.

    With expert parallelism an all-to-all brings the copies to the ranks of their experts before the
    products (dispatch), and another one takes the results back (combine). Between them the copies
    lie rank by rank, and are copied once more where a rank has several experts. Tensor-parallel
    ranks that cut each expert exchange all tokens each. Those with experts of their own (`Plan.etp`)
    exchange the tokens that they have, which for routed experts are neither gathered nor summed; shared
    experts are cut all the same. `Plan.dispatcher` says whether each copy travels. Leaves out: a dispatch
    in 8 bits, and with 'all-to-all' copies for several experts of one rank that travel as one.
    """
    tokens = own_tokens(model, plan)
    moved = 4 * plan.element_bytes * tokens * model.experts_per_token * model.hidden
    copied = [Memory("permute", moved, OperationKind.PERMUTE)]
    if plan.ep > 1 and plan.dispatcher == "once-a-node":
        copied = []  # tokens leave as they are
    return [*copied, *_exchange(model, plan, "dispatch"), *_sorted(model, plan)]


def _exchange(model: Model, plan: Plan, name: str) -> list[Communication]:
    """The all-to-all with which tokens go to their experts, or back."""
    if plan.ep == 1:
        return []
    size_bytes = plan.element_bytes * sent_tokens(model, plan) * model.hidden
    return [Communication(name, "all_to_all", "ep", size_bytes, operation=OperationKind.PERMUTE)]


def _sorted(model: Model, plan: Plan) -> list[Memory]:
    """The copies, there and back, of what came from several ranks for several experts, or of tokens
    that came once for all experts of a rank."""
    width, routed = plan.element_bytes * model.hidden, routed_tokens(model, plan)
    if plan.ep > 1 and plan.dispatcher == "once-a-node":
        moved = 2 * width * (sent_tokens(model, plan) + routed)
    elif plan.ep > 1 and model.experts > plan.ep:
        moved = 4 * width * routed
    else:
        return []
    return [Memory("permute by expert", moved, OperationKind.PERMUTE)]
