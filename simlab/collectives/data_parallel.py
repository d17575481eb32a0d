"""What data parallelism and ZeRO's stages send in a step: which collectives, of how many bytes, how
often."""

from collections.abc import Sequence
from typing import NamedTuple

from simlab.collectives.all_reduce import ring_all_reduce
from simlab.collectives.others import ring_all_gather, ring_reduce_scatter
from simlab.errors import InputError

RINGS = {
    "all-reduce": ring_all_reduce,
    "all-gather": ring_all_gather,
    "reduce-scatter": ring_reduce_scatter,
}


class Call(NamedTuple):
    """A collective of `size_bytes` (the whole buffer), `count` times a step."""

    kind: str
    what: str
    size_bytes: float
    count: int  # type: ignore[assignment]  # hides the count of a tuple's items


def zero_calls(
    parameters: float,
    zero: int,
    *,
    microbatches: int = 1,
    parameter_bytes: float = 2,
    gradient_bytes: float = 2,
) -> list[Call]:
    """[`Call`] of a step of ZeRO's stage `zero` (0: plain data parallelism) with `microbatches`
    microbatches on each rank.

    Stages 0 and 1 add the microbatches' gradients up locally and reduce once. From stage 2 on a
    rank keeps only its shard of the gradients, so each microbatch's are reduced at once. Stage 3
    gathers the parameters for each forward and again for each backward (Rajbhandari et al. 2020,
    section 7). Volumes are the same whether it is done at once or layer by layer.
    """
    if zero not in (0, 1, 2, 3):
        raise InputError(f"ZeRO stage {zero!r}: give 0 (none), 1, 2 or 3")
    gradients, weights = parameters * gradient_bytes, parameters * parameter_bytes
    if zero == 0:
        return [Call("all-reduce", "gradients", gradients, 1)]
    reduced = Call("reduce-scatter", "gradients", gradients, microbatches if zero >= 2 else 1)
    gathered = Call("all-gather", "parameters", weights, 2 * microbatches if zero == 3 else 1)
    return [reduced, gathered]


def most_sent_by_calls(calls: Sequence[Call], ranks: int) -> float:
    """Bytes that the busiest of `ranks` ranks sends, counted transfer by transfer in the
    collectives' rings."""
    sent = [0.0] * ranks
    for call in calls:
        for transfers in RINGS[call.kind](range(ranks), call.size_bytes):
            for transfer in transfers:
                sent[transfer.source] += call.count * transfer.size_bytes
    return max(sent)
