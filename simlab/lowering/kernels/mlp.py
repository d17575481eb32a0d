"""The kernels of a layer's second half: norm and MLP, of one expert or several."""

from math import ceil

from simlab.lowering.kernels.kernel import (
    Communication,
    GroupedMatmul,
    Launched,
    Matmul,
    Memory,
    Operation,
)
from simlab.lowering.kernels.memory_bound import eager, norm, residual
from simlab.lowering.kernels.microbatch import sizes
from simlab.lowering.kernels.tensor_parallel import gathered_input, summed_result
from simlab.spec.model import Model
from simlab.spec.plan import Plan

SHARED = Operation.SHARED_UP, Operation.SHARED_DOWN


def evenly_routed(tokens: int, experts: int) -> tuple[int, ...]:
    """The tokens of each expert that has any, where a router spreads `tokens` evenly."""
    each, more = divmod(tokens, experts)
    return tuple(each + (expert < more) for expert in range(min(tokens, experts)))


def mlp_part(model: Model, plan: Plan) -> list[Launched]:
    """The forward of a layer from its second norm to its output.

    A gated MLP makes gate and up in one product. With experts, a router chooses
    `Model.experts_per_token` of them for each token, and the tokens are copied expert by expert
    before the products, and back after them. Shared experts compute every token besides, after
    the routed ones, as one MLP of all their widths.

    With expert parallelism an all-to-all brings the copies to the ranks of their experts before the
    products (dispatch), and another one takes the results back (combine). Between them the copies
    lie rank by rank, and are copied once more where a rank has several experts. Tensor-parallel
    ranks, which cut each expert, exchange all tokens each. Leaves out: a dispatch in 8 bits, and
    copies for several experts of one rank that travel as one.
    """
    s = sizes(model, plan)
    if model.experts:
        routed = routed_tokens(model, plan)
        permuted = 4 * s.width * s.tokens * model.experts_per_token * model.hidden
        middle: list[Launched] = [
            Matmul("router", s.tokens, model.experts, model.hidden, operation=Operation.ROUTER),
            Memory("permute", permuted, Operation.PERMUTE),
            *_exchange(model, plan, "dispatch"),
            *_sorted(model, plan),
            *_products(model, plan, routed, model.expert_width, (Operation.UP, Operation.DOWN)),
            *_exchange(model, plan, "combine"),
        ]
    else:
        middle = _products(model, plan, s.tokens, model.ffn, (Operation.UP, Operation.DOWN))
    if model.shared_experts:
        width, shared = model.shared_experts * model.expert_width, SHARED
        middle += _products(model, plan, s.tokens, width, shared)
        added = 3 * s.width * s.tokens * model.hidden
        middle.append(Memory("add shared experts", added, Operation.SHARED_DOWN))
    return [
        *norm(2, model, plan),
        *gathered_input(model, plan, Operation.UP),
        *middle,
        *summed_result(model, plan, Operation.DOWN),
        residual(2, model, plan),
    ]


def routed_tokens(model: Model, plan: Plan) -> int:
    """The copies of tokens that a rank's experts compute: of its own tokens, or with expert
    parallelism as many of those of its group, on the busiest rank `Plan.expert_load` times as
    many."""
    return ceil(sizes(model, plan).tokens * model.experts_per_token * plan.expert_load)


def _exchange(model: Model, plan: Plan, name: str) -> list[Communication]:
    """The all-to-all with which tokens go to their experts, or back."""
    if plan.ep == 1:
        return []
    size_bytes = sizes(model, plan).width * routed_tokens(model, plan) * model.hidden
    return [Communication(name, "all_to_all", "ep", size_bytes, operation=Operation.PERMUTE)]


def _sorted(model: Model, plan: Plan) -> list[Memory]:
    """The copies, there and back, of what came from several ranks for several experts."""
    if plan.ep == 1 or model.experts == plan.ep:
        return []
    moved = 4 * sizes(model, plan).width * routed_tokens(model, plan) * model.hidden
    return [Memory("permute by expert", moved, Operation.PERMUTE)]


def _products(
    model: Model, plan: Plan, tokens: int, width: int, products: tuple[Operation, Operation]
) -> list[Launched]:
    """The product up of an MLP of `width`, its activation and the product down."""
    up, down = products
    width //= plan.tp
    columns = (1 + model.gated_mlp) * width
    activation_bytes = sizes(model, plan).width * tokens * (columns + width)
    name = "activation" if up is Operation.UP else "shared activation"
    activation = Memory(name, activation_bytes, Operation.ACTIVATION)
    return [
        _expert_matmul(model, plan, up, tokens, columns, model.hidden),
        eager(activation, model, plan),
        _expert_matmul(model, plan, down, tokens, model.hidden, width),
    ]


def _expert_matmul(
    model: Model, plan: Plan, operation: Operation, tokens: int, n: int, k: int
) -> Matmul:
    """A product of the MLP: one of every expert of the rank, where the model has experts."""
    if not model.experts or operation in SHARED:
        return Matmul(operation.value, tokens, n, k, operation=operation)
    routed = evenly_routed(tokens, model.experts // plan.ep)
    return GroupedMatmul(operation.value, tokens, n, k, operation=operation, tokens=routed)
