"""Which tensors of a layer are dropped after the forward and made again before the backward."""

from collections.abc import Collection, Iterator, Sequence

from simlab.errors import InputError
from simlab.layer.operation import Cut, Operation, OperationKind, Tensor

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
    operations: Sequence[Operation],
    recompute: str,
    *,
    stops_early: bool = False,
    sent: Collection[str] = (),
) -> list[Operation]:
    """`operations` of a layer with what `Plan.recompute` makes `again`, and with what they save then.
    stops_early: see `full`; sent: see `per_op`. Raises `InputError` if there is no such
    recomputation."""
    if recompute == "none":
        return [*operations]
    if recompute == "selective":
        return [_again(its) if its.kind in SCORES else its for its in operations]
    if recompute == "outputs":
        return [*outputs(operations)]
    if recompute == "per-op":
        return [*per_op(operations, sent)]
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
    products = [at for at, its in enumerate(operations) if its.is_product]
    last = products[-1] if stops_early else len(operations)
    found = [_again(its)._replace(saves=()) for its in operations[:last]]
    found += [its._replace(saves=()) for its in operations[last:]]
    return [found[0]._replace(saves=operations[0].reads), *found[1:]]


def per_op(operations: Sequence[Operation], sent: Collection[str] = ()) -> Iterator[Operation]:
    """torchtitan's selective checkpointing makes all again but attention, every second product, and
    what ranks have sent each other, and keeps what these make. Of q, k, v, output, gate, up and down
    (`_apply_ac_to_transformer_block` counts them) it makes k, output and up again; without a gate k,
    output and down. sent: names of tensors that come from other ranks."""
    gated = any(its.kind is OperationKind.UP and len(its.makes) > 1 for its in operations)
    for number, its in enumerate(operations):
        kept: tuple[Tensor, ...] = ()
        if its.kind is OperationKind.ATTENTION:
            kept = its.makes
        elif its.kind is OperationKind.QKV:
            kept = its.makes[::2]
        elif its.kind in UPS:
            kept = its.makes[:1]  # the gate, or without one all
        elif its.kind in DOWNS and its.weights and gated:
            kept = its.makes
        again = tuple(made for made in its.makes if made not in kept)
        if its.kind in DOWNS and kept:
            kept = tuple(map(_before_its_sum, kept))
        came = tuple(
            read._replace(name=f"{read.name} as it came") for read in its.reads if read.name in sent
        )
        yield its._replace(again=again, saves=(*kept, *came) if number else its.reads)


def _before_its_sum(made: Tensor) -> Tensor:
    """What a product makes of all tokens, before ranks sum it up and scatter it."""
    cut = Cut.WHOLE if made.cut is Cut.TOKENS else made.cut
    return made._replace(name=f"a rank's part of {made.name}", cut=cut)
