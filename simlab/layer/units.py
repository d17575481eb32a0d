"""The operations of each unit of a model: of its embedding, its layers and its head."""

from functools import lru_cache
from typing import TYPE_CHECKING

from simlab.layer.attention import attention
from simlab.layer.experts import experts
from simlab.layer.mlp import mlp
from simlab.layer.operation import Cut, Operation, OperationKind, Tensor, Weight, linear, norm

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes

UnitKind = str
"""What a model consists of: its 'embedding', its layers, each of a kind of `Model.layer_kinds`, and
its 'head' with the last norm."""
ENDS: tuple[UnitKind, ...] = ("embedding", "head")
"""The kinds of units that are no layers."""


def is_layer(unit: UnitKind) -> bool:
    """Whether a kind of units is a kind of layers."""
    return unit not in ENDS


@lru_cache(512)  # every plan of a search asks for those of its model
def layer_operations(
    model: "ModelSizes", *, keys: int = 0, dropout: bool = False
) -> tuple[Operation, ...]:
    """The operations of a layer, in order. keys, dropout: see `attention`. Of a model
    whose layers are of several kinds it is one that is as the model says."""
    h, shift = model.hidden, model.has_bias("norm")
    entered, between = (
        Tensor(f"layer input {n}", h, Cut.TOKENS, group="norm inputs") for n in (1, 2)
    )
    branches = ("qkv input", "attention's result"), ("mlp input", "mlp's result")
    ends = between, Tensor("layer's result", h, Cut.TOKENS)
    operations: list[Operation] = []
    for number, (skipped, made, names) in enumerate(zip((entered, between), ends, branches), 1):
        read, branch = (Tensor(name, h, Cut.TOKENS) for name in names)
        if model.norms != "behind":  # else attention and MLP read what norms read otherwise
            operations.append(norm(f"norm {number}", skipped, read, shift=shift))
        if number == 1:
            operations += attention(model, read, branch, keys=keys, dropout=dropout)
        else:
            operations += (experts if model.experts else mlp)(model, read, branch)
        if model.norms != "before":
            inputs = branch._replace(group="norm inputs behind")
            branch = branch._replace(name=f"{branch.name}, normed")
            operations.append(norm(f"norm behind {number}", inputs, branch, shift=shift))
        operations.append(_residual(number, skipped, branch, made, dropout))
    return tuple(operations)


@lru_cache(512)
def module_operations(model: "ModelSizes") -> tuple[Operation, ...]:
    """A module that predicts one more token, before the model's own head: norms of the next token's
    row of the embedding and of the last hidden states, the projection of both to one hidden state, a layer and its norm
    (`MultiTokenPredictionLayer` in megatron/core/transformer/multi_token_prediction.py)."""
    h, shift = model.hidden, model.has_bias("norm")
    row, last, both = (
        Tensor(name, numbers, Cut.TOKENS)
        for name, numbers in (("row", h), ("last", h), ("both", 2 * h))
    )
    made = Tensor("module's layer's result", h, Cut.TOKENS)
    projected = Tensor("layer input 1", h, Cut.TOKENS)
    return (
        norm("norm of the row", row, row._replace(name="row, normed"), shift=shift),
        norm("norm of the last", last, last._replace(name="last, normed"), shift=shift),
        linear(OperationKind.OTHER, both, (projected,))._replace(name="projection"),
        *layer_operations(model),
        norm("norm of the module", made, made._replace(name="head input"), shift=shift),
    )


def _residual(
    number: int, skipped: Tensor, branch: Tensor, made: Tensor, dropout: bool
) -> Operation:
    """The sum with the skipped path, before which the branch may be dropped out."""
    masks = (_mask(f"dropout mask {number}", made),) * dropout
    return Operation(
        OperationKind.RESIDUAL,
        (skipped, branch),
        (made, *masks),
        saves=masks,
        name=f"residual {number}",
    )


def _mask(name: str, dropped: Tensor) -> Tensor:
    return dropped._replace(name=name, group="dropout masks", number_bytes=1)


@lru_cache(512)
def embedding_operations(model: "ModelSizes", *, dropout: bool = False) -> tuple[Operation, ...]:
    """The rows of the embedding and, of a GPT, those of the positions, which may be dropped out.
    Tensor-parallel ranks have some rows each, so they sum up what they find."""
    made = Tensor("embedded", model.hidden, Cut.TOKENS)
    weights = [Weight(model.vocab, model.hidden, Cut.COLUMNS)]
    if model.positions:
        weights.append(Weight(model.positions, model.hidden))
    masks = (_mask("embedding's dropout mask", made),) * dropout
    makes = (made, *masks)
    return (Operation(OperationKind.EMBEDDING, (), makes, tuple(weights), saves=masks),)


@lru_cache(512)
def head_operations(model: "ModelSizes") -> tuple[Operation, ...]:
    """The last norm, the product that makes the logits, whose matrix may be the embedding's, and the
    loss, which keeps the logarithm of each word's probability in fp32."""
    entered, normed = (Tensor(name, model.hidden, Cut.TOKENS) for name in ("output", "head input"))
    logits = Tensor("logits", model.vocab, Cut.COLUMNS)
    kept = logits._replace(name="log-softmax", number_bytes=4)
    last = norm("last norm", entered, normed, shift=model.has_bias("norm"))
    return (
        last._replace(kind=OperationKind.LAST_NORM),
        linear(OperationKind.HEAD, normed, (logits,), cut=Cut.COLUMNS),
        Operation(OperationKind.LOSS, (logits,), (kept,), saves=(kept,)),
    )
