"""The operations of each unit of a model: of its embedding, its layers and its head."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from simlab.layer.attention import attention
from simlab.layer.experts import experts
from simlab.layer.mamba import state_space
from simlab.layer.mlp import mlp
from simlab.layer.operation import Cut, Operation, OperationKind, Tensor, Weight, linear, norm

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes

UnitKind = str
"""What a model consists of: its 'embedding', its layers, each of a kind of `Model.layer_kinds`, and
its 'head' with the last norm."""
MODULE: UnitKind = "module"
"""The kind of a layer that belongs to a module which predicts one more token."""
ENDS: tuple[UnitKind, ...] = ("embedding", "head")
"""The kinds of units that are no layers."""


def is_layer(unit: UnitKind) -> bool:
    """Whether a kind of units is a kind of layers."""
    return unit not in ENDS


def stage_units(layers: Sequence[UnitKind], *, first: bool, last: bool) -> tuple[UnitKind, ...]:
    """The units of a stage, in the order of a forward. A module begins with the rows of the next tokens
    in the embedding, and ends with a norm and the head, whose matrices are the model's own."""
    units = ["embedding"] * first
    for kind in layers:
        units += ["embedding", kind, "head"] if kind == MODULE else [kind]
    return (*units, *["head"] * last)


@lru_cache(512)  # every plan of a search asks for those of its model
def layer_operations(
    model: "ModelSizes", *, keys: int = 0, dropout: bool = False
) -> tuple[Operation, ...]:
    """The operations of a layer, in order. keys, dropout: see `attention`. Of a model
    whose layers are of several kinds it is one that is as the model says."""
    begins = _module_begins(model) if model.is_module else ()
    if model.parallel:
        return (*begins, *_side_by_side(model, keys, dropout))
    h, shift = model.hidden, model.has_bias("norm")
    operations: list[Operation] = []
    parts = _parts(model, keys, dropout)
    made = Tensor("layer input 1", h, Cut.TOKENS, group="norm inputs")
    for number, (names, part) in enumerate(parts, 1):
        skipped, made = made, made._replace(name=f"layer input {number + 1}")
        if number == len(parts):
            made = Tensor("layer's result", h, Cut.TOKENS)
        read, branch = (Tensor(name, h, Cut.TOKENS) for name in names)
        if model.norms != "behind":  # else attention and MLP read what norms read otherwise
            operations.append(norm(f"norm {number}", skipped, read, shift=shift))
        operations += part(read, branch)
        if model.norms != "before":
            inputs = branch._replace(group="norm inputs behind")
            branch = branch._replace(name=f"{branch.name}, normed")
            operations.append(norm(f"norm behind {number}", inputs, branch, shift=shift))
        operations.append(_residual(number, skipped, (branch,), made, dropout))
    return (*begins, *operations)


Part = Callable[[Tensor, Tensor], list[Operation]]
"""The operations from what a part of a layer reads to what is added to the skipped path."""


def _parts(model: "ModelSizes", keys: int, dropout: bool) -> list[tuple[tuple[str, str], Part]]:
    """[((name of what it reads, name of its result), part)] of a layer: what brings tokens together, and
    the MLP, or one of both."""
    found: list[tuple[tuple[str, str], Part]] = []
    if model.mixer == "attention":
        whole = partial(attention, model, keys=keys, dropout=dropout)
        found.append((("qkv input", "attention's result"), whole))
    elif model.mixer == "mamba":
        found.append((("scan input", "scan's result"), partial(state_space, model)))
    if model.has_mlp:
        its = partial(experts if model.experts else mlp, model)
        found.append((("mlp input", "mlp's result"), its))
    return found


def _module_begins(model: "ModelSizes") -> tuple[Operation, ...]:
    """What a module that predicts one more token does before its layer: norms of the next token's row of
    the embedding and of the last hidden states, and the projection of both, side by side, to one hidden
    state, whose parts tensor-parallel ranks collect from each other
    (`MultiTokenPredictionLayer._concat_embeddings` in megatron/core/transformer/multi_token_prediction.py).
    The last hidden states are saved by the head's norm."""
    h, shift = model.hidden, model.has_bias("norm")
    row, last, both, entered = (
        Tensor(name, numbers, Cut.TOKENS)
        for name, numbers in (("row", h), ("last", h), ("both", 2 * h), ("layer input 1", h))
    )
    normed = tuple(its._replace(name=f"{its.name}, normed") for its in (row, last))
    projected = Tensor("projected", h, Cut.COLUMNS)
    of_row = norm("norm of the row", row, normed[0], shift=shift)
    return (
        of_row._replace(kind=OperationKind.LAST_NORM),  # of which no skipped path goes by
        norm("norm of the last", last, normed[1], shift=shift)._replace(saves=()),
        Operation(OperationKind.JOIN, normed, (both,)),
        linear(OperationKind.PROJECTION, both, (projected,), cut=Cut.COLUMNS),
        Operation(OperationKind.COLLECT, (projected,), (entered,)),
    )


def _side_by_side(model: "ModelSizes", keys: int, dropout: bool) -> list[Operation]:
    """A layer whose attention and MLP read the same input, by one norm or by one each, and whose results are
    added to it at once (GPT-J; Chowdhery et al. 2022, PaLM, section 2). So tensor-parallel ranks sum up
    the parts of both together (gpt_j_residual in EleutherAI/gpt-neox, megatron/model/transformer.py)."""
    h, shift = model.hidden, model.has_bias("norm")
    entered = Tensor("layer input 1", h, Cut.TOKENS, group="norm inputs")
    names = ("qkv input", "mlp input", "attention's result", "mlp's result", "layer's result")
    reads, mlps, *branches, made = (Tensor(name, h, Cut.TOKENS) for name in names)
    operations = [norm("norm 1", entered, reads, shift=shift)]
    if model.parallel == "two norms":
        operations.append(norm("norm 2", entered, mlps, shift=shift))
    else:
        mlps = reads
    operations += attention(model, reads, branches[0], keys=keys, dropout=dropout)
    operations += mlp(model, mlps, branches[1])
    return [*operations, _residual(1, entered, branches, made, dropout)]


def _residual(
    number: int, skipped: Tensor, branches: Sequence[Tensor], made: Tensor, dropout: bool
) -> Operation:
    """The sum with the skipped path, before which what is added may be dropped out."""
    masks = (_mask(f"dropout mask {number}", made),) * dropout
    return Operation(
        OperationKind.RESIDUAL,
        (skipped, *branches),
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
        linear(OperationKind.HEAD, normed, (logits,), cut=Cut.COLUMNS, bias=model.has_bias("head")),
        Operation(OperationKind.LOSS, (logits,), (kept,), saves=(kept,)),
    )
