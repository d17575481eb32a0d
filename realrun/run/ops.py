"""What the executor computes in an op: one function for each kind of op.

Each gets the rank that runs it, the op, the `ParallelStage` that it is of, and what the neighbouring stage
made (None at the pipeline's ends), and returns what the op's result is.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, Protocol

from torch import Tensor

from realrun.model.split import keeping_weight_gradients
from realrun.parallel.stage import ParallelStage, Told
from realrun.record.activations import Key, SavedActivations
from realrun.run.faults import Injector
from simlab.errors import SimlabError
from simlab.program import Op
from simlab.spec.plan import Plan


class Running(Protocol):
    """What the functions of ops read of the rank that runs them, and write there: a part of
    `realrun.run.executor.Executor`."""

    rank: int
    plan: Plan
    activations: SavedActivations
    injector: Injector
    number: int
    """Of the step."""
    op_number: int
    """How many ops of the step were run before."""
    tokens: Tensor
    targets: Tensor
    losses: list[Tensor]
    saved: dict[Key, tuple[Tensor, Tensor]]
    """{(stage, microbatch): (input, output) of a forward whose backward has not been run}"""
    kept: dict[Key, dict[Any, Any]]
    """{(stage, microbatch): {layer: what W makes its weight gradient of}}"""
    backward_op: Op | None

    def between(self, op: Op, backward: Callable[[], Op | None]) -> Told | None:
        """What runs between two units of a stage, or None."""

    def unit_ends(self, op: Op, name: str) -> None:
        """The unit `name` of `op` has been computed."""

    def loss_gradient(self, y: Tensor) -> Tensor | None:
        """What the backward of the loss `y` begins with: None for 1."""


class ExecutionError(SimlabError):
    """A rank met an op that it cannot run."""


def too_early(rank: int, op: Op, need: Op) -> ExecutionError:
    """The error that `op` comes before `need` on `rank`."""
    return ExecutionError(f"rank {rank}: {op} comes before {need}, which it needs")


def forward(
    executor: Running, op: Op, stage: ParallelStage, received: Tensor | None
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
            y = y / (executor.plan.microbatches // executor.plan.copies)  # that this rank runs
            executor.losses.append(y.detach())
    executor.saved[key] = x, y
    return y.detach()


def backward(
    executor: Running, op: Op, stage: ParallelStage, received: Tensor | None
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
    executor: Running, op: Op, stage: ParallelStage, received: Tensor | None
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

    with keeping_weight_gradients([*chain(*stage.split_layers.values())], keep):
        y.backward(executor.loss_gradient(y) if stage.is_last else received)
    return x.grad


def weight_grad(executor: Running, op: Op, stage: ParallelStage, received: Tensor | None) -> None:
    """W: the linear layers' weight gradients, from what I kept, unit by unit."""
    if (op.stage, op.microbatch) not in executor.kept:
        raise too_early(executor.rank, op, op._replace(kind="I"))
    kept = executor.kept.pop((op.stage, op.microbatch))
    for name, layers in reversed(stage.split_layers.items()):
        for layer in layers:
            for held in kept.pop(layer, []):
                layer.add_weight_gradient(*[tensor for tensor, *_ in held])
        executor.unit_ends(op, name)


def _graph(executor: Running, op: Op) -> tuple[Tensor, Tensor]:
    """(input, output) of the forward that `op` goes back through."""
    if (op.stage, op.microbatch) not in executor.saved:
        raise too_early(executor.rank, op, op._replace(kind="F"))
    return executor.saved.pop((op.stage, op.microbatch))


OP_FUNCTIONS: dict[str, Callable[..., Tensor | None]] = {
    "F": forward,
    "B": backward,
    "I": input_grad,
    "W": weight_grad,
}
