"""The kernels of a layer's second half: norm and MLP, of one expert or several."""

from simlab.layer.operation import OperationKind
from simlab.lowering.kernels.kernel import Communication, GroupedMatmul, Launched, Matmul, Memory
from simlab.lowering.kernels.memory_bound import eager, norm, residual
from simlab.lowering.kernels.microbatch import (
    evenly_routed,
    own_tokens,
    routed_tokens,
    sent_tokens,
    sizes,
)
from simlab.lowering.kernels.tensor_parallel import gathered_input, summed_result
from simlab.spec.model import Model
from simlab.spec.plan import Plan

ROUTED = OperationKind.UP, OperationKind.DOWN
SHARED = OperationKind.SHARED_UP, OperationKind.SHARED_DOWN


def mlp_part(model: Model, plan: Plan) -> list[Launched]:
    """The forward of a layer from its second norm to its output.

    A gated MLP makes gate and up in one product. With experts, a router chooses
    `Model.experts_per_token` of them for each token, and the tokens are copied expert by expert
    before the products, and back after them. Shared experts compute every token besides, after
    the routed ones, as one MLP of all their widths.

    With expert parallelism an all-to-all brings the copies to the ranks of their experts before the
    products (dispatch), and another one takes the results back (combine). Between them the copies
    lie rank by rank, and are copied once more where a rank has several experts. Tensor-parallel
    ranks that cut each expert exchange all tokens each. Those with experts of their own (`Plan.etp`)
    exchange the tokens that they have, which for routed experts are neither gathered nor summed; shared
    experts are cut all the same. `Plan.dispatcher` says whether each copy travels. Leaves out: a dispatch
    in 8 bits, and with 'all-to-all' copies for several experts of one rank that travel as one.
    """
    s = sizes(model, plan)
    if not model.experts:
        middle = _products(model, plan, s.tokens, model.ffn // plan.tp, ROUTED)
        return [*norm(2, model, plan), *_cut(model, plan, middle, ROUTED), residual(2, model, plan)]
    routed, shared = _routed_experts(model, plan), _shared_experts(model, plan)
    if plan.spreads_experts:
        middle = [*routed, *(_cut(model, plan, shared, SHARED) if shared else [])]
        added = 3 * s.width * s.outside
    else:
        middle = [*routed, *shared]
        added = 3 * s.width * s.tokens * model.hidden
    if shared:
        middle.append(Memory("add shared experts", added, OperationKind.SHARED_DOWN))
    if not plan.spreads_experts:
        middle = _cut(model, plan, middle, ROUTED)
    return [*norm(2, model, plan), *middle, residual(2, model, plan)]


def _cut(
    model: Model, plan: Plan, kernels: list[Launched], products: tuple[OperationKind, OperationKind]
) -> list[Launched]:
    """`kernels` of an MLP that tensor-parallel ranks cut, between what they send for it."""
    gathered, summed = (
        gathered_input(model, plan, products[0]),
        summed_result(model, plan, products[1]),
    )
    return [*gathered, *kernels, *summed]


def _routed_experts(model: Model, plan: Plan) -> list[Launched]:
    """From the router to the results of the routed experts."""
    tokens, routed = own_tokens(model, plan), routed_tokens(model, plan)
    permuted = 4 * plan.element_bytes * tokens * model.experts_per_token * model.hidden
    copied = [Memory("permute", permuted, OperationKind.PERMUTE)]
    if plan.ep > 1 and plan.dispatcher == "once-a-node":
        copied = []  # tokens leave as they are
    return [
        Matmul("router", tokens, model.experts, model.hidden, operation=OperationKind.ROUTER),
        *copied,
        *_exchange(model, plan, "dispatch"),
        *_sorted(model, plan),
        *_products(model, plan, routed, model.expert_width // plan.etp, ROUTED),
        *_exchange(model, plan, "combine"),
    ]


def _shared_experts(model: Model, plan: Plan) -> list[Launched]:
    """The products of the shared experts, as one MLP of all their widths."""
    if not model.shared_experts:
        return []
    width = model.shared_experts * model.expert_width // plan.tp
    return _products(model, plan, sizes(model, plan).tokens, width, SHARED)


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


def _products(
    model: Model, plan: Plan, tokens: int, width: int, products: tuple[OperationKind, OperationKind]
) -> list[Launched]:
    """The product up of an MLP of which a rank has so much `width`, its activation and the product
    down."""
    up, down = products
    columns = (1 + model.gated_mlp) * width
    activation_bytes = sizes(model, plan).width * tokens * (columns + width)
    name = "activation" if up is OperationKind.UP else "shared activation"
    activation = Memory(name, activation_bytes, OperationKind.ACTIVATION)
    return [
        _expert_matmul(model, plan, up, tokens, columns, model.hidden),
        eager(activation, model, plan),
        _expert_matmul(model, plan, down, tokens, model.hidden, width),
    ]


def _expert_matmul(
    model: Model, plan: Plan, operation: OperationKind, tokens: int, n: int, k: int
) -> Matmul:
    """A product of the MLP: one of every expert of the rank, where the model has experts."""
    if not model.experts or operation in SHARED:
        return Matmul(operation.value, tokens, n, k, operation=operation)
    routed = evenly_routed(tokens, model.experts // plan.ep)
    return GroupedMatmul(operation.value, tokens, n, k, operation=operation, tokens=routed)
