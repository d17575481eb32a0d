"""Cutting layers into stages, against every cut there is."""

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab import InputError, best_partition, even_partition, stage_work

WORK = st.one_of(st.integers(0, 9), st.floats(0.0, 10.0))
CUTS = st.lists(WORK, min_size=1, max_size=8).flatmap(
    lambda layers: st.tuples(st.just(layers), st.integers(1, len(layers)))
)


def every_cut(layers, stages):
    """Every way to cut `layers` layers into so many contiguous stages of at least one."""
    return [
        list(pairwise((0, *inner, layers))) for inner in combinations(range(1, layers), stages - 1)
    ]


def slowest(layer_s, cut):
    return max(sum(layer_s[first:end]) for first, end in cut)


@given(CUTS)
def test_of_all_cuts_none_has_a_faster_slowest_stage_than_the_best(case):
    layer_s, stages = case
    found, cuts = best_partition(layer_s, stages), every_cut(len(layer_s), stages)
    assert found in cuts
    assert slowest(layer_s, found) == pytest.approx(min(slowest(layer_s, cut) for cut in cuts))


@given(CUTS)
def test_an_even_partition_has_equally_many_layers_the_stages_after_the_first_one_more(case):
    """The rule is that of `Plan.stage_layers`: the first stage has the embedding besides."""
    layer_s, stages = case
    found = even_partition(layer_s, stages)
    assert found in every_cut(len(layer_s), stages)
    sizes, longer = [end - first for first, end in found], len(layer_s) % stages
    assert sizes[0] == min(sizes) and max(sizes) - min(sizes) <= 1
    assert [stage for stage, size in enumerate(sizes) if size > sizes[0]] == [*range(1, 1 + longer)]
    assert slowest(layer_s, best_partition(layer_s, stages)) <= slowest(layer_s, found) + 1e-9


@given(CUTS)
def test_the_work_of_the_stages_is_all_the_work(case):
    layer_s, stages = case
    for cut in (best_partition(layer_s, stages), even_partition(layer_s, stages)):
        work = stage_work(layer_s, cut)
        assert len(work) == stages and sum(work) == pytest.approx(sum(layer_s))


def test_a_heavy_head_gets_a_stage_of_its_own_only_where_it_is_best():
    assert best_partition([1, 1, 1, 1, 4], 2) == [(0, 4), (4, 5)]
    assert best_partition([1, 1, 1, 1, 1, 1, 2], 2) == [(0, 4), (4, 7)]
    assert even_partition([1, 1, 1, 1, 4], 2) == [(0, 2), (2, 5)]
    assert stage_work([1, 1, 1, 1, 4], [(0, 3), (3, 5)]) == [3, 5]


@pytest.mark.parametrize("partition", [best_partition, even_partition])
@pytest.mark.parametrize("layer_s, stages, says", [
    ([1, 1], 3, "^2 layers cannot be cut into 3 stages: give at least one stage"), ([1, 1], 0, "into 0 stages"),
    ([], 1, "^0 layers"), ([1, -2], 1, "a layer's work = -2"), ([math.nan], 1, "a layer's work = nan"),
    ([1, math.inf], 2, "a layer's work = inf"),
])  # fmt: skip
def test_what_cannot_be_cut_is_refused_and_quoted(partition, layer_s, stages, says):
    with pytest.raises(InputError, match=says):
        partition(layer_s, stages)
