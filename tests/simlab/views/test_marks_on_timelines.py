"""Marks on timelines: the critical path, what idle time waited for, and the cap on memory."""

from itertools import groupby, pairwise
from math import isnan

import pytest
from timelines import (
    TIMES,
    a_hundred_seconds_later,
    expected_boxes,
    still_boxes,
    two_traces,
)

from simlab import (
    critical_path,
    generate,
    simulate,
)
from simlab.views import timeline
from simlab.views.chart import Boxes, Dots, Line, Rule
from simlab.views.charts.timelines import timeline_charts
from simlab.views.scene import FADED


def corners(lines):
    """{(rank, start, end)} of those lines of (ms, row) that go round a box."""
    boxes = set()
    for line in lines:
        times, rows = zip(*line)
        if len(line) > 2:
            boxes.add(
                (round((min(rows) + max(rows)) / 2), round(min(times), 6), round(max(times), 6))
            )
    return boxes


def test_the_critical_path_goes_round_its_ops_and_joins_them():
    traces = two_traces()
    for trace, chart in zip(traces, timeline_charts(traces, critical_path=True)[::2]):
        path = [span for span in critical_path(trace) if span.stream == "compute"]
        (line,) = [mark for mark in chart.marks if isinstance(mark, Line)]
        points = groupby(zip(line.x, line.y), lambda point: isnan(point[0]))
        lines = [list(points) for gap, points in points if not gap]
        assert corners(lines) == {
            (span.rank, round(span.start_s * 1e3, 6), round(span.end_s * 1e3, 6)) for span in path
        }
        joints = [[point[0] for point in line] for line in lines if len(line) == 2]
        assert joints == [
            pytest.approx([a.end_s * 1e3, b.start_s * 1e3]) for a, b in pairwise(path)
        ]


def test_the_still_picture_fades_the_ops_that_are_not_on_the_critical_path():
    trace = two_traces()[1]
    on_path = sum(span.stream == "compute" for span in critical_path(trace))
    chart, _ = timeline_charts([trace], critical_path=True)
    count = {"": 0, f"{round(255 * FADED):02X}": 0}
    for mark in chart.marks:
        if isinstance(mark, Boxes) and mark.labels:
            count[mark.colour[7:]] += len(mark.x0)
    strong, faded = count.values()
    assert strong == on_path < strong + faded == len(trace.compute())
    panel = timeline(trace, critical_path=True).axes[0]
    drawn = [item for item in panel.collections if len(item.get_facecolor()) and item.get_paths()]
    assert {round(item.get_facecolor()[0][3], 1) for item in drawn} == {1.0, FADED}


def test_the_critical_path_is_drawn_only_if_asked_for_and_named_in_the_legend():
    trace = two_traces()[0]
    for asked in (False, True):
        (legend,) = timeline(trace, critical_path=asked).legends
        assert ("critical path" in [text.get_text() for text in legend.get_texts()]) == asked


# a cap on activations
# -------------------------------------------------------------------------------------

# (ms, microbatches): ranks 0 and 1 of 1F1B begin their third forward
OVER_2_5 = [(40.0, 3.0), (60.0, 3.0)]


def capped(cap):
    trace = simulate(generate("1f1b", 4, 8), TIMES)
    trace.metadata["activation_cap"] = cap
    return trace


def cap_of(strip):
    """(height of the cap line, [marks]) of a memory strip, (None, []) without a cap."""
    found = [mark for mark in strip.marks if isinstance(mark, Rule | Dots)]
    if not found:
        return None, []
    line, marks = found
    assert line.colour == marks.colour == "cap" and marks.symbol == "cross"
    return line.y, list(zip(marks.x, marks.y))


@pytest.mark.parametrize("cap, marks", [(2.5, OVER_2_5), (4, []), (9, [])])
def test_a_strip_has_the_cap_and_marks_where_a_rank_first_holds_more(cap, marks):
    height, over = cap_of(timeline_charts([capped(cap)])[1])
    assert height == cap
    assert [time_ms for time_ms, _ in over] == pytest.approx([time_ms for time_ms, _ in marks])
    assert [amount for _, amount in over] == [amount for _, amount in marks]


def test_marks_are_on_the_pictures_clock_though_the_traces_begins_later():
    _, over = cap_of(timeline_charts([a_hundred_seconds_later(capped(2.5))])[1])
    assert over == [pytest.approx(mark) for mark in OVER_2_5]


def test_a_cap_above_every_peak_is_still_in_the_picture():
    low, high = timeline(capped(9)).axes[1].get_ylim()
    assert low <= 0 and high > 9


def test_without_a_cap_the_picture_has_neither_line_nor_marks():
    assert cap_of(timeline_charts(two_traces())[1]) == (None, [])


def test_each_trace_has_a_cap_of_its_own():
    strips = timeline_charts([capped(2.5), two_traces()[0], capped(3.5)])[1::2]
    assert [cap_of(strip)[0] for strip in strips] == [2.5, None, 3.5]
    assert [len(cap_of(strip)[1]) for strip in strips] == [2, 0, 1]


def test_without_memory_the_still_picture_is_timelines_only():
    traces = [capped(2.5), *two_traces()]
    figure = timeline(traces, memory=False)
    assert len(figure.axes) == 3 and figure.get_figheight() < timeline(traces).get_figheight()
    for trace, axes in zip(traces, figure.axes):
        assert still_boxes(axes)[0].keys() == expected_boxes(trace).keys()
        assert axes.get_lines() == []
    assert figure.axes[-1].get_xlabel() == "time, ms"
