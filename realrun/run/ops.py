"""What the executor computes in an op: one function for each kind of op.

Each gets the `Executor`, the op, the `ParallelStage` that it is of, and what the neighbouring stage
made (None at the pipeline's ends), and returns what the op's result is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from realrun.model.split import SplitLinear, keeping_weight_gradients
from realrun.parallel.stage import ParallelStage
from simlab.errors import SimlabError
from simlab.program import Op

if TYPE_CHECKING:
    from realrun.run.executor import Executor


class ExecutionError(SimlabError):
    """A rank met an op that it cannot run."""


def too_early(rank: int, op: Op, need: Op) -> ExecutionError:
    """The error that `op` comes before `need` on `rank`."""
    return ExecutionError(f"rank {rank}: {op} comes before {need}, which it needs")


def forward(
    executor: Executor, op: Op, stage: ParallelStage, received: Tensor | None
) -> Tensor | None:
    """F: run the stage's units, keep the graph, give the output (the last stage: its part of the
    loss)."""
    tokens = executor.tokens[op.microbatch]
    x = tokens if received is None else received.detach().requires_grad_()
    key = op.stage, op.microbatch
    with executor.activations.saving(key):
        between = executor.between(op, lambda: executor.backward_op)
        y = stage(x, executor.targets[op.microbatch] if stage.is_last else None, between)
        y = executor.injector.made(executor.number, executor.op_number, key, y)
        if stage.is_last:
            y = y / executor.plan.microbatches
            executor.losses.append(y.detach())
    executor.saved[key] = x, y
    return y.detach()


def backward(
    executor: Executor, op: Op, stage: ParallelStage, received: Tensor | None
) -> Tensor | None:
    """B: add to the parameters' gradients, give the gradient of the stage's input."""
    executor.backward_op, key = op, (op.stage, op.microbatch)
    x, y = _graph(executor, op)
    y.backward(
        executor.loss_gradient(y) if stage.is_last else received,
        retain_graph=key in executor.injector.kept,
    )
    return x.grad


def input_grad(
    executor: Executor, op: Op, stage: ParallelStage, received: Tensor | None
) -> Tensor | None:
    """I: as B, but what the linear layers' weight gradients are made of is kept for W."""
    executor.backward_op, key = op, (op.stage, op.microbatch)
    x, y = _graph(executor, op)
    kept: dict[Any, Any] = {}
    executor.kept[key] = kept

    def keep(layer: Any, *tensors: Tensor) -> None:
        kept.setdefault(layer, []).append(
            [executor.activations.hold(tensor, key) for tensor in tensors]
        )

    with keeping_weight_gradients(stage, keep):
        y.backward(executor.loss_gradient(y) if stage.is_last else received)
    return x.grad


def weight_grad(executor: Executor, op: Op, stage: ParallelStage, received: Tensor | None) -> None:
    """W: the linear layers' weight gradients, from what I kept, unit by unit."""
    if (op.stage, op.microbatch) not in executor.kept:
        raise too_early(executor.mesh.rank, op, op._replace(kind="I"))
    kept = executor.kept.pop((op.stage, op.microbatch))
    for name, unit in reversed(stage.units.items()):
        for layer in unit.modules():
            for held in kept.pop(layer, []):
                cast(SplitLinear, layer).add_weight_gradient(*[item.tensor for item in held])
        executor.unit_ends(op, name)


def _graph(executor: Executor, op: Op) -> tuple[Tensor, Tensor]:
    """(input, output) of the forward that `op` goes back through."""
    if (op.stage, op.microbatch) not in executor.saved:
        raise too_early(executor.mesh.rank, op, op._replace(kind="F"))
    return executor.saved.pop((op.stage, op.microbatch))


OP_FUNCTIONS: dict[str, Callable[..., Tensor | None]] = {
    "F": forward,
    "B": backward,
    "I": input_grad,
    "W": weight_grad,
}
