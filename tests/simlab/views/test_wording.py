"""A finished picture in Chinese: what its texts say, also where a lesson knows only a part of them."""

import pytest
from matplotlib.figure import Figure

import simlab as sl
from simlab.views.still.wording import say_in_chinese
from tests.support.chinese import needs_chinese_font


@needs_chinese_font
def test_the_name_in_a_title_without_an_origin_is_said_in_the_lessons_words():
    trace = sl.simulate(sl.generate("1f1b", 2, 2), sl.OpTimes(forward_s=1, backward_s=2))
    trace.metadata = {"name": "as it is drawn", "ranks": 2}
    figure = sl.timeline(trace)
    say_in_chinese(figure, lambda text: {"as it is drawn": "画成这样"}.get(text, text))
    title = figure.axes[0].get_title(loc="left")
    assert title == "画成这样，总时长 9.000 s，空闲 / 总时长 33.3%，峰值 2 个 micro-batch"


@needs_chinese_font
def test_a_caption_is_said_whole_and_the_figure_after_it_stays():
    figure = Figure()
    axes = figure.subplots()
    axes.set_title("Measured, at the end: 3.074 s")
    words = {
        "Measured, at the end": "实测，最后",
        "Measured, at the end: 3.074 s": "实测，at the end: 3.074 s",  # of a template
    }
    say_in_chinese(figure, lambda text: words.get(text, text))
    assert axes.get_title() == "实测，最后：3.074 s"


@needs_chinese_font
def test_a_term_of_the_visual_language_is_not_taken_for_a_template_of_the_words():
    figure = Figure()
    axes = figure.subplots()
    axes.set_title("message to another stage")
    say_in_chinese(figure, lambda text: text.replace(" to ", " 到 "))
    assert axes.get_title() == "跨 stage 消息"


@needs_chinese_font
@pytest.mark.parametrize(
    "english, chinese",
    [
        ("one of 4,096 microbatches: 15.6% vanish", "4,096 个里有一个：15.6% 消失"),
        ("PP", "PP"),
    ],
)
def test_a_label_that_the_words_know_whole_is_theirs_and_names_keep_their_capitals(
    english, chinese
):
    figure = Figure()
    axes = figure.subplots()
    axes.set_title(english)
    known = {"one of 4,096 microbatches": "4,096 个里有一个"}  # of a template
    known["one of 4,096 microbatches: 15.6% vanish"] = "4,096 个里有一个：15.6% 消失"
    say_in_chinese(figure, lambda text: known.get(text, text))
    assert axes.get_title() == chinese
