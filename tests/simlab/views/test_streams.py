"""What the chart of streams shows of a trace: all of it, of very many spans merged ones."""

from itertools import pairwise

import pytest

import simlab as sl
from simlab.trace import OPTIMIZER
from simlab.units import MS
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


def test_a_rank_that_never_waits_is_not_hatched_although_its_ops_are_merged():
    times = sl.OpTimes(forward_s=0.001, backward_s=0.002)
    trace = sl.simulate(sl.generate("gpipe", 1, MOST_BOXES), times)
    assert len(trace.spans) > MOST_BOXES and hatched(trace) == []


def test_a_rank_is_hatched_exactly_where_it_computes_nothing():
    times = sl.OpTimes(forward_s=0.001, backward_s=0.002)
    trace = sl.simulate(sl.generate("gpipe", 2, 4), times)
    waited = sum(end - start for start, end in hatched(trace)) / 1e3
    busy = sum(span.end_s - span.start_s for span in trace.compute())
    assert abs(waited - (2 * trace.end_s - busy)) < 1e-9


def rows(chart):
    """{name of a row: [(start, end) in ms of each of its boxes, waits left out]}."""
    found = {name: [] for name in chart.y.names}
    for mark in chart.marks:
        for x0, x1, y0, y1 in zip(mark.x0, mark.x1, mark.y0, mark.y1):
            at = min(chart.y.ticks, key=lambda tick: abs(tick - (y0 + y1) / 2))
            if mark.labels:
                found[chart.y.names[list(chart.y.ticks).index(at)]].append((x0, x1))
    return found


def spans_of(trace, row, stream):
    """The spans that last of a rank's stream; the optimizer computes."""
    streams = ("compute", OPTIMIZER) if stream == "compute" else (stream,)
    of_rank = [span for span in trace.spans if span.rank == int(row)]
    return [span for span in of_rank if span.stream in streams and span.end_s > span.start_s]


def test_streams_have_rows_per_rank_and_every_span_its_box():
    model, cluster = sl.load_model("llama-2-13b"), sl.load_cluster("dgx-a100", nodes=4)
    trace = sl.layer_trace(model, sl.Plan(dp=4, tp=4, pp=2, microbatches=2), cluster)
    start_s, end_s = trace.window("0F0")
    asked = {"key": "t", "title": Words("t", "t"), "window": (start_s, end_s)}
    drawn = rows(streams_chart(trace, **asked))
    assert list(drawn) == ["stage 0 compute", "stage 0 tp"]
    every = rows(streams_chart(trace, ranks=[0, 1], **asked))
    assert list(every) == [*drawn, "stage 1 compute", "stage 1 tp"]
    assert {name: every[name] for name in drawn} == drawn
    for name, boxes in drawn.items():
        _, rank, stream = name.split()
        spans = spans_of(trace, rank, stream)
        inside = [span for span in spans if span.end_s > start_s and span.start_s < end_s]
        assert sorted(boxes) == [
            pytest.approx((span.start_s / MS, span.end_s / MS))
            for span in sorted(inside, key=lambda span: span.start_s)
        ]


def test_too_many_boxes_are_merged_without_moving_where_work_begins_and_ends():
    model, cluster = sl.load_model("llama-2-13b"), sl.load_cluster("dgx-a100", nodes=4)
    trace = sl.layer_trace(model, sl.Plan(dp=1, tp=8, pp=4, microbatches=32), cluster)
    drawn = rows(streams_chart(trace, key="t", title=Words("t", "t")))
    assert 100 < sum(map(len, drawn.values())) <= MOST_BOXES < len(trace.spans)
    for name, boxes in drawn.items():
        _, rank, stream = name.split()
        spans = spans_of(trace, rank, stream)
        reach = min(span.start_s for span in spans) / MS, max(span.end_s for span in spans) / MS
        assert (min(boxes)[0], max(end for _, end in boxes)) == pytest.approx(reach)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(sorted(boxes)))


@pytest.mark.parametrize("height", [None, 240])
def test_rows_have_more_room_between_two_ranks_where_there_is_room(height):
    trace = sl.simulate(sl.generate("gpipe", 2, 4), sl.OpTimes(forward_s=1, backward_s=2))
    chart = streams_chart(trace, key="t", title=Words("t", "t"), height=height)
    assert chart.y.ticks == ([0, 1] if height else [0, 1.6])
