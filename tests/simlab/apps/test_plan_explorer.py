"""The plan's explorer and pictures without a browser: a menu's new value changes the figure that is
there, to what a prediction says."""

import html
from dataclasses import replace

import pytest

import simlab as sl
from simlab.apps import PlanExplorer
from simlab.apps.plan import WHOLE_STEP, WHOLE_STEP_LAYERS
from simlab.units import GIB, seconds_text
from simlab.views.interactive.plan import figure
from simlab.views.plan_scene import (
    MEMORY_COLOURS,
    MOST_BOXES,
    PART_COLOURS,
    cube_scene,
    stream_scene,
)

MODEL, CLUSTER = sl.load_model("llama-2-13b"), sl.load_cluster("dgx-a100", nodes=4)
PLAN = sl.Plan(dp=2, tp=4, pp=4, zero=1, microbatches=8)


def drawn(picture):
    """What `picture` shows, as plain values."""
    return [
        (
            item.meta,
            list(item.x or ()),
            list(item.y or ()),
            list(item.base or ()) if item.type == "bar" else 0,
        )
        for item in picture.data
    ]


@pytest.fixture(scope="module")
def explorer():
    return PlanExplorer(microbatches=8)


@pytest.fixture(autouse=True)
def start(explorer):
    """Each test starts from the first plan."""
    for name, value in (
        ("dp", 2),
        ("tp", 4),
        ("pp", 4),
        ("cp", 1),
        ("zero", 1),
        ("schedule", "1f1b"),
        ("zoom", WHOLE_STEP),
    ):
        getattr(explorer, name).value = value
    explorer.recompute.value, explorer.microbatches.value, explorer.nodes.value = "none", 8, 4
    assert drawn(explorer.picture) == drawn(
        figure(sl.predict(MODEL, PLAN, CLUSTER), sl.predict(MODEL, PLAN, CLUSTER).trace)
    )


@pytest.mark.parametrize(
    ("name", "value", "change"),
    [
        ("zero", 0, {"zero": 0}), ("recompute", "full", {"recompute": "full"}), ("schedule", "gpipe", {"schedule": "gpipe"}),
        ("schedule", "zb-h1", {"schedule": "zb-h1"}), ("microbatches", 20, {"microbatches": 20}),
    ],
)  # fmt: skip
def test_a_menu_changes_the_picture_and_the_figures_in_place(explorer, name, value, change):
    picture, items = explorer.picture, list(explorer.picture.data)
    getattr(explorer, name).value = value
    expected = sl.predict(MODEL, replace(PLAN, **change), CLUSTER)
    assert explorer.picture is picture and all(
        new is old for new, old in zip(picture.data, items, strict=True)
    )
    assert drawn(picture) == drawn(figure(expected, expected.trace))
    for text in (
        seconds_text(expected.step_s),
        f"{expected.mfu:.1%}",
        f"{expected.hfu:.1%}",
        f"{expected.tokens_per_s:,.0f}",
    ):
        assert f"<b>{text}</b>" in explorer.table.value


def test_a_plan_that_cannot_be_shows_the_sentence_and_keeps_the_picture(explorer):
    before = drawn(explorer.picture)
    explorer.tp.value = 8
    with pytest.raises(sl.InputError) as error:
        sl.predict(MODEL, replace(PLAN, tp=8), CLUSTER)
    assert html.unescape(explorer.table.value) == f"<b>{error.value}</b>"
    assert drawn(explorer.picture) == before
    explorer.dp.value = 1  # 1 x 8 x 4 = 32 again
    assert drawn(explorer.picture) != before and "step:" in explorer.table.value


def test_zoom_goes_from_the_step_to_an_ops_layers(explorer):
    explorer.zoom.value = "0F3"
    layers = sl.layer_trace(MODEL, PLAN, CLUSTER)
    assert drawn(explorer.picture) == drawn(
        figure(explorer.prediction, layers, window=layers.window("0F3"))
    )
    shown = {item.meta[1]: item for item in explorer.picture.data if item.meta[0] == "timeline"}
    assert "0F3 layer 0" in shown["F"].text and len(shown["tp"].x) > 10
    explorer.zoom.value = WHOLE_STEP_LAYERS
    assert drawn(explorer.picture) == drawn(figure(explorer.prediction, layers))


def test_a_zoom_that_another_plan_has_no_op_for_goes_back_to_the_whole_step(explorer):
    explorer.zoom.value = "0F7"
    explorer.microbatches.value = 4
    assert explorer.zoom.value == WHOLE_STEP
    explorer.zoom.value = "0F1"
    explorer.zero.value = 0
    assert explorer.zoom.value == "0F1"


def test_bars_are_the_waterfall_and_the_memory(explorer):
    bars = {tuple(item.meta): item for item in explorer.picture.data if item.type == "bar"}
    assert [bars["step", name].x[0] / 1e3 for name in PART_COLOURS] == pytest.approx(
        list(explorer.prediction.waterfall_s)
    )
    assert sum(bars["memory", name].x[0] for name in MEMORY_COLOURS) * GIB == pytest.approx(
        sum(explorer.prediction.memory_bytes.values())
    )


def test_what_does_not_fit_is_said(explorer):
    explorer.dp.value, explorer.tp.value, explorer.pp.value, explorer.zero.value = 32, 1, 1, 0
    assert "does not fit" in explorer.table.value


def test_output_has_a_still_picture_beside_the_widget(explorer):
    bundle = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle and bundle["image/png"].startswith(
        "iVBORw0KGgo"
    )


# the scenes
# -----------------------------------------------------------------------------------------------------


def test_streams_have_rows_per_rank_and_every_span_its_box():
    trace = sl.layer_trace(MODEL, sl.Plan(dp=4, tp=4, pp=2, microbatches=2), CLUSTER)
    window = trace.window("0F0")
    view = stream_scene(trace, window=window)
    inside = [
        s
        for s in trace.spans
        if s.end_s > window[0] and s.start_s < window[1] and s.end_s > s.start_s
    ]
    assert len(view.boxes) == len(inside) and not view.merged
    assert view.rows == [(0, "compute"), (0, "tp"), (1, "compute"), (1, "tp")]
    assert sum(b.end_s - b.start_s for b in view.boxes) == pytest.approx(
        sum(s.end_s - s.start_s for s in inside)
    )


def test_too_many_boxes_are_merged_without_moving_where_work_begins_and_ends():
    trace = sl.layer_trace(MODEL, sl.Plan(dp=1, tp=8, pp=4, microbatches=32), CLUSTER)
    view = stream_scene(trace)
    assert view.merged and 100 < len(view.boxes) <= MOST_BOXES < len(trace.spans)
    for row, (rank, stream) in enumerate(view.rows):
        shown = (stream, "optimizer") if stream == "compute" else (stream,)  # which also computes
        spans = [
            s for s in trace.spans if s.rank == rank and s.stream in shown and s.end_s > s.start_s
        ]
        boxes = [b for b in view.boxes if b.row == row]
        assert min(b.start_s for b in boxes) == min(s.start_s for s in spans) and max(
            b.end_s for b in boxes
        ) == max(s.end_s for s in spans)


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "pp-dp-cp-tp"])
def test_the_cube_has_every_rank_once_and_borders_where_nodes_meet(order):
    plan = sl.Plan(dp=4, tp=2, pp=2, cp=2, order=order)
    view = cube_scene(plan, 8)
    assert sorted(cell.rank for cell in view.cells) == [*range(32)]
    assert all(
        cell.node == cell.rank // 8 and cell.stage == plan.layout.coordinates(cell.rank).pp
        for cell in view.cells
    )
    round_plates = 2 * 2 * (8 + 2)
    assert len(view.borders) > round_plates  # nodes within a plate have borders, too
    assert len(cube_scene(plan, 32).borders) == round_plates


def test_a_cube_of_very_many_replicas_shows_the_first():
    view = cube_scene(sl.Plan(dp=1024, tp=8), 8)
    assert len(view.cells) <= 512 and "the first 64 of 1024 replicas" in view.title


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
