"""Pictures of replayed collectives and of streams: what is drawn is what was replayed and
simulated."""

from dataclasses import replace

import pytest
from matplotlib.patches import FancyArrowPatch

import simlab as sl
from simlab.views.rounds import cell_words, curves, grid, listed, sends

STEPS = sl.replay(sl.all_reduce_rounds("ring", range(4), 4.0), range(4))


def test_a_grid_says_what_each_rank_holds_and_what_just_arrived():
    view = grid(STEPS[1])
    assert view.texts == [
        ["0", "0", "0", "0+3"],
        ["0+1", "1", "1", "1"],
        ["2", "1+2", "2", "2"],
        ["3", "3", "2+3", "3"],
    ]
    assert view.added == [(0, 3), (1, 0), (2, 1), (3, 2)] and view.replaced == []
    assert view.arrows == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert grid(STEPS[-1]).texts == [["Σ"] * 4] * 4 and len(grid(STEPS[-1]).replaced) == 4
    assert grid(STEPS[0]).title == "at the start"


def test_of_many_ranks_it_counts_contributions_and_parts_of_parts_have_dots():
    step = sl.replay(sl.all_reduce_rounds("hierarchical", range(8), 8.0), range(8))[1]
    view = grid(step)
    assert view.columns[:3] == ["0.0", "0.1", "1.0"] and {
        text for texts in view.texts for text in texts
    } == {"1 of 8", "2 of 8"}


def test_a_legend_says_what_stands_in_the_cells_of_many_ranks():
    """Up to four ranks a "1" is rank 1's contribution; of more it would be one contribution."""
    assert cell_words(4)[0].en == "its own only"
    assert [words.en for words in cell_words(8)] == [
        "1 of 8: its own only",
        "k of 8: sum of k of the 8 ranks",
    ]
    assert cell_words(16)[1] == ("sum of k of 16 ranks", "16 个 rank 中 k 个之和")
    steps = sl.replay(sl.all_reduce_rounds("ring", range(8), 8.0), range(8))
    picture = sl.rounds_picture(steps[:2], width_in=5)  # with no room for more than the number
    (legend,) = picture.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named[0] == "1 of 8: its own only" and "k of 8: sum of k of the 8 ranks" in named
    assert {text.get_text() for text in picture.axes[1].texts} == {"1", "2"}


def test_sends_are_told_in_words():
    assert sends(STEPS[1])[0] == "0 → 1: part 0 (1 B), added"
    assert [listed(list(names), ", ") for names in ("012", "01", "024")] == [
        "0–2",
        "0, 1",
        "0, 2, 4",
    ]
    assert sends(sl.replay(sl.all_reduce_rounds("tree", range(2), 4.0), range(2))[2]) == [
        "0 → 1: everything (4 B), put in place"
    ]


def test_curves_mark_each_size_once():
    points = sl.all_reduce_curve(sl.GroupShape(16, 8), sl.load_cluster("dgx-a100", nodes=2))
    assert sorted(at for line in curves(points) for at in line.chosen) == list(range(len(points)))


def test_a_picture_has_a_panel_for_each_step_and_an_outline_for_each_arrival():
    picture = sl.rounds_picture(STEPS, columns=4)
    panels = [axes for axes in picture.axes if axes.get_visible()]
    titles = ["at the start", *(f"round {k}" for k in range(1, 7))]
    assert [axes.get_title(loc="left") for axes in panels] == titles
    frames = [
        sum(len(mark.x0) for mark in chart.marks if mark.name and mark.name.en.startswith("frame"))
        for chart in picture.charts
    ]
    assert frames == [0] + [4] * 6
    arrows = [[*zip(chart.marks[-1].y0, chart.marks[-1].y1)] for chart in picture.charts]
    assert arrows == [[]] + [[(0, 1), (1, 2), (2, 3), (3, 0)]] * 6
    for axes, its in zip(panels, arrows):
        assert len(axes.findobj(FancyArrowPatch)) == len(its)
    assert picture._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("streams", [("compute", "dp"), ("dp",)])
def test_streams_are_drawn_with_a_box_for_each_span_that_lasts(streams):
    model = replace(sl.load_model("llama-2-7b"), layers=3)
    trace = sl.layer_trace(model, sl.Plan(dp=16, zero=3), sl.load_cluster("dgx-a100", nodes=2))
    picture = sl.layer_timeline(trace, streams=streams, captions="three layers")
    (chart,), (axes,) = picture.charts, picture.axes
    shown = {*streams, "optimizer"} if "compute" in streams else set(streams)  # which also computes
    assert sum(len(mark.x0) for mark in chart.marks if mark.labels) == sum(
        span.stream in shown and span.end_s > span.start_s for span in trace.spans
    )
    assert chart.y.names == [f"stage 0 {stream}" for stream in streams]
    assert axes.get_title(loc="left") == "three layers"
