"""A layer, operation by operation: what one rank holds, computes, keeps and sends."""

from collections.abc import Sequence
from typing import NamedTuple

from simlab.layer.operation import Operation, Tensor
from simlab.layer.parameters import on_rank
from simlab.layer.saved import Share, kept_tensors
from simlab.lowering.kernels import (
    Attention,
    Communication,
    Matmul,
    launched_by,
    plan_operations,
    share_of,
)
from simlab.lowering.kernels.kernel import Launched
from simlab.memory.activations import keeping_operations
from simlab.spec.model import Model
from simlab.spec.plan import Plan
from simlab.units import bytes_text


class LayerRow(NamedTuple):
    """One operation of a layer's forward, on one rank and for one microbatch."""

    operation: str
    shape: str
    """Of a product (rows x inputs) x (inputs x outputs), of another operation rows x numbers of
    what it makes first."""
    parameters: float
    flops: float
    """Floating-point operations of the forward."""
    kept_bytes: float
    """What its backward reads and no operation before it has kept already."""
    sent: tuple[Communication, ...]
    """What is communicated before it and after it. A sum over tensor-parallel ranks is communicated
    before the operation that reads it."""
    again: bool
    """Whether it runs a second time before the backward, at least in part."""


class LayerTable(NamedTuple):
    """The `LayerRow` of each operation of a layer, in order. It prints itself as a table."""

    rows: tuple[LayerRow, ...]

    def __str__(self) -> str:
        lines = [
            ("operation", "shape on this rank", "parameters", "FLOPs", "kept", "sent before it")
        ]
        for its in self.rows:
            sent = ", ".join(f"{n.name} {bytes_text(n.size_bytes)}" for n in its.sent)
            name = its.operation + " (again)" * its.again
            lines.append((name, its.shape, *_figures(*its[2:5]), sent))
        sums = (sum(column) for column in list(zip(*self.rows))[2:5])
        lines.append(("sum", "", *_figures(*sums), ""))
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join(
            "  ".join(
                text.rjust(width) if 2 <= at < 5 else text.ljust(width)
                for at, (text, width) in enumerate(zip(line, widths))
            ).rstrip()
            for line in lines
        )


def _figures(parameters: float, flops: float, kept_bytes: float) -> tuple[str, str, str]:
    return (
        f"{parameters:,.0f}" if parameters else "",
        f"{flops:.3g}" if flops else "",
        bytes_text(kept_bytes) if kept_bytes else "",
    )


def layer_table(model: Model, plan: Plan) -> LayerTable:
    """What each operation of a layer is on a rank of `plan`, for one microbatch. Of a model with
    `dense_layers` it is one of the others; those are the layers of `model.dense`.

    Parameters add up to those of a layer, kept bytes to what it keeps (without the statistics of
    norms), and what is sent is what the rank's list has. Raises `InputError` if the plan does not
    fit the model. Leaves out casts of weights, and what ZeRO gathers and copies.
    """
    plan.check(model)
    operations, share = plan_operations(model, plan), share_of(model, plan)
    launched = launched_by(operations, model, plan, share)
    keeping = keeping_operations(model, plan, plan.recompute)
    kept = kept_tensors(keeping)
    return LayerTable(tuple(_row(*its, share, plan) for its in zip(keeping, launched, kept)))


def _row(
    operation: Operation,
    kernels: Sequence[Launched],
    kept: Sequence[Tensor],
    share: Share,
    plan: Plan,
) -> LayerRow:
    weights = (on_rank(its, plan.tp, plan.etp, plan.ep) for its in operation.weights)
    widths = ((its.number_bytes or plan.element_bytes) * share.numbers(its) for its in kept)
    return LayerRow(
        operation.label,
        _shape(operation, kernels, share),
        sum(its.numbers for its in weights),
        sum(kernel.flops for kernel in kernels),
        sum(widths),
        tuple(kernel for kernel in kernels if isinstance(kernel, Communication)),
        bool(operation.again),
    )


def _shape(operation: Operation, kernels: Sequence[Launched], share: Share) -> str:
    for its in kernels:
        if isinstance(its, Matmul):
            times = f"{its.batch} x " if its.batch > 1 else ""
            return f"{times}({its.m} x {its.k}) x ({its.k} x {its.n})"
        if isinstance(its, Attention):
            return f"{its.heads} heads, {its.queries} queries x {its.keys} keys"
    made = operation.makes[0]
    width = share.width(made)
    return f"{share.numbers(made) / width:g} x {width:g}"
