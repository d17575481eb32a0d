"""Floating-point operations of a layer, per token."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simlab.layer.operation import Cut, Operation, OperationKind, Tensor
from simlab.layer.passes.recomputation import marked
from simlab.layer.units import layer_operations

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes

ALIKE = {
    OperationKind.Q_DOWN: OperationKind.QKV,
    OperationKind.Q_UP: OperationKind.QKV,
    OperationKind.KV_DOWN: OperationKind.QKV,
    OperationKind.KV_UP: OperationKind.QKV,
    OperationKind.TO_EXPERTS: "latents of experts",
    OperationKind.FROM_EXPERTS: "latents of experts",
    OperationKind.SHARED_UP: "shared experts",
    OperationKind.SHARED_DOWN: "shared experts",
}
"""{kind of product: the part of a layer that its operations are counted with}; any other product is a part."""
SCAN_FLOPS = 7
"""Operations of a scan for each number of a state: decay it, add x B to it and read it along C, as NVIDIA
counts them (`mamba_layer_flops` in megatron/training/training.py). Kernels that go chunk by chunk do more."""


def layer_flops(model: "ModelSizes", seq: int) -> dict[str, int]:
    """{part: floating-point operations} of a layer's forward, per token of a sequence of `seq`."""
    found: dict[str, int] = {}
    for its in layer_operations(model):
        if its.kind is OperationKind.ATTENTION:
            q, result = its.reads[0], its.makes[0]
            keys = model.keys_met(seq)
            found["scores"], found["values"] = (int(2 * keys * n.numbers) for n in (q, result))
        elif its.kind is OperationKind.SCAN:
            found["scan"] = int(_scan_flops(model, its))
        elif its.is_product:
            name = str(ALIKE.get(its.kind, its.kind))
            found[name] = found.get(name, 0) + product_flops(model, its, its.makes)
    return found


def _scan_flops(model: "ModelSizes", scan: Operation) -> float:
    return SCAN_FLOPS * scan.makes[0].numbers * model.state_size


def product_flops(model: "ModelSizes", product: Operation, makes: Sequence[Tensor]) -> int:
    """Operations per token of what `makes` of a product's results, two for each multiplication and
    addition; 0 of any other operation."""
    if not product.is_product:
        return 0
    read = product.reads[0]
    copies = model.experts_per_token if Cut.EXPERTS in (read.cut, makes[0].cut) else 1
    return int(2 * read.numbers * sum(made.numbers for made in makes) * copies)


def flops_again(
    model: "ModelSizes", seq: int, recompute: str, *, flash: bool, stops_early: bool = False
) -> int:
    """Operations per token that a layer does a second time before its backward."""
    operations = marked(
        layer_operations(model, keys=0 if flash else seq), recompute, stops_early=stops_early
    )
    total, keys = 0, model.keys_met(seq)
    for its in operations:
        if not its.again:
            continue
        total += product_flops(model, its, its.again)
        if its.kind is OperationKind.SCAN:
            total += int(_scan_flops(model, its))
        if its.kind in (OperationKind.SCORES, OperationKind.ATTENTION):
            total += int(2 * keys * its.reads[0].numbers)
        if its.kind in (OperationKind.VALUES, OperationKind.ATTENTION):
            total += int(2 * keys * its.makes[0].numbers)
    return total
