import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab_oracles import op_times, plans, seconds_of_kinds

from simlab import InputError, Link, MemoryPoint, OpTimes, Span, Trace, generate, simulate
from simlab.trace import ACTIVATIONS, COMPUTE, LIVE

SPAN, POINT = [0, "compute", "0F0", 0.0, 1.0, 0, -1], [0, "live_microbatches", 0.0, 1]


def document(**changes):
    """The JSON form of a small trace, with top-level fields changed."""
    return {"format": "simlab-trace-1", "metadata": {"ranks": 1}, "spans": [SPAN], "memory": [POINT], **changes}


@given(st.data(), plans())
def test_a_trace_reads_back_equal_from_its_json(data, program):
    times = op_times(data.draw(seconds_of_kinds(program)))
    trace = simulate(program, times, link=Link(latency_s=0.003), message_bytes=7)
    back = Trace.from_json(trace.to_json())
    assert back == trace
    assert {type(span) for span in back.spans} == {Span} and {type(point) for point in back.memory} == {MemoryPoint}


def test_a_trace_reads_back_equal_from_its_file(tmp_path):
    trace = simulate(generate("1f1b", 3, 4), OpTimes(forward_s=0.1, backward_s=0.2))
    trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == trace


def test_the_json_names_the_fields_of_its_rows():
    trace = simulate(generate("gpipe", 2, 1), OpTimes(forward_s=1, backward_s=2), message_bytes=5)
    data = json.loads(trace.to_json())
    rows = [dict(zip(data["span_fields"], row)) for row in data["spans"]]
    first = {"rank": 0, "stream": "compute", "op": "0F0", "start_s": 0, "end_s": 1, "bytes": 0, "peer": -1}
    message = {"rank": 1, "stream": "send", "op": "1B0", "start_s": 4, "end_s": 4, "bytes": 5, "peer": 0}
    assert first in rows and message in rows


@pytest.mark.parametrize("text", [
    "", "{", "[]", "3", "null", '"simlab-trace-1"', "[" * 100_000, "1" * 10_000,
    *(json.dumps(document(**changes)) for changes in (
        {"format": "simlab-trace-0"}, {"format": None}, {"metadata": {}}, {"metadata": []}, {"metadata": None},
        {"metadata": {"ranks": "1"}}, {"metadata": {"ranks": 0}}, {"spans": None}, {"spans": [[0, "compute"]]}, {"spans": [[*SPAN, 1]]},
        {"spans": ["abcdefg"]},
        {"spans": [{}]}, {"spans": [[1, *SPAN[1:]]]}, {"spans": [[*SPAN[:3], "0", 1.0, 0, -1]]}, {"spans": [[*SPAN[:3], None, 1.0, 0, -1]]},
        {"memory": [[0, "live"]]}, {"memory": 3}, {"memory": [[-1, *POINT[1:]]]}, {"memory": [[*POINT[:3], "1"]]},
    )),
])  # fmt: skip
def test_json_that_is_no_trace_is_refused_in_one_line(text):
    with pytest.raises(InputError) as raised:
        Trace.from_json(text)
    assert str(raised.value).startswith("not a trace") and len(str(raised.value).splitlines()) == 1


def test_the_document_that_the_refused_ones_are_made_from_is_a_trace():
    assert Trace.from_json(json.dumps(document())) == Trace([Span(*SPAN)], [MemoryPoint(*POINT)], {"ranks": 1})


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
    spans = [Span(0, "compute", "0F0", 5.0, 6.0), Span(0, "send", "0F0", 6.0, 9.0, 8, 1), Span(1, "compute", "1F0", 7.0, 8.5)]
    trace = Trace(spans, [], {"ranks": 2})
    assert (trace.start_s, trace.end_s, trace.step_s) == (5.0, 8.5, 3.5)
    assert trace.messages() == [spans[1]] and trace.compute(1) == [spans[2]]


def test_columns_are_those_of_the_rows_also_after_somebody_changed_them():
    trace = simulate(generate("1f1b", 2, 4), OpTimes(forward_s=0.02, backward_s=0.04))
    bare = Trace([*trace.spans], [*trace.memory], trace.metadata)

    def same():
        return all([*map(list, trace.columns(name))] == [*map(list, bare.columns(name))] for name in (COMPUTE, LIVE, ACTIVATIONS))

    assert same()
    for rows in (trace.spans, bare.spans):
        rows[-1] = rows[-1]._replace(end_s=9.0)
    assert same() and max(trace.columns(COMPUTE)[-1]) == 9.0
    trace.memory.clear()
    assert [*trace.columns(LIVE)] == [(), (), ()]
