"""The ZeRO grid: every slice is held as often as there are groups, and its area is its bytes."""

from itertools import product

import pytest

from simlab.explorers.zero_grid import CATEGORIES, EXPLORER, slices
from simlab.spec.plan import Plan
from simlab.views.scene import CATEGORY_WORDS

# Rajbhandari et al. 2020, Table 1: GB of states on each rank, 7.5e9 parameters, by ranks and stage
TABLE_1 = {4: (120, 52.5, 41.3, 30), 16: (120, 35.6, 21.6, 7.5)}
BYTES = {"zero": (2, 2, 12), "megatron": (2, 4, 12), "fp32": (4, 4, 8)}


def boxes(chart, name):
    (found,) = [mark for mark in chart.marks if mark.name is not None and mark.name.en == name]
    return found


@pytest.mark.parametrize(("zero", "ranks", "group"), [*product(range(4), (2, 8), (2, 4, 8))])
def test_the_ranks_of_each_group_hold_every_category_once_or_each(zero, ranks, group):
    group = min(group, ranks)
    plan = Plan(dp=ranks, zero=zero, hybrid=group if zero and group < ranks else 0)
    for category, sharded_from in (("parameters", 3), ("gradients", 2), ("optimizer", 1)):
        its = [each for each in slices(plan) if each.category == category]
        assert [each.rank for each in its] == list(range(ranks))
        held = sum(each.end - each.start for each in its)
        assert held == pytest.approx(ranks / group if zero >= sharded_from else ranks)
        if zero >= sharded_from:
            for first in range(0, ranks, group):
                edges = [(each.start, each.end) for each in its[first : first + group]]
                assert edges == [(n / group, (n + 1) / group) for n in range(group)]


@pytest.mark.parametrize(("ranks", "published"), TABLE_1.items())
def test_bars_are_those_of_the_zero_papers_table(ranks, published):
    state = EXPLORER.start(model="megatron-7.5b", ranks=ranks, group=ranks)
    bars = EXPLORER.answer(state).pictures[1]
    ends = boxes(bars, "optimizer states").x1
    assert [end / ends[0] for end in ends] == pytest.approx(
        [gb / published[0] for gb in published], rel=4e-3
    )


@pytest.mark.parametrize("recipe", BYTES)
def test_the_area_of_a_ranks_boxes_is_what_its_bar_says(recipe):
    state = EXPLORER.start(zero=2, ranks=8, group=4, recipe=recipe)
    grid, bars = EXPLORER.answer(state).pictures
    for category, size in zip(CATEGORIES, BYTES[recipe]):
        name = CATEGORY_WORDS[category]
        drawn, bar = boxes(grid, name.en), boxes(bars, name.en)
        widths = [right - left for left, right in zip(drawn.x0, drawn.x1)]
        whole = bar.x1[0] - bar.x0[0]
        assert widths == pytest.approx([size * (bar.x1[2] - bar.x0[2]) / whole] * 8)


def test_zero_3_sends_one_and_a_half_times_what_the_others_send():
    """Rajbhandari et al. 2020, section 7.2.2, with gradients in as many bits as parameters."""
    answer = EXPLORER.answer(EXPLORER.start(ranks=16, group=16))
    (sent,) = [row.values for row in answer.figures if row.label.en == "a rank sends in a step"]
    sent = [float(text.removesuffix(" GiB")) for text in sent]
    assert sent[0] == sent[1] == sent[2] and sent[3] == pytest.approx(1.5 * sent[0], rel=5e-3)


def test_what_others_hold_is_drawn_only_where_something_is_sharded():
    names = [
        [name.en for name, _ in EXPLORER.answer(EXPLORER.start(zero=zero)).pictures[0].legend()]
        for zero in (0, 1)
    ]
    assert "held by other ranks" not in names[0] and "held by other ranks" in names[1]
    assert EXPLORER.answer(EXPLORER.start(ranks=2)).values == {"group": [2]}
