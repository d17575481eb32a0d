"""Every still picture can be drawn on axes that the caller gives, and shows the same there."""

import pytest
from matplotlib.figure import Figure
from matplotlib.legend import Legend

import simlab as sl
from simlab.views.charts.amounts import runs_chart
from simlab.views.language import said
from simlab.views.still.chart import charts
from simlab.views.still.curves import Curves, curves
from simlab.views.still.wording import say_in_chinese
from tests.support.chinese import needs_chinese_font
from tests.support.still_texts import lie_apart

TIMES = sl.OpTimes(forward_s=0.02, backward_s=0.04)
CLUSTER = sl.load_cluster("dgx-a100")


@pytest.fixture(scope="module")
def drawers():
    """{name: (how many panels it has, the function that draws it)}."""
    traces = [sl.simulate(sl.generate(name, 2, 4), TIMES) for name in ("gpipe", "1f1b")]
    model = sl.load_model("llama-2-13b")
    predictions = [
        sl.predict(model, sl.Plan(dp=2, tp=2, pp=2, microbatches=count), CLUSTER)
        for count in (2, 4)
    ]
    plans = [prediction.plan for prediction in predictions]
    layers = sl.layer_trace(model, plans[0], CLUSTER)
    stacks = [prediction.memory_stack() for prediction in predictions]
    steps = sl.replay(sl.all_reduce_rounds("ring", range(3), 3 << 20), range(3))
    sizes = sl.zero_curves(7.5e9, [1, 2, 4])
    return {
        "timelines": (4, lambda **on: sl.timeline(traces, critical_path=True, **on)),
        "timelines without memory": (2, lambda **on: sl.timeline(traces, memory=False, **on)),
        "overlay": (2, lambda **on: sl.overlay([(one, one) for one in traces], **on)),
        "streams": (1, lambda **on: sl.layer_timeline(layers, **on)),
        "streams of two": (2, lambda **on: sl.layer_timeline([layers, layers], **on)),
        "cube": (1, lambda **on: sl.rank_cube(plans[0], 8, **on)),
        "cubes": (2, lambda **on: sl.rank_cube(plans, 8, **on)),
        "shares": (2, lambda **on: sl.shares(predictions, ["a", "b"], **on)),
        "shares of time": (1, lambda **on: sl.shares(predictions, "ab", memory=False, **on)),
        "stack": (1, lambda **on: sl.memory_picture(stacks[0], **on)),
        "stacks": (2, lambda **on: sl.memory_picture(stacks, **on)),
        "bars": (1, lambda **on: sl.memory_bars({"a": predictions[0].memory_bytes}, **on)),
        "zero": (1, lambda **on: sl.zero_picture([1, 2, 4], sizes, capacity_bytes=2**36, **on)),
        "rounds": (len(steps), lambda **on: sl.rounds_picture(steps, **on)),
        "curves": (
            2,
            lambda **on: curves(*[Curves("a", "x", [1, 2], "y", {"b": [1, 2]})] * 2, **on),
        ),
        "runs": (1, lambda **on: charts(runs_chart([("a", 1.0, 1.1)], {"a": 10.0}), **on)),
    }


NAMES = (
    "timelines",
    "timelines without memory",
    "overlay",
    "streams",
    "streams of two",
    "cube",
    "cubes",
    "shares",
    "shares of time",
    "stack",
    "stacks",
    "bars",
    "zero",
    "rounds",
    "curves",
    "runs",
)


UNCOUNTED = ("Legend", "Text", "Annotation")


def drawn(axes):
    """What is drawn in one axes: its limits, and the number of its artists of each kind; labels are
    only where they have room."""
    artists = [type(artist).__name__ for artist in axes.get_children()]
    counts = {name: artists.count(name) for name in artists if name not in UNCOUNTED}
    limits = [round(limit, 9) for limit in (*axes.get_xlim(), *axes.get_ylim())]
    return limits, axes.get_ylabel(), counts


def test_every_picture_is_tried(drawers):
    assert set(NAMES) == set(drawers)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_on_given_axes_is_what_a_new_figure_shows(drawers, name):
    count, draw = drawers[name]
    new = [panel for panel in draw().axes if panel.get_visible()]
    mine = Figure()
    left, *given = mine.subplots(1, 1 + count)
    ax = given[0] if count == 1 else given
    assert draw(ax=ax) is ax
    assert [drawn(panel) for panel in given] == [drawn(panel) for panel in new[:count]]
    assert not left.has_data() and mine.axes[: 1 + count] == [left, *given] and not mine.legends
    mine.draw_without_rendering()


@pytest.mark.parametrize("name", NAMES)
def test_one_axes_shows_the_whole_picture(drawers, name):
    count, draw = drawers[name]
    new = [panel for panel in draw().axes if panel.get_visible()]
    mine = Figure()
    left, ax = mine.subplots(1, 2)
    assert draw(ax=ax) is ax
    panels = [ax] if count == 1 else ax.child_axes
    assert [drawn(panel) for panel in panels] == [drawn(panel) for panel in new[:count]]
    assert not left.has_data() and not mine.legends
    mine.draw_without_rendering()


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_is_a_figure_of_plotly_too(drawers, name):
    count, draw = drawers[name]
    picture = draw()
    for tongue in ("en", "zh"):
        figure = picture.plotly(tongue=tongue)
        named = [one for one in (*figure.data, *figure.layout.shapes) if one.showlegend]
        there = [name for chart in picture.charts for name, _ in chart.legend()]
        assert len(picture.charts) == count
        assert {one.name for one in named} == {
            said(getattr(name, tongue), tongue) for name in there
        }


@pytest.mark.parametrize("tongue", ["en", pytest.param("zh", marks=needs_chinese_font)])
@pytest.mark.parametrize("name", NAMES)
def test_no_text_lies_over_another_and_the_legends_are_those_of_the_charts(drawers, name, tongue):
    _, draw = drawers[name]
    picture = draw()
    if tongue == "zh":
        say_in_chinese(picture, lambda text: text)
    picture.draw_without_rendering()
    lie_apart(picture)
    shown = [text.get_text() for each in picture.findobj(Legend) for text in each.get_texts()]
    there = [words for chart in picture.charts for words, _ in chart.legend()]
    assert {*shown} == {said(getattr(words, tongue), tongue) for words in there}


@pytest.mark.parametrize("name", NAMES)
def test_another_number_of_axes_is_refused(drawers, name):
    count, draw = drawers[name]
    axes = Figure().subplots(1, 1 + count)
    with pytest.raises(sl.InputError, match=rf"^ax has {1 + count} axes: this .* needs {count}$"):
        draw(ax=axes)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "curves"])
def test_given_axes_have_a_width_already(drawers, name):
    count, draw = drawers[name]
    axes = Figure().subplots(1, count, squeeze=False)
    with pytest.raises(sl.InputError, match=r"^width_in = 7: axes .* have a width already$"):
        draw(ax=axes, width_in=7)


def test_axes_in_a_square_array_are_taken_row_by_row(drawers):
    count, draw = drawers["timelines"]
    axes = Figure().subplots(2, 2)
    assert draw(ax=axes) is axes and axes.size == count
    assert [panel.get_title(loc="left")[:9] for panel in axes[:, 0]] == ["Simulated"] * 2


def test_a_caption_stands_on_top_of_the_first_of_given_axes(drawers):
    _, draw = drawers["timelines without memory"]
    first, second = draw(ax=Figure().subplots(2, 1), caption="Before and after")
    assert first.get_title(loc="left").startswith("Before and after\nSimulated: gpipe")
    assert second.get_title(loc="left").startswith("Simulated: 1f1b")


def test_axes_that_share_their_rows_are_turned_over_once(drawers):
    _, draw = drawers["shares"]
    for panel in draw(ax=Figure().subplots(1, 2, sharey=True)):
        assert panel.yaxis_inverted()


def test_nothing_to_draw_is_refused(drawers):
    with pytest.raises(sl.InputError, match="no step to draw"):
        sl.rounds_picture([])
    with pytest.raises(sl.InputError, match="columns = 0"):
        drawers["rounds"][1](columns=0)
