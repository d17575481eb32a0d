"""Which tensors of a layer are dropped after the forward and made again before the backward."""

from collections.abc import Iterator, Sequence

from simlab.errors import InputError
from simlab.layer.operation import Cut, Operation, OperationKind

RECOMPUTE = ("none", "selective", "outputs", "per-op", "full")
SCORES = (
    OperationKind.SCORES,
    OperationKind.SOFTMAX,
    OperationKind.ATTENTION_DROPOUT,
    OperationKind.VALUES,
)
"""What attention without a fused kernel does between queries and its result."""
UPS = (OperationKind.UP, OperationKind.SHARED_UP)
DOWNS = (OperationKind.DOWN, OperationKind.SHARED_DOWN)


def marked(
    operations: Sequence[Operation], recompute: str, *, stops_early: bool = False
) -> list[Operation]:
    """`operations` of a layer with what `Plan.recompute` makes `again`, and with what they save then.
    stops_early: see `full`. Raises `InputError` if there is no such recomputation."""
    if recompute == "none":
        return [*operations]
    if recompute == "selective":
        return [_again(its) if its.kind in SCORES else its for its in operations]
    if recompute == "outputs":
        return [*outputs(operations)]
    if recompute == "per-op":
        return [*per_op(operations)]
    if recompute == "full":
        return full(operations, stops_early)
    raise InputError(f"recompute {recompute!r}: give one of {', '.join(RECOMPUTE)}")


def _again(operation: Operation) -> Operation:
    return operation._replace(again=operation.makes)


def outputs(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Megatron-LM discards the outputs of some modules and makes each again from what it was made of:
    of both norms, of what leads from latents to queries and keys, and of the activation function of
    routed experts. Latents' own norms are kept, as the products up read their results."""
    to_heads = [OperationKind.Q_UP, OperationKind.KV_UP, OperationKind.COPY]
    if any(its.kind is OperationKind.KV_UP for its in operations):
        to_heads.append(OperationKind.ROTARY)
    begins = True
    for its in operations:
        of_experts = its.kind is OperationKind.ACTIVATION and its.makes[0].cut is Cut.EXPERTS
        outer = begins and its.kind is OperationKind.NORM
        yield _again(its) if outer or of_experts or its.kind in to_heads else its
        begins = its.kind is OperationKind.RESIDUAL


def full(operations: Sequence[Operation], stops_early: bool) -> list[Operation]:
    """All is made again from the layer's input. stops_early: whether only what the backward reads is,
    which leaves out the last product and what follows it: torch's non-reentrant checkpointing does
    (`set_checkpoint_early_stop` in torch/utils/checkpoint.py)."""
    kinds = [its.kind for its in operations]
    last = kinds.index(OperationKind.DOWN) if stops_early else len(kinds)
    found = [_again(its)._replace(saves=()) for its in operations[:last]]
    found += [its._replace(saves=()) for its in operations[last:]]
    return [found[0]._replace(saves=operations[0].reads), *found[1:]]


def per_op(operations: Sequence[Operation]) -> Iterator[Operation]:
    """torchtitan's selective checkpointing makes all again but attention and every second product, and
    keeps what these make. Of q, k, v, output, gate, up and down (`_apply_ac_to_transformer_block` counts
    them) it makes k, output and up again; without a gate k, output and down."""
    for number, its in enumerate(operations):
        kept = its.makes if its.kind is OperationKind.ATTENTION else ()
        if its.kind is OperationKind.QKV:
            q, _, v = its.makes
            kept = q, v
        elif its.kind in UPS:
            kept = its.makes[:1]  # the gate, or without one all
        elif its.kind in DOWNS and its.weights and _is_gated(operations):
            kept = its.makes
        again = tuple(made for made in its.makes if made not in kept)
        yield its._replace(again=again, saves=kept if number else its.reads)


def _is_gated(operations: Sequence[Operation]) -> bool:
    return any(its.kind is OperationKind.UP and len(its.makes) > 1 for its in operations)
