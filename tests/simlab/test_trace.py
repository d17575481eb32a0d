import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from simlab_oracles import op_times, plans, seconds_of_kinds

from simlab import (
    InputError,
    Link,
    MemoryPoint,
    OpTimes,
    Program,
    Span,
    Trace,
    bubble,
    busy_s,
    critical_path,
    gaps,
    generate,
    simulate,
    steady_idle,
)
from simlab.trace import ACTIVATIONS, COMPUTE, LIVE
from simlab.views.scene import scene
from simlab.views.viewers.perfetto import chrome_trace

RECORDED = Path(__file__).parents[2] / "assets" / "recorded"

SPAN = [0, "compute", "0F0", 0.0, 1.0, 0, -1, "F", 0, "", 0, "F"]
POINT = [0, "live_microbatches", 0.0, 1]


def document(**changes):
    """The JSON form of a small trace, with top-level fields changed."""
    return {
        "format": "simlab-trace-2",
        "metadata": {"ranks": 1},
        "spans": [SPAN],
        "memory": [POINT],
        **changes,
    }


@given(st.data(), plans())
def test_a_trace_reads_back_equal_from_its_json(data, program):
    times = op_times(data.draw(seconds_of_kinds(program)))
    trace = simulate(program, times, link=Link(latency_s=0.003), message_bytes=7)
    back = Trace.from_json(trace.to_json())
    assert back == trace
    assert {type(span) for span in back.spans} == {Span} and {
        type(point) for point in back.memory
    } == {MemoryPoint}


def test_a_trace_reads_back_equal_from_its_file(tmp_path):
    trace = simulate(generate("1f1b", 3, 4), OpTimes(forward_s=0.1, backward_s=0.2))
    trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == trace


def test_the_json_names_the_fields_of_its_rows():
    trace = simulate(generate("gpipe", 2, 1), OpTimes(forward_s=1, backward_s=2), message_bytes=5)
    data = json.loads(trace.to_json())
    rows = [dict(zip(data["span_fields"], row)) for row in data["spans"]]
    first = {
        "rank": 0,
        "stream": "compute",
        "op": "0F0",
        "start_s": 0,
        "end_s": 1,
        "bytes": 0,
        "peer": -1,
        "kind": "F",
        "stage": 0,
        "unit": "",
        "microbatch": 0,
        "op_kind": "F",
        "part": "",
    }
    message = {
        "rank": 1,
        "stream": "send",
        "op": "1B0",
        "start_s": 4,
        "end_s": 4,
        "bytes": 5,
        "peer": 0,
        "kind": "message",
        "stage": 1,
        "unit": "",
        "microbatch": 0,
        "op_kind": "B",
        "part": "",
    }
    assert first in rows and message in rows


@pytest.mark.parametrize("text", [
    "", "{", "[]", "3", "null", '"simlab-trace-1"', "[" * 100_000, "1" * 10_000,
    *(json.dumps(document(**changes)) for changes in (
        {"format": "simlab-trace-0"}, {"format": None}, {"metadata": {}}, {"metadata": []}, {"metadata": None},
        {"metadata": {"ranks": "1"}}, {"metadata": {"ranks": 0}}, {"spans": None}, {"spans": [[0, "compute"]]}, {"spans": [[*SPAN, 1]]},
        {"spans": ["abcdefg"]},
        {"spans": [{}]}, {"spans": [[1, *SPAN[1:]]]}, {"spans": [[*SPAN[:3], "0", 1.0, 0, -1]]}, {"spans": [[*SPAN[:3], None, 1.0, 0, -1]]},
        {"memory": [[0, "live"]]}, {"memory": 3}, {"memory": [[-1, *POINT[1:]]]}, {"memory": [[*POINT[:3], "1"]]},
        {"spans": [[*SPAN[:8], "0", *SPAN[9:]]]}, {"spans": [[*SPAN[:-1], None]]},
    )),
])  # fmt: skip
def test_json_that_is_no_trace_is_refused_in_one_line(text):
    with pytest.raises(InputError) as raised:
        Trace.from_json(text)
    assert str(raised.value).startswith("not a trace") and len(str(raised.value).splitlines()) == 1


def test_the_document_that_the_refused_ones_are_made_from_is_a_trace():
    assert Trace.from_json(json.dumps(document())) == Trace(
        [Span(*SPAN)], [MemoryPoint(*POINT)], {"ranks": 1}
    )


@pytest.mark.parametrize("content", [b"", b"\x80\x81", b"{}", b"not json"])
def test_a_file_that_is_no_trace_is_refused_and_named(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.json: "):
        Trace.load(path)


def test_a_file_that_is_not_there_is_refused_and_named(tmp_path):
    with pytest.raises(InputError, match=r"^cannot read '.*absent\.json': No such file"):
        Trace.load(tmp_path / "absent.json")


def test_step_time_runs_from_the_first_compute_start_to_the_last_compute_end():
    spans = [
        Span.of_op((0, "F", 0), 0, 5.0, 6.0),
        Span(0, "send", "0F0", 6.0, 9.0, 8, 1),
        Span.of_op((1, "F", 0), 1, 7.0, 8.5),
    ]
    trace = Trace(spans, [], {"ranks": 2})
    assert (trace.start_s, trace.end_s, trace.step_s) == (5.0, 8.5, 3.5)
    assert trace.whole_step_s == 4.0 and Trace([], [], {}).whole_step_s == 0.0
    assert trace.messages() == [spans[1]] and trace.compute(1) == [spans[2]]


def test_columns_are_those_of_the_rows_also_after_somebody_changed_them():
    trace = simulate(generate("1f1b", 2, 4), OpTimes(forward_s=0.02, backward_s=0.04))
    bare = Trace([*trace.spans], [*trace.memory], trace.metadata)

    def same():
        return all(
            [*map(list, trace.columns(name))] == [*map(list, bare.columns(name))]
            for name in (COMPUTE, LIVE, ACTIVATIONS)
        )

    assert same()
    for rows in (trace.spans, bare.spans):
        rows[-1] = rows[-1]._replace(end_s=9.0)
    assert same() and max(trace.columns(COMPUTE)[3]) == 9.0
    trace.memory.clear()
    assert [*trace.columns(LIVE)] == [(), (), ()]


@pytest.mark.parametrize(("stream", "label", "fields"), [
    ("compute", "2F13", ("F", 2, "", 13, "F")),
    ("compute", "0B1 layer 30", ("B", 0, "layer 30", 1, "B")),
    ("compute", "0W1 embedding", ("W", 0, "embedding", 1, "W")),
    ("send", "1I4", ("message", 1, "", 4, "I")),
    ("tp", "0F0 layer 2 output reduce", ("all_reduce", 0, "layer 2", 0, "F")),
    ("tp", "0B0 layer 2 qkv gather again", ("all_gather", 0, "layer 2", 0, "B")),
    ("tp", "0B0 head head grad scatter", ("reduce_scatter", 0, "head", 0, "B")),
    ("cp", "0B0 layer 1 again attention ring 3", ("ring", 0, "layer 1", 0, "B")),
    ("dp", "layer 7 gather", ("all_gather", -1, "layer 7", -1, "")),
    ("dp", "0B0 embedding gradients", ("", 0, "embedding", 0, "B")),
    ("dp", "3 gradients", ("", -1, "", -1, "")),
    ("optimizer", "optimizer", ("optimizer", -1, "", -1, "")),
    ("compute", "step 3", ("", -1, "", -1, "")),
    ("compute", "2F0x\nlayer 3x", ("", -1, "", -1, "")),
    ("compute", "", ("", -1, "", -1, "")),
])  # fmt: skip
def test_the_first_format_is_read_and_its_labels_give_the_fields(stream, label, fields):
    row = [0, stream, label, 0.0, 1.0, 8, -1]
    text = json.dumps(document(format="simlab-trace-1", spans=[row]))
    assert Trace.from_json(text).spans == [Span(*row, *fields)]


def test_recorded_traces_of_the_first_format_read_as_the_ops_that_their_labels_name():
    paths = sorted(RECORDED.glob("*-measured.json")) + sorted(RECORDED.glob("*-predicted.json"))
    assert len(paths) == 10
    for path in paths:
        spans = Trace.load(path).spans
        assert spans and all(span.op_text == span.op for span in spans)


@given(st.data(), plans())
def test_labels_mean_nothing_to_analyses_and_pictures(data, program):
    times = op_times(data.draw(seconds_of_kinds(program)))
    trace = simulate(program, times, link=Link(latency_s=0.003))
    assume(sum(busy_s(trace)) > 0)
    renamed = Trace([span._replace(op="x") for span in trace.spans], trace.memory, trace.metadata)
    for read in (Program.from_trace, bubble, steady_idle, chrome_kinds, box_kinds):
        assert read(renamed) == read(trace)
    for read in (gaps, critical_path):
        where = [
            [(item.rank, item.start_s, item.end_s) for item in read(t)] for t in (trace, renamed)
        ]
        assert where[0] == where[1]


def chrome_kinds(trace):
    return [event.get("cat") for event in json.loads(chrome_trace(trace))["traceEvents"]]


def box_kinds(trace):
    return [(box.kind, box.label) for box in scene(trace).boxes]
