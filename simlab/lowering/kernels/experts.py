"""How tokens get to their experts and back."""

from simlab.layer.operation import OperationKind
from simlab.lowering.kernels.kernel import Communication, Launched, Memory
from simlab.lowering.kernels.microbatch import own_tokens, routed_tokens, sent_tokens
from simlab.spec.model import Model
from simlab.spec.plan import Plan


def permuted(model: Model, plan: Plan) -> list[Launched]:
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
    return [*copied, *exchange(model, plan, "dispatch"), *_sorted(model, plan)]


def exchange(model: Model, plan: Plan, name: str) -> list[Communication]:
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
