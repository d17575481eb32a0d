"""Multi-head attention, also with fewer heads of keys and values (Ainslie et al. 2023)."""

from typing import TYPE_CHECKING

from simlab.layer.latent import latent
from simlab.layer.operation import Cut, Operation, OperationKind, Tensor, Weight, linear, norm

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes

Pair = tuple[Tensor, Tensor]
"""Of queries and of keys."""


def attention(
    model: "ModelSizes", normed: Tensor, summed: Tensor, *, keys: int, dropout: bool
) -> list[Operation]:
    """The operations from a norm's result to the output's. keys: how many each query meets where
    scores are stored; 0 stands for a fused kernel, which stores none."""
    d, value = model.head_size, model.value_width
    q = Tensor("q", model.heads * d, Cut.HEADS, least=d)
    k = Tensor("k", model.kv_heads * d, Cut.HEADS, least=d)
    v = Tensor("v", model.kv_heads * value, Cut.HEADS, least=value)
    result = Tensor("output input", model.heads * value, Cut.HEADS)
    operations: list[Operation] = []
    made_q, made_k = q, k
    if model.rotary and not model.positions:
        made_q, made_k = (
            its._replace(name=f"{its.name} before rotary", group=its.name) for its in (q, k)
        )
        operations.append(_rotary(model, (made_q, made_k), (q, k)))
    if model.qk_norm:
        normed_heads = made_q, made_k
        made_q, made_k = (
            its._replace(name=f"{its.name} before norm", group="qk norm inputs") for its in (q, k)
        )
        operations.insert(0, _norm_of_heads(model, (made_q, made_k), normed_heads))
    if model.kv_rank:
        operations = [*latent(model, normed, made_q, made_k, v), *operations]
    else:
        joined = model.positions > 0  # a GPT's are one parameter
        makes = [made_q, made_k, v]
        qkv = linear(
            OperationKind.QKV,
            normed,
            makes,
            cut=Cut.HEADS,
            bias=model.has_bias("qkv"),
            joined=joined,
        )
        operations = [qkv, *operations]
    core = (
        _stored(model, q, k, v, result, keys, dropout) if keys else _fused(model, q, k, v, result)
    )
    bias = model.has_bias("output")
    output = linear(
        OperationKind.OUTPUT, result, (summed,), cut=Cut.HEADS, by_columns=True, bias=bias
    )
    return [*operations, *core, output]


def _norm_of_heads(model: "ModelSizes", inputs: Pair, makes: Pair) -> Operation:
    """The norm of queries and keys: of each head, as in Qwen3, with one scale for queries and one for
    keys; of all heads together, as in OLMo 2, which needs all heads of a token; or without scales, as in
    Llama 4."""
    weights: tuple[Weight, ...] = (Weight(model.head_size),) * 2
    if model.qk_norm == "whole":
        weights = tuple(Weight(its.numbers) for its in makes)
        inputs, makes = (
            (q._replace(cut=Cut.TOKENS, least=0), k._replace(cut=Cut.TOKENS, least=0))
            for q, k in (inputs, makes)
        )
    elif model.qk_norm == "weightless":
        weights = ()
    return norm("norm of q and k", inputs[0], makes[0])._replace(
        reads=inputs, makes=makes, weights=weights, saves=inputs
    )


def _rotary(model: "ModelSizes", inputs: Pair, makes: Pair) -> Operation:
    """The rotary embedding, of queries and keys, of a part of each, or, with latent attention, of a
    part of each query and the one part that all keys have in common."""
    if model.kv_rank:
        widths = model.heads * model.rope_size, model.rope_size
        inputs, makes = (
            (
                q._replace(numbers=widths[0], least=model.rope_size),
                k._replace(numbers=widths[1], cut=Cut.WHOLE, least=0),
            )
            for q, k in (inputs, makes)
        )
    elif rope := model.rope_size:
        inputs, makes = (
            (
                q._replace(numbers=model.heads * rope, least=rope),
                k._replace(numbers=model.kv_heads * rope, least=rope),
            )
            for q, k in (inputs, makes)
        )
    return Operation(OperationKind.ROTARY, inputs, makes)


def _fused(model: "ModelSizes", q: Tensor, k: Tensor, v: Tensor, result: Tensor) -> list[Operation]:
    """One kernel, which keeps a number in fp32 for each row of the scores (Dao et al. 2022)."""
    rows = Tensor("softmax statistics", model.heads, Cut.HEADS, number_bytes=4)
    made, weights = (result, rows), _sinks(model)
    return [Operation(OperationKind.ATTENTION, (q, k, v), made, weights, saves=(q, k, v, *made))]


def _sinks(model: "ModelSizes") -> tuple[Weight, ...]:
    """A score of each head that every query has beside those of its keys, if the model has them."""
    return (Weight(model.heads, cut=Cut.HEADS, least=1),) * model.sinks


def _stored(
    model: "ModelSizes", q: Tensor, k: Tensor, v: Tensor, result: Tensor, keys: int, dropout: bool
) -> list[Operation]:
    """Scores, softmax, perhaps dropout, and the product with the values, an operation each."""
    scores = Tensor("before softmax", model.heads * keys, Cut.HEADS)
    weights = scores._replace(name="softmax", group="scores")
    operations = [
        Operation(OperationKind.SCORES, (q, k), (scores,), saves=(q, k)),
        Operation(OperationKind.SOFTMAX, (scores,), (weights,), _sinks(model), saves=(weights,)),
    ]
    if dropout:
        mask = weights._replace(name="mask of scores", number_bytes=1)
        dropped = weights._replace(name="after dropout")
        its = Operation(OperationKind.ATTENTION_DROPOUT, (weights,), (dropped, mask), saves=(mask,))
        operations.append(its)
        weights = dropped
    values = result._replace(name="values")
    return [
        *operations,
        Operation(OperationKind.VALUES, (weights, v), (values,), saves=(weights, v)),
        Operation(OperationKind.TRANSPOSE, (values,), (result,)),
    ]
