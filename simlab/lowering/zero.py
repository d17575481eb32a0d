"""ZeRO's rules: when parameters are gathered and freed (Rajbhandari et al. 2020, arXiv 1910.02054,
section 5). The instruction lists, the memory walk and realrun follow them."""

from collections.abc import Sequence
from typing import NamedTuple

from simlab.spec.plan import Plan


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
    `reshard_after_forward=False`: a forward frees nothing, and a backward does. In a pipeline
    torch's runtime also turns `reshard_after_backward` off until all gradients of the stage are
    there (`backward_maybe_with_nosync` and `perform_reduce_grad` in
    torch/distributed/pipelining/stage.py), so that a stage is gathered once a step. Leaves out
    that torch's runtime keeps at most three stages of a rank gathered.
    """
    if plan.reshard:
        return kind != "W"
    return kind in "BW" and (plan.stages == 1 or completes)


def gathered_around(plan: Plan, ops: Sequence[tuple[int, str, int]]) -> list[Around]:
    """`Around` of each of one rank's `ops`, (stage, kind, microbatch), in the order of a step.
    A weight gradient (W) uses no parameters and never gathers them."""
    if plan.zero < 3 or plan.reshard:
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
