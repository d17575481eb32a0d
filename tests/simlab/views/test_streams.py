"""What the chart of streams shows of a trace of very many spans."""

import simlab as sl
from simlab.views.chart import Words
from simlab.views.charts.streams import MOST_BOXES, streams_chart
from simlab.views.language import LANGUAGE


def hatched(trace):
    """[(start, end)] in ms of the boxes that say a rank waits."""
    chart = streams_chart(trace, key="t", title=Words("t", "t"))
    waiting = [mark for mark in chart.marks if mark.name == Words(*words("waiting"))]
    return [pair for mark in waiting for pair in zip(mark.x0, mark.x1)]


def words(work):
    return LANGUAGE["work"][work]["en"], LANGUAGE["work"][work]["zh"]


def test_a_rank_that_never_waits_is_not_hatched_although_its_shortest_ops_are_not_drawn():
    times = sl.OpTimes(forward_s=0.001, backward_s=0.002)
    trace = sl.simulate(sl.generate("gpipe", 1, MOST_BOXES), times)
    assert len(trace.spans) > MOST_BOXES and hatched(trace) == []


def test_a_rank_is_hatched_exactly_where_it_computes_nothing():
    times = sl.OpTimes(forward_s=0.001, backward_s=0.002)
    trace = sl.simulate(sl.generate("gpipe", 2, 4), times)
    waited = sum(end - start for start, end in hatched(trace)) / 1e3
    busy = sum(span.end_s - span.start_s for span in trace.compute())
    assert abs(waited - (2 * trace.end_s - busy)) < 1e-9


def test_the_title_says_how_many_of_the_spans_are_drawn():
    times = sl.OpTimes(forward_s=0.001, backward_s=0.002)
    many = sl.simulate(sl.generate("gpipe", 1, MOST_BOXES), times)
    assert streams_chart(many, key="t", title=Words("the step", "一步")).title == Words(
        "the step: the 3,000 longest of 6,000 spans", "一步：6,000 段中最长的 3,000 段"
    )
    few = sl.simulate(sl.generate("gpipe", 1, 4), times)
    assert streams_chart(few, key="t", title=Words("the step", "一步")).title.en == "the step"
