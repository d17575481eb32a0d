"""The picture of a layer: boxes as large as what a rank holds, marks where it communicates."""

from dataclasses import replace

import pytest
from matplotlib import pyplot as plt
from matplotlib.text import Text

import simlab as sl
from simlab.views.language import LANGUAGE, said
from simlab.views.layer import layer_chart
from simlab.views.still.wording import say_in_chinese
from tests.support.chinese import english_words, needs_chinese_font

PLANS = [
    sl.Plan(),
    sl.Plan(tp=4),
    sl.Plan(tp=4, sequence_parallel=True),
    sl.Plan(tp=2, cp=2, cp_kind="all-to-all"),
    sl.Plan(dp=4, tp=2, ep=8, etp=1, sequence_parallel=True),
]


def drawn(name, plan):
    """(the table, its chart, {name in English: marks})"""
    table = sl.layer_table(sl.load_model(name), plan)
    chart = layer_chart(table)
    return table, chart, {name.en: marks for name, marks in chart.legend()}


def boxes(marks):
    return [
        (x1 - x0, y1 - y0)
        for mark in marks
        for x0, x1, y0, y1 in zip(mark.x0, mark.x1, mark.y0, mark.y1)
    ]


@pytest.mark.parametrize(
    ("name", "plan"),
    [*(("llama-3-8b", plan) for plan in PLANS[:4]), *(("deepseek-v3", plan) for plan in PLANS[:3]),
     ("deepseek-v3", PLANS[4])],
    ids=str,
)  # fmt: skip
def test_a_box_is_as_wide_as_what_a_rank_has_and_as_high_as_its_part_of_the_tokens(name, plan):
    table, chart, found = drawn(name, plan)
    own = [its for name, marks in found.items() for its in boxes(marks) if name in CUTS]
    highest = max(high for _, high in own + boxes(found.get("on other ranks", [])))
    expected = [(its.held.width, its.held.tokens) for its in table.rows]
    shown = sorted((wide, round(high / highest, 9)) for wide, high in own)
    assert shown == sorted((wide, round(part, 9)) for wide, part in expected)
    sent = sum(len(its.sent) + len(its.sent_back) for its in table.rows)
    collectives = {LANGUAGE["work"][name]["en"] for name in KINDS}
    assert sent == sum(len(boxes(marks)) for name, marks in found.items() if name in collectives)
    # a row for each operation, and one for each place where something is sent
    places = sum(bool(its.sent or its.sent_back) for its in table.rows)
    assert len(chart.y.names) == len(table.rows) + places


CUTS = (
    "whole on every rank",
    "cut along the sequence",
    "cut by heads or columns",
    "copies of tokens for the rank's experts",
)
KINDS = ("all-reduce", "gather", "reduce-scatter", "all-to-all", "ring")


def test_bars_are_as_long_as_what_is_kept_and_say_it():
    table, chart, found = drawn("llama-3-8b", sl.Plan(tp=8, sequence_parallel=True))
    kept = [its.kept_bytes for its in table.rows if its.kept_bytes]
    bars = [wide for wide, _ in boxes(found["kept for the backward"])]
    assert [wide / bars[0] for wide in bars] == pytest.approx([size / kept[0] for size in kept])
    (texts,) = (mark.labels for mark in chart.marks if mark.name is None)
    assert texts == ["8.0 MiB", "8.0 MiB", "20.1 MiB", "8.0 MiB", "8.0 MiB", "56.0 MiB", "28.0 MiB"]


def test_the_places_have_the_names_that_megatron_lm_gave_them():
    names = [drawn("llama-3-8b", plan)[1].y.names for plan in PLANS[1:3]]
    assert [[name for name in its if len(name) == 1] for its in names] == [[*"fgfg"], [*"gḡgḡ"]]


@pytest.mark.parametrize("name", [*sorted(sl.catalogue()), "module"])
def test_every_operation_has_a_chinese_name(name):
    module = replace(sl.load_model("llama-3-8b"), mtp_layers=1).of_kind("module")
    for attention in ("flash", "unfused"):
        model = module if name == "module" else sl.load_model(name)
        try:
            plan = sl.Plan(attention=attention).check(model)
        except sl.InputError:
            continue
        for kind in ["layer"] if name == "module" else model.counts:
            for its in sl.layer_table(model, plan, kind).rows:
                assert not english_words(said(its.operation, "zh"), ["softmax", "dropout"]), (
                    its.operation
                )


@pytest.mark.parametrize("tongue", ["en", pytest.param("zh", marks=needs_chinese_font)])
def test_the_still_shows_every_name_and_no_two_texts_overlap(tongue):
    picture = sl.layer_picture(
        sl.layer_table(sl.load_model("deepseek-v3"), PLANS[4]), tongue=tongue
    )
    picture.draw_without_rendering()
    (axes,) = picture.axes
    texts = [*axes.get_yticklabels(), *axes.get_xticklabels(), *axes.texts]
    extents = [its.get_window_extent() for its in texts if its.get_text() and its.get_visible()]
    assert len(extents) > 50
    for at, one in enumerate(extents):
        assert not any(one.overlaps(other) for other in extents[at + 1 :])
    plt.close(picture)


@needs_chinese_font
def test_the_words_of_a_still_of_its_own_are_said_in_chinese():
    picture = sl.layer_picture(sl.layer_table(sl.load_model("llama-3-8b"), PLANS[1]), width_in=5)
    say_in_chinese(picture, lambda text: text)
    texts = [text.get_text() for text in picture.findobj(Text)]
    assert "每个 rank 都有完整一份" in texts and "whole on every rank" not in texts
    assert "llama-3-8b 的一层，一个 rank 上的部分（tp 4）" in texts
