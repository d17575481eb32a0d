"""ZeRO's rules: which states are sharded, when parameters are gathered and freed, and when gradients
are reduced (Rajbhandari et al. 2020, arXiv 1910.02054, section 5).

The instruction lists, the memory walk and realrun follow them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from simlab.layer.parameters import Matrices
from simlab.optimizers import OPTIMIZERS, Matrix
from simlab.spec.plan import Plan

State = Literal["parameters", "gradients", "optimizer"]

SHARDED_FROM: dict[State, int] = {"parameters": 3, "gradients": 2, "optimizer": 1}
"""{state: the first of ZeRO's stages that shards it}."""


def shards_of(plan: Plan, state: State, *, experts: bool = False) -> int:
    """The number of ranks that a state of each parameter is spread over, 1 where every rank that
    holds the same part of the model has all of it. experts: whether of a parameter that an 'edp'
    group shares."""
    if plan.zero < SHARDED_FROM[state]:
        return 1
    return plan.expert_holders if experts else plan.shards


def held_of(plan: Plan, state: State, numbers: float, experts: float) -> float:
    """How many numbers of a state a rank holds. numbers: parameters of the rank before ZeRO, of
    which `experts` are of experts that an 'edp' group shares; ZeRO shards those over that group."""
    of_experts = experts / shards_of(plan, state, experts=True)
    return (numbers - experts) / shards_of(plan, state) + of_experts


def dealt(matrices: Mapping[Matrix, int], ranks: int) -> Iterator[dict[Matrix, int]]:
    """What each of `ranks` has where every matrix is one rank's: {parameter: how many}.

    The largest come first, and each second round is dealt the other way round, so that of 2 ranks one
    has the first and the fourth (`shard_params` of Megatron-LM's LayerWiseDistributedOptimizer in
    core/optimizer/layer_wise_optimizer.py). Rank r has the places r and 2 ranks - 1 - r of every
    2 ranks. Leaves out that its later versions balance each bucket by itself, and that a rank's stages
    are dealt out together.
    """
    both, order = 2 * ranks, sorted(matrices, key=lambda its: (-its.numbers, its))

    def before(place: int, rank: int) -> int:
        """How many of the places before `place` are the rank's."""
        rounds, rest = divmod(place, both)
        return 2 * rounds + (rest > rank) + (rest > both - 1 - rank)

    for rank in range(min(ranks, sum(matrices.values()))):
        place, own = 0, {}
        for matrix in order:
            end = place + matrices[matrix]
            if count := before(end, rank) - before(place, rank):
                own[matrix] = count
            place = end
        yield own


def most_of(plan: Plan, matrices: Matrices, amount: Callable[[Matrix], float]) -> float:
    """The sum of an amount over the parameters that a rank updates, of the rank that has most of it. Its
    optimizer needs whole matrices (`Optimizer.whole`)."""
    groups = zip(matrices, (False, True))
    return sum(
        max(
            (
                sum(count * amount(its) for its, count in own.items())
                for own in dealt(each, shards_of(plan, "optimizer", experts=experts))
            ),
            default=0.0,
        )
        for each, experts in groups
    )


def deals_matrices(plan: Plan) -> bool:
    """Whether ZeRO-1 gives whole matrices to ranks. Gradients are then summed on all ranks, and updated
    parameters are gathered beside nothing (the docstring of Megatron-LM's
    LayerWiseDistributedOptimizer). Leaves out that the parts which are gathered differ in size."""
    return OPTIMIZERS[plan.optimizer].whole and shards_of(plan, "optimizer") > 1


def is_shared(plan: Plan) -> bool:
    """Whether any other rank holds the same part of the model."""
    return plan.holders > 1


# gradients
# ------------------------------------------------------------------------------------------


def runs_in_torchs_pipeline(plan: Plan) -> bool:
    """Whether torch's runtime of pipelines says when FSDP2 frees parameters and reduces gradients.

    It turns `reshard_after_backward` and `requires_gradient_sync` off for every backward, and
    reduces the gradients of a stage and frees its parameters when the last backward of the stage is
    over (`backward_maybe_with_nosync` and `perform_reduce_grad` in
    torch/distributed/pipelining/stage.py).
    """
    if not plan.habits.reduces_after_last_backward:
        return False
    return plan.is_pipeline and plan.zero >= SHARDED_FROM["gradients"]


def autocasts(plan: Plan) -> bool:
    """Whether torch's autocast decides the types: DDP in 16 bits, with fp32 parameters.

    Norms and sums with the skipped path are fp32 then. Each matrix product casts what it reads to
    16 bits, a copy for each of several products that read the same norm, and it casts its weight: it
    saves both. FSDP2 casts parameters itself, on one rank too. A router reads the norm, and
    each of the experts' products a copy of the tokens of its own. Left out: models that are cut by
    tp, pp or cp, where all is taken as 16 bits.
    """
    if not (plan.habits.autocasts and plan.element_bytes == 2):
        return False
    whole = plan.tp == 1 == plan.cp == plan.pp
    return (
        whole and plan.offload == "none" and plan.zero < 3 and not (plan.zero and plan.is_sharded)
    )


def reduces_to_all(plan: Plan) -> bool:
    """Whether every rank gets the sum of all gradients: without ZeRO, and with ZeRO-1 where the library
    does so or whole matrices are dealt out."""
    return plan.zero == 0 or (plan.zero == 1 and plan.habits.reduces_to_all) or deals_matrices(plan)


def reduces_each_backward(plan: Plan) -> bool:
    """Whether gradients are reduced after every backward, for no rank has room for all of them;
    otherwise they are reduced once a step. In torch's pipelines they stay whole until then."""
    return plan.zero >= SHARDED_FROM["gradients"] and not runs_in_torchs_pipeline(plan)


def reduces_after_ops(plan: Plan) -> bool:
    """Whether gradients are reduced when all ops of the step are over. Torch's pipelines reduce
    those of a stage after its last backward, beside nothing; where a rank has several stages, the
    ops of the others that come later are taken to come before."""
    if runs_in_torchs_pipeline(plan):
        return True
    return not (reduces_each_backward(plan) or plan.dp_overlap)


def reduces_beside(plan: Plan) -> bool:
    """Whether a unit's gradients are reduced while the next unit's backward runs."""
    if runs_in_torchs_pipeline(plan):
        return False
    return plan.dp_overlap and (plan.zero < 3 or plan.prefetch > 0)


# parameters
# ------------------------------------------------------------------------------------------


def gathers_updated(plan: Plan) -> bool:
    """Whether parameters, which are updated in parts and kept whole, are gathered when a step
    begins."""
    return shards_of(plan, "optimizer") > 1 and shards_of(plan, "parameters") == 1


def gathers_for_ops(plan: Plan) -> bool:
    """Whether parameters are gathered for the ops that use them, and freed afterwards."""
    return plan.zero >= SHARDED_FROM["parameters"] and plan.is_sharded


class Around(NamedTuple):
    """Whether the parameters of an op's stage are gathered, under ZeRO-3, around the op."""

    before: bool
    """Whether an earlier op has left them gathered, so that this one gathers nothing."""
    after: bool
    """Whether they stay gathered when the op is over."""


NOWHERE = Around(False, False)


def frees(plan: Plan, kind: str, completes: bool) -> bool:
    """Whether an op of `kind` (F, B, I or W) frees the parameters that ZeRO-3 has gathered.
    completes: whether it is the last op of the step that adds to its stage's gradients.

    With `Plan.reshard` every op frees what it has gathered. Without, the rule is FSDP2's with
    `reshard_after_forward=False`: a forward frees nothing, and a backward does; in a pipeline only
    the one that completes the gradients of its stage, so that a stage is gathered once a step. In
    torch's pipelines that holds for backwards with `Plan.reshard`, too, see
    `runs_in_torchs_pipeline`. Leaves out that torch's runtime keeps at most three stages of a rank
    gathered.
    """
    if plan.reshard and (kind == "F" or not runs_in_torchs_pipeline(plan)):
        return kind != "W"
    return kind in "BW" and (completes or not plan.is_pipeline)


def gathered_around(plan: Plan, ops: Sequence[tuple[int, str, int]]) -> list[Around]:
    """`Around` of each of one rank's `ops`, (stage, kind, microbatch), in the order of a step.
    A weight gradient (W) uses no parameters and never gathers them."""
    if plan.zero < 3 or (plan.reshard and not runs_in_torchs_pipeline(plan)):
        return [NOWHERE] * len(ops)
    last = {op[0]: op for op in ops if op[1] in "BW"}
    held: dict[int, bool] = {}
    found = []
    for op in ops:
        stage, kind, _ = op
        before = held.get(stage, False)
        held[stage] = (before or kind != "W") and not frees(plan, kind, op == last.get(stage))
        found.append(Around(before, held[stage]))
    return found
