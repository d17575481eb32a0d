"""The plan's explorer and pictures without a browser: what it draws for a state is what a prediction
says."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.apps import PlanExplorer
from simlab.explorers.plan import WHOLE_OP, WHOLE_STEP
from simlab.units import GIB, MS, seconds_text
from simlab.views.charts.ranks import ranks_chart
from simlab.views.language import LANGUAGE
from simlab.views.packing import panels

MODEL, CLUSTER = sl.load_model("llama-2-13b"), sl.load_cluster("dgx-a100", nodes=4)
PLAN = sl.Plan(dp=2, tp=4, pp=4, zero=1, microbatches=8)


@pytest.fixture(scope="module")
def shared():
    return PlanExplorer(microbatches=8)


@pytest.fixture
def explorer(shared):
    """Each test starts from the first plan."""
    start = {control["name"]: control["start"] for control in shared.about["controls"]}
    shared.state = start | {"microbatches": 8}
    return shared


def moved(explorer, **values):
    explorer.state = explorer.state | values


def picture(explorer, key):
    (found,) = [each for each in explorer.shown.pictures if each.key == key]
    return found


def widths(chart):
    """{English name: the width of its one box}"""
    return {mark.name.en: mark.x1[0] - mark.x0[0] for mark in chart.marks if hasattr(mark, "x0")}


def figures(explorer):
    return {figure.label.en: figure.values[0] for figure in explorer.shown.figures}


def check(explorer, expected):
    assert figures(explorer) | {"fullest GPU": ""} == {
        "step": seconds_text(expected.step_s),
        "MFU": f"{expected.mfu:.1%}",
        "error of such steps": f"±{expected.uncertainty.error:.1%}",
        "HFU": f"{expected.hfu:.1%}",
        "tokens/s": f"{expected.tokens_per_s:,.0f}",
        "fullest GPU": "",
    }
    assert list(picture(explorer, "timeline").panels) == panels([expected.trace])
    drawn = widths(picture(explorer, "step"))
    parts = [seconds / MS for seconds in expected.waterfall_s if seconds > 0]
    assert list(drawn.values()) == pytest.approx(parts)
    assert sum(widths(picture(explorer, "memory")).values()) == pytest.approx(
        sum(expected.memory_bytes.values()) / GIB
    )


@pytest.mark.parametrize(
    "change",
    [{}, {"zero": 0}, {"recompute": "full"}, {"schedule": "gpipe"}, {"schedule": "zb-h1"}, {"microbatches": 20}],
    ids=str,
)  # fmt: skip
def test_a_menu_changes_pictures_and_figures_to_what_a_prediction_says(explorer, change):
    moved(explorer, **change)
    check(explorer, sl.predict(MODEL, replace(PLAN, **change), CLUSTER))


def test_a_plan_that_cannot_be_shows_the_sentence_and_keeps_the_pictures(explorer):
    before = explorer.shown
    moved(explorer, tp=8)
    with pytest.raises(sl.InputError) as error:
        sl.predict(MODEL, replace(PLAN, tp=8), CLUSTER)
    assert explorer.refused.en == str(error.value) and explorer.shown is before
    moved(explorer, dp=1)  # 1 x 8 x 4 = 32 again
    assert not explorer.refused
    check(explorer, sl.predict(MODEL, replace(PLAN, tp=8, dp=1), CLUSTER))


def test_zoom_goes_from_the_step_to_an_op_and_to_a_layer_of_it(explorer):
    layers = sl.layer_trace(MODEL, PLAN, CLUSTER)
    moved(explorer, zoom="0F3")
    chart = picture(explorer, "op")
    start_s, end_s = layers.window("0F3")
    assert (chart.x.least, chart.x.most) == (start_s / MS, end_s / MS)
    drawn = {mark.name.en: mark for mark in chart.marks}
    inside = [
        span
        for span in layers.spans
        if span.end_s > start_s and span.start_s < end_s and span.end_s > span.start_s
    ]
    kinds = {"F forward": "F", "B backward": "B"}
    for name, kind in kinds.items():
        computed = [s for s in inside if s.stream == "compute" and s.op_kind == kind]
        assert len(drawn[name].x0) == len(computed) if name in drawn else not computed
    reduced = [span for span in inside if span.kind == "all_reduce"]
    assert len(drawn["all-reduce"].x0) == len(reduced) > 10
    assert "layer 0" in explorer.shown.values["unit"]
    moved(explorer, unit="layer 1")
    chart = picture(explorer, "op")
    spans = [s for s in layers.spans if s.op_text == "0F3" and s.unit == "layer 1"]
    assert chart.x.least == pytest.approx(min(span.start_s for span in spans) / MS)
    assert chart.title.en == "0F3 layer 1 and what runs beside it"


def test_a_zoom_that_another_plan_has_no_op_for_goes_back_to_the_whole_step(explorer):
    moved(explorer, zoom="0F7", microbatches=4)
    assert explorer.shown.values == {"zoom": explorer.shown.values["zoom"], "unit": [WHOLE_OP]}
    assert explorer.shown.values["zoom"][0] == WHOLE_STEP
    assert picture(explorer, "timeline").row == "stage"


def test_every_rank_is_a_cell_in_the_colour_of_its_place_and_the_frame_of_its_node(explorer):
    chart = picture(explorer, "ranks")
    frames = [mark for mark in chart.marks if not mark.labels]
    cells = [mark for mark in chart.marks if mark.labels]
    assert sum(len(mark.x0) for mark in frames) == 32
    assert sorted(int(label) for mark in cells for label in mark.labels) == [*range(32)]
    for pp, mark in enumerate(cells):
        places = [PLAN.layout.coordinates(int(label)).pp for label in mark.labels]
        assert set(places) == {pp} and mark.name.en == f"pp {pp}"
    assert list(chart.x.names) == [f"pp {pp}: node {pp}" for pp in range(4)]
    wide = ranks_chart(replace(PLAN, order="pp-tp-cp-dp"), 8)
    assert list(wide.x.names) == [f"pp {pp}: node 0–3" for pp in range(4)]


def test_a_place_in_the_pipeline_has_the_colour_of_its_row_in_the_timeline(explorer):
    ranks = next(chart for chart in explorer.charts() if chart.key == "ranks")
    cells = {mark.name.en: mark.colour for mark in ranks.marks if mark.labels}
    colours = ["rank_0", *LANGUAGE["ranks"][1:]]
    assert cells == {f"pp {pp}": colours[pp] for pp in range(len(cells))} and len(cells) > 2


def test_of_very_many_replicas_the_first_are_shown(explorer):
    moved(explorer, nodes=128, dp=128, tp=8, pp=1, zero=3, microbatches=1)
    assert "the first 64 of 128 replicas" in picture(explorer, "ranks").title.en


def test_what_does_not_fit_is_said(explorer):
    moved(explorer, dp=32, tp=1, pp=1, zero=0)
    assert "does not fit" in explorer.shown.note.en


# pictures of plans
# -----------------------------------------------------------------------------------------------------


def test_a_trace_has_no_window_of_an_op_that_it_does_not_have():
    with pytest.raises(sl.InputError, match="no 9F9"):
        sl.predict(MODEL, PLAN, CLUSTER).trace.window("9F9")


def test_still_pictures_are_pictures():
    predictions = [sl.predict(MODEL, PLAN, CLUSTER)]
    for picture in (
        sl.layer_timeline(predictions[0].trace),
        sl.rank_cube([PLAN], 8),
        sl.shares(predictions, ["a"]),
    ):
        assert picture._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(sl.InputError, match="no plan"):
        sl.rank_cube([], 8)


def test_the_numbers_of_the_step_and_of_its_timeline_are_named_and_add_up(explorer):
    found = sl.predict(MODEL, PLAN, CLUSTER)
    step, timeline = picture(explorer, "step"), picture(explorer, "timeline")
    ms = {mark.name.en: mark.x1[0] - mark.x0[0] for mark in step.marks}
    whole, makespan = seconds_text(found.step_s), seconds_text(found.trace.step_s)
    share = sl.bubble(found.trace).idle_over_makespan
    assert whole != makespan and whole in step.title.en and whole in step.title.zh
    assert f"makespan {makespan}, idle / makespan {share:.1%}" in timeline.panels[0].title
    waits = ms["bubble without waits for messages"] + ms["waits for messages 0.7%"]
    assert waits == pytest.approx(share * found.trace.step_s / MS)
    after = seconds_text(found.step_s - found.trace.step_s)
    for note in explorer.shown.note:
        assert all(text in note for text in (makespan, after, seconds_text(waits * MS)))
    moved(explorer, zoom="0F0")
    assert makespan not in explorer.shown.note.en
