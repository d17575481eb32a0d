"""How results show themselves: short in a line, whole as plain values, as text in a notebook."""

import html
import json
import sys
from types import SimpleNamespace

import pytest

import simlab as sl
from simlab.analysis.comparison import compare
from simlab.display import plain
from simlab.memory.data_parallel import data_parallel_memory
from simlab.program import Program
from simlab.units import bytes_text


@pytest.fixture(scope="module")
def prediction():
    return sl.predict(
        sl.load_model("llama-3-8b"),
        sl.Plan(dp=2, tp=2, pp=2, microbatches=8),
        sl.load_cluster("dgx-h100"),
    )


def run(microbatches=4):
    program = sl.generate("1f1b", 2, microbatches)
    return sl.simulate(program, sl.OpTimes(forward_s=0.1, backward_s=0.2))


def test_a_predictions_repr_is_a_line_with_its_step_its_utilisation_and_its_memory(prediction):
    text = repr(prediction)
    assert len(text) < 200 and "\n" not in text
    assert "llama-3-8b on 8 x" in text and f"MFU {prediction.mfu:.1%}" in text


def test_reprs_of_traces_programs_and_what_ifs_are_a_line(prediction):
    trace, program = run(), sl.generate("gpipe", 8, 64)
    assert repr(trace) == "<Trace '1f1b', simulated: 2 ranks, 24 spans, 1.500 s>"
    assert repr(program) == "<Program 'gpipe': 8 ranks, 64 microbatches, 1024 ops>"
    assert len(repr(sl.faster_link(prediction, "intra"))) < 100
    assert repr(sl.Trace()) == "<Trace '': None ranks, 0 spans, 0 µs>"


def test_reprs_of_comparisons_and_stacks_are_a_line_however_many_ops_they_have(prediction):
    short, long = run(4), run(400)
    assert repr(compare(short, short)) == (
        "<Comparison: step 1.500 s predicted, 1.500 s measured, +0.0%>"
    )
    assert len(repr(compare(long, long))) < 100
    stack = prediction.memory_stack()
    assert "\n" not in repr(stack) and len(repr(stack)) < 200
    assert repr(stack).startswith(f"<Stack {stack.name!r}, {len(stack.ops)} intervals: peak ")


def test_a_notebook_shows_a_comparison_as_its_table():
    shown = compare(run(), run())
    assert html.unescape(shown._repr_html_()) == f"<pre>{shown}</pre>"


def test_the_repr_of_a_small_program_makes_it_again():
    program = sl.generate("zb-h1", 2, 3)
    assert eval(repr(program), {"Program": Program}) == program


def test_a_notebook_shows_the_summary_that_the_command_line_prints(prediction):
    shown = prediction._repr_html_()
    assert html.unescape(shown) == f"<pre>{prediction.summary()}</pre>"
    assert "tokens/s" in shown and "peak memory" in shown


def test_plain_values_go_through_json_unchanged(prediction):
    trace = run()
    results = (prediction, trace, compare(trace, trace), sl.bubble(trace))
    for result in (*results, sl.faster_link(prediction, "intra")):
        values = result.to_dict()
        assert json.loads(json.dumps(values)) == values
    assert prediction.to_dict()["step_s"] == prediction.step_s
    assert len(trace.to_dict()["spans"]) == len(trace.spans)
    assert trace.to_dict()["spans"][0]["kind"] == trace.spans[0].kind


def test_what_is_asked_for_goes_through_json_and_makes_itself_again(prediction):
    uneven = sl.Plan(pp=2, stage_layers=(1, 2), order="tp-cp-pp-dp")
    experts = sl.load_model("deepseek-v3")
    for what in (uneven, prediction.plan, prediction.model, experts):
        values = json.loads(json.dumps(what.to_dict()))
        assert values == what.to_dict() and type(what)(**values) == what
    cluster = sl.Cluster.mixed(prediction.cluster, sl.load_cluster("dgx-a100", nodes=2))
    values = json.loads(json.dumps(cluster.to_dict()))
    assert values == cluster.to_dict() and values["gpu"]["name"] == "h100-sxm-80gb"
    assert values["more"][0]["nodes"] == 2


def test_a_steps_memory_is_a_line(prediction):
    found = data_parallel_memory(sl.load_model("gpt2"), 8, microbatch_size=2, sharding="fsdp")
    peak = bytes_text(found.peak.total)
    assert repr(found).endswith(f"peak {peak} at {found.peak.op!r}>") and len(repr(found)) < 100


def test_plain_knows_records_mappings_sequences_and_text():
    value = {1: (sl.Op(2, "F", 0), {3}), "link": sl.Link(latency_s=1.0), "path": ValueError("x")}
    made = plain(value)
    assert made["1"] == [{"stage": 2, "kind": "F", "microbatch": 0}, [3]]
    assert made["link"]["latency_s"] == 1.0 and made["path"] == "x"


def test_data_frames_have_a_row_for_each_span_and_each_quantity(monkeypatch):
    frame = SimpleNamespace(DataFrame=lambda rows, columns: (list(rows), columns))
    monkeypatch.setitem(sys.modules, "pandas", frame)
    trace = run()
    rows, columns = trace.to_frame()
    assert rows == trace.spans and columns == list(sl.Span._fields)
    rows, columns = compare(trace, trace).to_frame()
    assert columns == ["quantity", "predicted", "measured", "error"]
    assert ("step_s", trace.step_s, trace.step_s, 0.0) in rows


def test_without_pandas_a_data_frame_is_refused_and_pandas_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(sl.InputError, match="pip install pandas"):
        run().to_frame()
