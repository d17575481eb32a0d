"""ZeRO's rules: which states are sharded, when parameters are gathered and freed, and when gradients
are reduced (Rajbhandari et al. 2020, arXiv 1910.02054, section 5).

The instruction lists, the memory walk and realrun follow them.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

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
    return plan.library == "torch" and plan.stages > 1 and plan.zero >= SHARDED_FROM["gradients"]


def autocasts(plan: Plan) -> bool:
    """Whether torch's autocast decides the types: DDP in 16 bits, with fp32 parameters.

    Norms and sums with the skipped path are fp32 then. Each matrix product casts what it reads to
    16 bits, a copy for each of several products that read the same norm, and it casts its weight: it
    saves both. FSDP2 casts parameters itself, on one rank too. A router reads the norm, and
    each of the experts' products a copy of the tokens of its own. Left out: models that are cut by
    tp, pp or cp, where all is taken as 16 bits.
    """
    whole = plan.tp == plan.pp == plan.cp == 1
    sharded = plan.zero == 3 or shards_of(plan, "optimizer") > 1 or plan.offload != "none"
    return plan.library == "torch" and plan.element_bytes == 2 and whole and not sharded


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
    return shards_of(plan, "parameters") > 1


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
    return kind in "BW" and (plan.stages == 1 or completes)


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
