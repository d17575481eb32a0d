"""Gradient buckets: their bytes, what the timeline leaves exposed, and both curves."""

import pytest

import simlab as sl
from simlab.explorers import explorer
from simlab.explorers.buckets import plan_of, point, trace_of

BUCKETS = explorer("buckets")


def marks(chart):
    return {mark.name.en: mark for mark in chart.marks if mark.name is not None}


@pytest.mark.parametrize("mib", [5, 25, 500])
def test_buckets_hold_every_gradient_once_and_none_is_larger_than_its_size(mib):
    sizes = [span.bytes for span in trace_of("gpt2", 16, 4, mib).spans if span.stream == "dp"]
    assert sum(sizes) == 4 * sl.load_model("gpt2").parameters  # fp32
    assert max(sizes) <= mib * 2**20


@pytest.mark.parametrize(("mib", "size"), [(25, 4), (100, 1)])
def test_the_timeline_and_the_curves_show_one_and_the_same_step(mib, size):
    state = BUCKETS.start(bucket_mib=mib, microbatch_size=size)
    over_buckets, over_sizes, timeline = BUCKETS.answer(state).pictures
    drawn = marks(timeline)
    wait, optimizer = drawn["exposed reduction"], drawn["optimizer"]
    exposed_ms = wait.x1[0] - wait.x0[0]
    assert wait.x0[0] == pytest.approx(max(drawn["backward"].x1))
    assert wait.x1[0] == optimizer.x0[0] == pytest.approx(max(drawn["all-reduce of a bucket"].x1))
    its = marks(over_buckets)["exposed reduction"]
    assert its.high[its.x.index(mib)] == pytest.approx(exposed_ms)
    its = marks(over_sizes)["exposed reduction"]
    assert its.high[its.x.index(size)] == pytest.approx(exposed_ms / size)
    hidden = marks(over_buckets)["reduction hidden beside the backward"]
    reduction = drawn["all-reduce of a bucket"]
    total_ms = sum(reduction.x1) - sum(reduction.x0)
    assert hidden.high[hidden.x.index(mib)] == pytest.approx(total_ms)


def test_the_step_is_the_one_that_is_predicted_op_by_op():
    cluster = sl.load_cluster("dgx-a100", nodes=2)
    found = sl.predict(sl.load_model("gpt2"), plan_of(16, 4, 25), cluster)
    assert point("gpt2", 16, 4, 25).step_s == pytest.approx(found.step_s)
    assert point("gpt2", 16, 4, 25).exposed_s == pytest.approx(found.after_s)


def test_one_bucket_hides_nothing_and_many_small_ones_take_longer_in_all():
    points = [point("gpt2", 16, 4, mib) for mib in (5, 10, 25, 50, 100, 250, 500)]
    assert points[-1].exposed_s == pytest.approx(points[-1].reduction_s)
    totals = [each.reduction_s for each in points]
    assert totals == sorted(totals, reverse=True)
    assert all(0 < each.exposed_s <= each.reduction_s + 1e-12 for each in points)


def test_the_exposed_reduction_looks_the_same_in_every_picture():
    pictures = BUCKETS.answer(BUCKETS.start()).pictures
    looks = {
        (its.colour, its.pattern) for p in pictures if (its := marks(p).get("exposed reduction"))
    }
    assert len(looks) == 1 and all("exposed reduction" in marks(p) for p in pictures)
