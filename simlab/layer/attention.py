"""Multi-head attention, also with fewer heads of keys and values (Ainslie et al. 2023)."""

from typing import TYPE_CHECKING

from simlab.layer.latent import latent
from simlab.layer.operation import Cut, Operation, OperationKind, Tensor, linear, norm

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes


def attention(
    model: "ModelSizes", normed: Tensor, summed: Tensor, *, keys: int = 0, dropout: bool = False
) -> list[Operation]:
    """The operations from a norm's result to the output's. keys: how many each query meets where
    scores are stored; 0 stands for a fused kernel, which stores none."""
    d, value = model.head_size, model.value_width
    q = Tensor("q", model.heads * d, Cut.HEADS)
    k = Tensor("k", model.kv_heads * d, Cut.HEADS, least=d)
    v = Tensor("v", model.kv_heads * value, Cut.HEADS, least=value)
    result = Tensor("output input", model.heads * value, Cut.HEADS)
    if model.kv_rank:
        operations = latent(model, normed, q, k, v)
    else:
        joined, bias = model.positions > 0, model.bias  # a GPT's are one parameter
        qkv = linear(OperationKind.QKV, normed, (q, k, v), cut=Cut.HEADS, bias=bias, joined=joined)
        operations = [qkv]
    if model.qk_norm:
        operations.append(_norm_of_heads(q, k, d))
    if not model.positions:
        operations.append(_rotary(model, q, k))
    core = (
        _stored(model, q, k, v, result, keys, dropout) if keys else _fused(model, q, k, v, result)
    )
    output = linear(
        OperationKind.OUTPUT, result, (summed,), cut=Cut.HEADS, by_columns=True, bias=model.bias
    )
    return [*operations, *core, output]


def _norm_of_heads(q: Tensor, k: Tensor, size: int) -> Operation:
    """The norm of each head's query and key, as in Qwen3: one scale for queries, one for keys."""
    group = "qk norm inputs"
    inputs = tuple(its._replace(name=f"{its.name} before its norm", group=group) for its in (q, k))
    one = norm("norm of q and k", inputs[0], q, size=size)
    return one._replace(reads=inputs, makes=(q, k), weights=one.weights * 2, saves=inputs)


def _rotary(model: "ModelSizes", q: Tensor, k: Tensor) -> Operation:
    """The rotary embedding, of queries and keys or, with latent attention, of a part of each query
    and the one part that all keys have in common."""
    if model.kv_rank:
        q = q._replace(numbers=model.heads * model.rope_size)
        k = Tensor("k", model.rope_size, Cut.WHOLE)
    return Operation(OperationKind.ROTARY, (q, k), (q, k))


def _fused(model: "ModelSizes", q: Tensor, k: Tensor, v: Tensor, result: Tensor) -> list[Operation]:
    """One kernel, which keeps a number in fp32 for each row of the scores (Dao et al. 2022)."""
    rows = Tensor("softmax statistics", model.heads, Cut.HEADS, number_bytes=4)
    made = (result, rows)
    return [Operation(OperationKind.ATTENTION, (q, k, v), made, saves=(q, k, v, *made))]


def _stored(
    model: "ModelSizes", q: Tensor, k: Tensor, v: Tensor, result: Tensor, keys: int, dropout: bool
) -> list[Operation]:
    """Scores, softmax, perhaps dropout, and the product with the values, an operation each."""
    scores = Tensor("before softmax", model.heads * keys, Cut.HEADS)
    weights = scores._replace(name="softmax", group="scores")
    operations = [
        Operation(OperationKind.SCORES, (q, k), (scores,), saves=(q, k)),
        Operation(OperationKind.SOFTMAX, (scores,), (weights,), saves=(weights,)),
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
