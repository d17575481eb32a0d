"""Figures of plotly: they have the bars, the labels, the legend and the units of the charts that they
draw, and of the scene that the still shows."""

import re
import sys
from dataclasses import replace

import pytest
from timelines import expected_boxes, split_trace, two_traces

import simlab as sl
from simlab.apps import CausalMask
from simlab.explorers import NAMES, explorer
from simlab.units import MS
from simlab.views.chart import Area, Axis, Boxes, Chart, Dots, Line, Rule, Words, plotly_figure
from simlab.views.charts.timelines import timeline_charts
from simlab.views.interactive.figure import MOST_MARKS
from simlab.views.language import LANGUAGE, said

TIMES = sl.OpTimes(forward_s=0.01, input_grad_s=0.01, weight_grad_s=0.01)
TWO_CHUNKS = sl.simulate(sl.generate("zb-v", 4, 8), TIMES)


def of_axis(figure, number):
    """The traces that are drawn on the axes of chart number `number`, and its legend in order."""
    suffix = "" if number == 1 else str(number)
    mine = [trace for trace in figure.data if (trace.xaxis or "x") == f"x{suffix}"]
    legend = f"legend{suffix}"
    shapes = [its for its in figure.layout.shapes if (its.legend or "legend") == legend]
    return mine, [one.name for one in (*mine, *shapes) if one.showlegend]


def text(words, tongue):
    return said(getattr(words, tongue), tongue).replace("\n", "<br>")


def check(charts, figure, tongue="en", theme="light"):
    """`figure` shows the marks, names, tips and units of `charts` in a language and a theme."""
    colours = LANGUAGE["themes"][theme]
    for number, chart in enumerate(charts, 1):
        suffix = "" if number == 1 else str(number)
        mine, legend = of_axis(figure, number)
        names = [text(name, tongue) for name, _ in chart.legend()]
        assert sorted(legend) == sorted(names)
        bars = [trace for trace in mine if trace.type == "bar"]
        boxes = [mark for mark in chart.marks if isinstance(mark, Boxes)]
        for bar, mark in zip(bars, boxes, strict=True):
            if len(mark.x0) == 0:
                continue
            assert list(bar.base) == list(mark.x0)
            assert [a + b for a, b in zip(bar.base, bar.x)] == pytest.approx(list(mark.x1))
            edges = [(y - w / 2, y + w / 2) for y, w in zip(bar.y, bar.width)]
            assert edges == [pytest.approx(sorted(its)) for its in zip(mark.y0, mark.y1)]
            if len(mark.colour) < len("#RRGGBBAA") and mark.colour != "#000000":
                assert bar.marker.color == colours.get(mark.colour, mark.colour)
            assert list(bar.text or ()) == [said(label, tongue) for label in mark.labels or ()]
            assert list(bar.hovertext or ()) == [text(tip, tongue) for tip in mark.tips or ()]
        drawn = [trace for trace in mine if trace.type == "scatter"]
        for mark in chart.marks:
            if isinstance(mark, Line | Dots) and mark.name:
                assert any(
                    trace.name == text(mark.name, tongue) and len(trace.x) == len(mark.x)
                    for trace in drawn
                )
        filled = [trace for trace in drawn if trace.fill == "tonexty"]
        assert len(filled) == sum(isinstance(mark, Area) for mark in chart.marks)
        x, y = figure.layout[f"xaxis{suffix}"], figure.layout[f"yaxis{suffix}"]
        assert x.title.text == text(chart.x.label, tongue)
        assert re.sub("<br>", " ", y.title.text or "") == text(chart.y.label, tongue)
        assert (y.range[0] > y.range[1]) == chart.y.down
        if chart.y.names is not None:
            assert list(y.ticktext) == [said(name, tongue) for name in chart.y.names]
    titles = [note.text.replace("<br>", " ") for note in figure.layout.annotations]
    expected = [text(chart.title, tongue).replace("<br>", " ") for chart in charts]
    if tongue == "en":
        assert titles == [title for title in expected if title]
    assert len([*figure.layout.shapes]) == sum(
        isinstance(mark, Rule) for chart in charts for mark in chart.marks
    )
    assert figure.layout.paper_bgcolor == colours["background"]


@pytest.mark.parametrize("theme", LANGUAGE["themes"])
@pytest.mark.parametrize("tongue", Words._fields)
def test_timelines_are_drawn_as_their_charts_say(tongue, theme):
    traces = [*two_traces(), split_trace(), TWO_CHUNKS]
    figure = sl.timeline(traces, critical_path=True).plotly(tongue=tongue, theme=theme)
    check(timeline_charts(traces, critical_path=True), figure, tongue, theme)


@pytest.mark.parametrize("trace", [*two_traces(), split_trace(), TWO_CHUNKS])
def test_a_timeline_has_the_bars_and_the_legend_of_the_still(trace):
    still = sl.timeline(trace)
    mine, legend = of_axis(still.plotly(), 1)
    bars = [
        (round(y), round(start, 6), round(start + long, 6))
        for bar in mine
        if bar.hovertext is not None
        for y, start, long in zip(bar.y, bar.base, bar.x)
    ]
    assert sorted(bars) == sorted(expected_boxes(trace).elements())
    (there,) = still.legends
    assert legend == [entry.get_text() for entry in there.get_texts()]
    strip, ranks = of_axis(still.plotly(), 2)
    for rank, line in enumerate(strip):
        times_s, amounts = sl.memory_curve(trace, rank, sl.views.scene.strip_category([trace]))
        assert list(line.x)[:-1] == [pytest.approx((s - trace.start_s) / MS) for s in times_s]
        assert list(line.y) == [*amounts, amounts[-1]] and line.line.shape == "hv"
    assert ranks == [f"rank {rank}" for rank in range(trace.ranks)]


def test_a_timeline_without_memory_says_so():
    bare = sl.Trace(TWO_CHUNKS.spans, [], TWO_CHUNKS.metadata)
    (title,) = sl.timeline(bare).plotly().layout.annotations
    assert title.text.endswith("memory was not recorded")
    (title,) = sl.timeline(bare).plotly(tongue="zh").layout.annotations
    assert title.text.endswith("没有记录显存")


@pytest.mark.parametrize("name", sorted({*NAMES} - {"pipeline", "puzzle"}))  # timelines only
def test_the_charts_of_every_explorer_are_drawn_as_they_say(name):
    found = explorer(name)
    pictures = found.answer(found.start()).pictures
    shown = [replace(each) for each in pictures if isinstance(each, Chart)]
    for tongue in Words._fields:
        check(shown, plotly_figure(shown, tongue=tongue), tongue)
        check(shown, plotly_figure(shown, tongue=tongue, theme="dark"), tongue, "dark")


def test_an_explorer_gives_what_it_shows_in_its_own_language():
    shown = CausalMask(tongue="zh")
    check(shown.charts(), shown.plotly(), "zh")


def test_markup_in_a_name_is_text():
    mark = Boxes.at([(0, 1, 0, 1)], "ink", Words("<b>a & b", "甲"), labels=["<i>"])
    axis = Axis(Words("GiB < 1", "GiB"))
    figure = Chart("x", Words("<script>", "标题"), axis, axis, [mark]).plotly()
    assert figure.data[0].name == "&lt;b&gt;a &amp; b" and figure.data[0].text[0] == "&lt;i&gt;"
    assert figure.layout.annotations[0].text == "&lt;script&gt;"


def test_too_many_boxes_nothing_and_unknown_languages_are_refused():
    axis = Axis(Words("", ""))
    many = Boxes.at([(0, 1, 0, 1)] * (MOST_MARKS + 1), "ink")
    chart = Chart("x", Words("", ""), axis, axis, [many])
    with pytest.raises(sl.InputError, match=r"^20,001 boxes and points: .* at most 20,000"):
        chart.plotly()
    with pytest.raises(sl.InputError, match=r"^tongue = 'fr': give one of en, zh$"):
        chart.plotly(tongue="fr")
    with pytest.raises(sl.InputError, match=r"^theme = 'grey': give one of light, dark$"):
        chart.plotly(theme="grey")
    with pytest.raises(sl.InputError, match=r"^no chart to draw"):
        plotly_figure([])


def test_without_plotly_one_line_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "simlab.views.interactive.figure", raising=False)
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(sl.views.MissingLibrary, match=r"needs plotly: pip install plotly$"):
        sl.timeline(TWO_CHUNKS).plotly()


def test_a_page_is_written_with_all_that_it_needs(tmp_path):
    sl.timeline(TWO_CHUNKS).savefig(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text("utf-8")
    assert "plotly.js v" in page and not re.search(r"<(script|link)[^>]+(src|href)=", page)
