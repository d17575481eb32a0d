"""What layer timelines write into boxes and beside rows, and as which kind of work a span is drawn."""

import json
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex

import simlab as sl
from simlab.trace import Span
from simlab.units import MS
from simlab.views.chart import Words
from simlab.views.charts.streams import streams_chart
from simlab.views.language import LANGUAGE
from simlab.views.stream_rows import work_of

MODEL = replace(sl.load_model("llama-2-13b"), layers=4)
CLUSTER = sl.load_cluster("dgx-a100", nodes=2)


def layers(**plan):
    return sl.layer_trace(MODEL, sl.Plan(microbatches=2, **plan), CLUSTER)


def shown(trace, **options):
    """The chart of the streams of `trace`."""
    return streams_chart(trace, key="t", title=Words("t", "t"), **options)


def labels(chart, work=""):
    """[what is written into each box], those of one kind of work where it is named."""
    marks = [mark for mark in chart.marks if mark.labels and mark.name.en.startswith(work)]
    return [label for mark in marks for label in mark.labels]


@pytest.fixture(scope="module")
def sharded():
    return layers(dp=2, tp=4, pp=2, zero=3)


def test_a_box_names_the_operations_that_it_computes_and_no_layer(sharded):
    found = {*labels(shown(sharded, only="0F0"), "F forward")}
    assert {"MLP", "QKV, attention, output", "embedding"} <= found
    assert not any("layer" in label for label in found)


def test_a_step_of_a_ring_names_whose_queries_meet_whose_keys():
    found = labels(shown(layers(tp=2, cp=4, pp=2), only="0F0 layer 0"))
    scores = [label for label in found if "scores" in label]
    # the last rank of the ring has its own keys first, then those of the ranks before it
    found = [label.removesuffix(", output") for label in scores]
    assert found == ["scores 3←3", "scores 3←2", "scores 3←1", "scores 3←0"]


def test_the_ring_of_a_layer_names_whose_queries_meet_whose_keys_too():
    plan = sl.Plan(cp=4, cp_layout="contiguous")
    ring = sl.ring_trace(MODEL, plan, sl.load_cluster("dgx-h100"))
    # with contiguous parts, the causal mask leaves a rank the keys of itself and those before it
    assert {*labels(shown(ring, streams=("compute",)))} == {
        f"scores {r}←{s}" for r in range(4) for s in range(r + 1)
    }


def test_a_row_is_a_stage_where_it_stands_for_one_and_a_rank_where_it_is_one(sharded):
    def words(trace):
        return {name.split()[0] for name in shown(trace).y.names}

    assert words(sharded) == {"stage"}
    assert words(layers(dp=2, tp=4, pp=2, schedule="interleaved-1f1b")) == {"pp"}
    plan = sl.Plan(dp=2, tp=4, pp=2, microbatches=2)
    every = sl.layer_trace(MODEL, plan, CLUSTER, collapsed=False)
    assert words(every) == {"rank"}
    assert len({name.split()[1] for name in shown(every).y.names}) == 16


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


def test_a_still_has_the_colours_the_patterns_and_the_legend_of_its_chart(sharded):
    picture = sl.layer_timeline(sharded)
    (chart,), looks = picture.charts, {its["en"]: its for its in LANGUAGE["work"].values()}
    in_still = {text.get_text() for text in picture.legends[0].get_texts()}
    assert in_still == {name.en for name, _ in chart.legend()} and len(in_still) > 5
    drawn = [looks[name.removeprefix("F ").removeprefix("B ")] for name in in_still]
    faces = [c for c in picture.axes[0].collections if len(c.get_facecolor())]
    colours = {to_hex(c.get_facecolor()[0]).upper() for c in faces}
    assert colours == {look["colour"] for look in drawn}
    hatched = [c for c in faces if c.get_hatch()]
    assert len(hatched) == sum(look["pattern"] != "plain" for look in drawn)


def test_a_rank_waits_in_a_still_exactly_where_no_op_at_all_computes(sharded):
    start_s, end_s = sharded.window("0F1")
    chart = shown(sharded, only="0F1", streams=("compute",), ranks=[0])
    (waits,) = [mark for mark in chart.marks if mark.name.en == "idle"]
    for x0, x1 in zip(waits.x0, waits.x1):
        assert not any(
            min(span.end_s, x1 * MS) - max(span.start_s, x0 * MS) > 1e-9
            for span in sharded.compute(0)
        )
    assert waits.x0 and chart.x.least >= start_s / MS and chart.x.most <= end_s / MS


def test_a_trace_keeps_what_is_computed_in_a_unit_and_older_files_without_it_are_read(sharded):
    again = sl.Trace.from_json(sharded.to_json())
    assert again.spans == sharded.spans and any(span.part == "MLP" for span in again.spans)
    data = json.loads(sharded.to_json())
    data["spans"] = [row[:-1] for row in data["spans"]]
    older = sl.Trace.from_json(json.dumps(data))
    assert {span.part for span in older.spans} == {""}
    assert "layer 0" in labels(shown(older))
