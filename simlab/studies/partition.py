"""It cuts layers into contiguous stages, evenly or so that the slowest stage is as fast as can
be."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from simlab.errors import InputError, require_amount, require_whole
from simlab.spec.stage_layers import layers_of_stages


def best_partition(layer_s: Sequence[float], stages: int) -> list[tuple[int, int]]:
    """The contiguous partition whose largest stage has the least work.

    layer_s: the work of each layer in order, in seconds or in any other one unit. An embedding or a
             head counts as a layer with its own work.
    stages:  the number of stages.

    Returns the first layer and one past the last layer of each stage. Every stage has at least one
    layer. Raises `InputError` if there are fewer layers than stages, or for work that is negative
    or not finite.

    With many microbatches a pipeline is as fast as its slowest stage, so the work of that stage is
    minimised. Of equally good partitions, the first one found from the front is taken. This is the
    classic linear partition problem, solved by dynamic programming: least(k, n), the result for k
    stages and the first n layers, is the minimum over the first layer i of the last stage of
    max(least(k - 1, i), work of layers i to n). Memory, messages, and the start and the end of a
    step are left out.
    """
    _check(layer_s, stages)
    total = [0.0, *accumulate(layer_s)]
    layers = len(layer_s)
    least = {(1, n): total[n] for n in range(1, layers + 1)}
    first_of_last: dict[tuple[int, int], int] = {}
    for k in range(2, stages + 1):
        for n in range(k, layers + 1):
            least[k, n], first_of_last[k, n] = min(
                (max(least[k - 1, i], total[n] - total[i]), i) for i in range(k - 1, n)
            )
    cuts: list[tuple[int, int]] = []
    end = layers
    for k in range(stages, 1, -1):
        cuts.append((first_of_last[k, end], end))
        end = first_of_last[k, end]
    return [(0, end), *reversed(cuts)]


def even_partition(layer_s: Sequence[float], stages: int) -> list[tuple[int, int]]:
    """The partition with equally many layers in each stage, whatever their work is.

    If the layers cannot be divided equally, some stages have one more, as the rule 'uneven' of
    `simlab.spec.stage_layers.layers_of_stages` says. The arguments and the result are those of
    `best_partition`.
    """
    _check(layer_s, stages)
    ends = [0, *accumulate(layers_of_stages("uneven", len(layer_s), stages))]
    return list(pairwise(ends))


def stage_work(layer_s: Sequence[float], partition: Sequence[tuple[int, int]]) -> list[float]:
    """[per stage] the sum of the work of its layers, in the unit of `layer_s`."""
    return [sum(layer_s[first:end]) for first, end in partition]


def _check(layer_s: Sequence[float], stages: int) -> None:
    require_whole("stages", stages, 0)
    if not 1 <= stages <= len(layer_s):
        raise InputError(
            f"{len(layer_s)} layers cannot be cut into {stages} stages: give at least one stage, and a layer for each"
        )
    for work in layer_s:
        require_amount("a layer's work", work)
