"""What layer timelines write into boxes and beside rows, and as which kind of work a span is drawn."""

import json
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex

import simlab as sl
from simlab.trace import Span
from simlab.views.chart import Words
from simlab.views.charts.streams import streams_chart
from simlab.views.language import LANGUAGE
from simlab.views.plan_scene import stream_scene
from simlab.views.stream_rows import work_of

MODEL = replace(sl.load_model("llama-2-13b"), layers=4)
CLUSTER = sl.load_cluster("dgx-a100", nodes=2)


def layers(**plan):
    return sl.layer_trace(MODEL, sl.Plan(microbatches=2, **plan), CLUSTER)


@pytest.fixture(scope="module")
def sharded():
    return layers(dp=2, tp=4, pp=2, zero=3)


def test_a_box_names_the_operations_that_it_computes_and_no_layer(sharded):
    view = stream_scene(sharded, only="0F0")
    labels = {box.label for box in view.boxes if box.kind == "F"}
    assert {"MLP", "QKV, attention, output", "embedding"} <= labels
    assert not any("layer" in label for label in labels)


def test_a_step_of_a_ring_names_whose_queries_meet_whose_keys():
    view = stream_scene(layers(tp=2, cp=4, pp=2), only="0F0 layer 0")
    scores = [box.label for box in view.boxes if "scores" in box.label]
    # the last rank of the ring has its own keys first, then those of the ranks before it
    found = [label.removesuffix(", output") for label in scores]
    assert found == ["scores 3←3", "scores 3←2", "scores 3←1", "scores 3←0"]


def test_the_ring_of_a_layer_names_whose_queries_meet_whose_keys_too():
    plan = sl.Plan(cp=4, cp_layout="contiguous")
    ring = sl.ring_trace(MODEL, plan, sl.load_cluster("dgx-h100"))
    # with contiguous parts, the causal mask leaves a rank the keys of itself and those before it
    labels = {box.label for box in stream_scene(ring, streams=("compute",)).boxes}
    assert labels == {f"scores {r}←{s}" for r in range(4) for s in range(r + 1)}


def test_a_row_is_a_stage_where_it_stands_for_one_and_a_rank_where_it_is_one(sharded):
    chart = streams_chart(sharded, key="t", title=Words("t", "t"))
    assert {name.split()[0] for name in chart.y.names} == {"stage"}
    chunks = layers(dp=2, tp=4, pp=2, schedule="interleaved-1f1b")
    assert stream_scene(chunks).row_word == "pp"
    plan = sl.Plan(dp=2, tp=4, pp=2, microbatches=2)
    every = sl.layer_trace(MODEL, plan, CLUSTER, collapsed=False)
    assert (
        stream_scene(every).row_word == "rank"
        and len({r for r, _ in stream_scene(every).rows}) == 16
    )


@pytest.mark.parametrize(
    ("stream", "kind", "work"),
    [
        ("dp", "all_gather", "gather"),
        ("dp", "reduce_scatter", "reduce-scatter"),
        ("tp", "all_reduce", "all-reduce"),
        ("cp", "all_to_all", "all-to-all"),
        ("cp", "ring", "ring"),
        ("send", "message", "send"),
        ("offload out", "copy", "offload"),
        ("optimizer", "optimizer", "optimizer"),
        ("dp", "", "communication"),
    ],
)
def test_each_kind_of_communication_is_drawn_as_itself_in_any_stream(stream, kind, work):
    assert work_of(Span(0, stream, "x", 0.0, 1.0, kind=kind)) == work


def test_chart_and_still_show_the_same_kinds_and_their_legends_list_exactly_these(sharded):
    whole = 0.0, max(span.end_s for span in sharded.spans)
    chart = streams_chart(sharded, key="t", title=Words("t", "t"), window=whole)
    in_chart = {name.en for name, _ in chart.legend()}
    picture = sl.layer_timeline(sharded)
    in_still = {text.get_text() for text in picture.legends[0].get_texts()}
    view = stream_scene(sharded)
    looks = LANGUAGE["work"]
    drawn = {box.kind for box in (*view.boxes, *view.waiting)}
    assert in_chart == in_still and len(in_still) == len(drawn)
    faces = [c for c in picture.axes[0].collections if len(c.get_facecolor())]
    assert {to_hex(c.get_facecolor()[0]).upper() for c in faces} == {
        looks[kind]["colour"] for kind in drawn
    }
    hatched = [c for c in faces if c.get_hatch()]
    assert len(hatched) == sum(looks[kind]["pattern"] != "plain" for kind in drawn)


def test_a_rank_waits_in_a_still_exactly_where_no_op_at_all_computes(sharded):
    start_s, end_s = sharded.window("0F1")
    view = stream_scene(sharded, only="0F1", streams=("compute",))
    waits = [box for box in view.waiting if view.rows[box.row][0] == 0]
    for box in waits:
        assert not any(
            min(span.end_s, box.end_s) - max(span.start_s, box.start_s) > 1e-9
            for span in sharded.compute(0)
        )
    assert waits and view.start_s >= start_s and view.end_s <= end_s


def test_a_trace_keeps_what_is_computed_in_a_unit_and_older_files_without_it_are_read(sharded):
    again = sl.Trace.from_json(sharded.to_json())
    assert again.spans == sharded.spans and any(span.part == "MLP" for span in again.spans)
    data = json.loads(sharded.to_json())
    data["spans"] = [row[:-1] for row in data["spans"]]
    older = sl.Trace.from_json(json.dumps(data))
    assert {span.part for span in older.spans} == {""}
    assert any(box.label == "layer 0" for box in stream_scene(older).boxes)
