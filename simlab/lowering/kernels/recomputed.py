"""Which kernels of a layer's forward run again before the backward."""

from collections.abc import Sequence
from dataclasses import replace

from simlab.layer.operation import Operation, OperationKind
from simlab.layer.passes.recomputation import marked
from simlab.layer.saved import Share
from simlab.lowering.kernels.kernel import Communication, Launched, Matmul
from simlab.spec.plan import Plan


def recomputed(
    operations: Sequence[Operation],
    launched: Sequence[Sequence[Launched]],
    plan: Plan,
    share: Share,
) -> list[Launched]:
    """What runs again of what each operation has `launched`, by `Plan.recompute`. Per op, of what
    ranks send each other only gathers do."""
    again: list[Launched] = []
    early, per_op = stops_early(operations, plan), plan.recompute == "per-op"
    for its, kernels in zip(marked(operations, plan.recompute, stops_early=early), launched):
        for kernel in kernels:
            runs = bool(its.again)
            if isinstance(kernel, Communication) and per_op:
                runs = kernel.kind == "all_gather"  # also of an input whose product is kept
            elif isinstance(kernel, Matmul) and its.again not in ((), its.makes):
                kernel = replace(kernel, n=round(sum(map(share.width, its.again))))
            again += [kernel] * runs
    return again


def stops_early(operations: Sequence[Operation], plan: Plan) -> bool:
    """Whether full recomputation ends when all tensors are there that the backward reads, and leaves
    out a layer's last product and what follows it.

    torch's non-reentrant checkpointing does (`set_checkpoint_early_stop` in
    torch/utils/checkpoint.py), which FSDP2's users take; Megatron-LM's and FSDP1's runs all of the
    forward. A dropout or a router at the end of the layer keeps something of what comes after.
    """
    routes = any(its.kind is OperationKind.ROUTER for its in operations)
    return plan.habits.stops_recomputing_early and not plan.dropout and not routes
