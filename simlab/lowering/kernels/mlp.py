"""The kernels of a layer's second half: norm and MLP, of one expert or several."""

from simlab.lowering.kernels.kernel import (
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


def evenly_routed(tokens: int, experts: int) -> tuple[int, ...]:
    """The tokens of each expert that has any, where a router spreads `tokens` evenly."""
    each, more = divmod(tokens, experts)
    return tuple(each + (expert < more) for expert in range(min(tokens, experts)))


def mlp_part(model: Model, plan: Plan) -> list[Launched]:
    """The forward of a layer from its second norm to its output.

    A gated MLP makes gate and up in one product. With experts, a router chooses
    `Model.experts_per_token` of them for each token, and the tokens are copied expert by expert
    before the products, and back after them.
    """
    s, t = sizes(model, plan), plan.tp
    tokens = s.tokens * (model.experts_per_token if model.experts else 1)
    up = (1 + model.gated_mlp) * model.ffn // t
    routing: list[Launched] = []
    if model.experts:
        permuted = 4 * s.width * tokens * model.hidden
        routing = [
            Matmul("router", s.tokens, model.experts, model.hidden, operation=Operation.ROUTER),
            Memory("permute", permuted, Operation.PERMUTE),
        ]
    activation_bytes = s.width * tokens * (up + model.ffn // t)
    activation = Memory("activation", activation_bytes, Operation.ACTIVATION)
    return [
        norm(2, model, plan),
        *gathered_input(model, plan, Operation.UP),
        *routing,
        _expert_matmul(model, Operation.UP, tokens, up, model.hidden),
        eager(activation, model, plan),
        _expert_matmul(model, Operation.DOWN, tokens, model.hidden, model.ffn // t),
        *summed_result(model, plan, Operation.DOWN),
        residual(2, model, plan),
    ]


def _expert_matmul(model: Model, operation: Operation, tokens: int, n: int, k: int) -> Matmul:
    """A product of the MLP: one of every expert, where the model has experts."""
    if not model.experts:
        return Matmul(operation.value, tokens, n, k, operation=operation)
    routed = evenly_routed(tokens, model.experts)
    return GroupedMatmul(operation.value, tokens, n, k, operation=operation, tokens=routed)
