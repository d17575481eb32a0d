"""Layers → stages: which contiguous cut makes the slowest stage the fastest."""

from itertools import accumulate, pairwise

from simlab.errors import InputError


def best_partition(layer_s, stages):
    """[(first, one past last) layer of each stage]: contiguous, every stage at least one layer, the largest stage's sum least.

    layer_s: work of each layer in order, in any one unit; an embedding or a head is a layer of its own work.

    With many microbatches a pipeline goes at its slowest stage's pace, so that is what is minimised; the work of the others
    decides nothing, and the first best cut found from the front is taken. The classic linear partition problem by dynamic
    programming: least(k, n), the best for k stages and the first n layers, is the least over the last stage's first layer i
    of max(least(k - 1, i), work of i..n). Leaves out: memory, messages, and what the ends of a step cost.
    """
    _check(layer_s, stages)
    total = [0.0, *accumulate(layer_s)]
    layers = len(layer_s)
    least, first_of_last = {(1, n): total[n] for n in range(1, layers + 1)}, {}
    for k in range(2, stages + 1):
        for n in range(k, layers + 1):
            least[k, n], first_of_last[k, n] = min((max(least[k - 1, i], total[n] - total[i]), i) for i in range(k - 1, n))
    cuts, end = [], layers
    for k in range(stages, 1, -1):
        cuts.append((first_of_last[k, end], end))
        end = first_of_last[k, end]
    return [(0, end), *reversed(cuts)]


def even_partition(layer_s, stages):
    """As `best_partition`, but with equally many layers in each stage (the first ones get one more), whatever their work."""
    _check(layer_s, stages)
    size, larger = divmod(len(layer_s), stages)
    ends = [0, *accumulate(size + (stage < larger) for stage in range(stages))]
    return list(pairwise(ends))


def stage_work(layer_s, partition):
    """[work of each stage] in the unit of `layer_s`."""
    return [sum(layer_s[first:end]) for first, end in partition]


def _check(layer_s, stages):
    if not 1 <= stages <= len(layer_s):
        raise InputError(f"{len(layer_s)} layers cannot be cut into {stages} stages: give at least one stage, and a layer for each")
    for work in layer_s:
        if not 0 <= work < float("inf"):
            raise InputError(f"a layer's work of {work!r}: give a finite number, 0 or more")
