"""Files for `simlab why` with a field that is none: one line that quotes it, never a traceback."""

import copy
import json

import pytest

from simlab.cli.main import main
from simlab.diagnosis import hang_of
from simlab.trace import Span, Trace

EVENT = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
CALL = {
    "process_group": ["0", "default"], "profiling_name": "nccl:all_reduce", "collective_seq_id": 1,
    "state": "completed", "input_sizes": [[1]],
}  # fmt: skip
NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture
def why(tmp_path, capsys):
    """The status and the lines of `simlab why` on some contents, one file each."""

    def run(*contents, flags=()):
        paths = []
        for number, content in enumerate(contents):
            path = tmp_path / f"file{number}.json"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            paths.append(str(path))
        status = main(["why", *paths, *flags])
        out, err = capsys.readouterr()
        return status, err.splitlines(), out

    return run


def profile(event=None, **more):
    return {"traceEvents": [EVENT | (event or {})]} | more


PROFILES = {
    "a text as base": (profile(baseTimeNanoseconds="abc"), "baseTimeNanoseconds = 'abc'"),
    "a list as base": (profile(baseTimeNanoseconds=[1]), "baseTimeNanoseconds = [1]"),
    "infinity as base": (profile(baseTimeNanoseconds=INFINITY), "baseTimeNanoseconds = inf"),
    "a text as rank": (profile(distributedInfo={"rank": "x"}), "distributedInfo.rank = 'x'"),
    "null as rank": (profile(distributedInfo={"rank": None}), "distributedInfo.rank = None"),
    "a list as rank": (profile(distributedInfo={"rank": [1]}), "distributedInfo.rank = [1]"),
    "infinity as rank": (profile(distributedInfo={"rank": INFINITY}), "distributedInfo.rank = inf"),
    "a text as world": (profile(distributedInfo={"world_size": "2"}), "world_size = '2'"),
    "a number beyond floats as ts": (profile({"ts": 10**400}), "ts of an event = "),
    "no number as ts": (profile({"ts": NAN}), "ts of an event = nan: give a finite number"),
    "a text as ts": (profile({"ts": "1"}), "ts of an event = '1'"),
    "a truth value as ts": (profile({"ts": True}), "ts of an event = True"),
    "infinity as dur": (profile({"dur": INFINITY}), "dur of an event = inf"),
    "a negative dur": (profile({"dur": -5}), "dur of an event = -5: give a finite number, at least 0"),
    "a list as pid": (profile({"pid": [1]}), "pid of an event = [1]"),
    "an object as tid": (profile({"tid": {"a": 1}}), "tid of an event = {'a': 1}"),
}  # fmt: skip


@pytest.mark.parametrize("content, said", PROFILES.values(), ids=PROFILES)
def test_a_profile_with_a_wrong_field(why, content, said):
    status, (line,), _ = why(content)
    assert status == 2 and said in line and len(line) < 2000


def dump(call=None, **more):
    return {"entries": [CALL | (call or {})]} | more


DUMPS = {
    "infinity as number": (dump({"collective_seq_id": INFINITY}), "collective_seq_id = inf"),
    "a text as number": (dump({"collective_seq_id": "1"}), "collective_seq_id = '1'"),
    "infinity as rank": (dump(pg_config={"0": {"ranks": [INFINITY]}}), "rank of group '0' = inf"),
    "a text among ranks": (dump(pg_config={"0": {"ranks": "[0, x]"}}), "not a flight recorder's"),
    "no list of ranks": (dump(pg_config={"0": {"ranks": 5}}), "not a flight recorder's"),
    "no list of frames": (dump({"frames": 5}), "not a flight recorder's"),
    "no entry": ({"entries": [1]}, "not a flight recorder's"),
}  # fmt: skip


@pytest.mark.parametrize("content, said", DUMPS.values(), ids=DUMPS)
def test_a_dump_with_a_wrong_field(why, content, said):
    status, (line,), _ = why(content)
    assert status == 2 and said in line and len(line) < 2000


def test_numbers_that_are_far_apart_are_not_counted_through():
    """The numbers between two calls belong to nobody: they cost neither time nor a traceback."""
    dumps = [{"entries": [CALL, CALL | {"collective_seq_id": 10**12}]}]
    assert hang_of(list(enumerate(dumps))).reason == "none"


def test_a_long_list_of_ranks_is_cut(why):
    status, _, out = why(
        dump({"state": "scheduled"}, pg_config={"0": {"ranks": list(range(10_000))}})
    )
    assert status == 0 and "and 9935 more" in " ".join(out.split()) and len(out) < 4000


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_half_a_surrogate_pair_is_printed_as_its_escape(why, flags):
    text = json.dumps(dump({"state": "scheduled"}, pg_config={"0": {"ranks": "[0, 1]"}}))
    status, _, out = why(text.replace("nccl:all_reduce", "nccl:\\ud800"), flags=flags)
    assert status == 0 and "\\ud800" in out


def trace(**changed):
    """A trace of two ops on one rank in JSON, with other fields of its second span."""
    spans = [Span.of_op((0, "F", 0), 0, 0.0, 1.0), Span.of_op((0, "B", 0), 0, 1.0, 3.0)]
    spans[1] = spans[1]._replace(**changed)
    made = Trace(spans, [], {"name": "a", "source": "simulated", "ranks": 1})
    return json.loads(made.to_json())


TRACES = {
    "a number beyond floats": (trace(end_s=10**400), "too large or not finite"),
    "no number": (trace(start_s=NAN), "too large or not finite"),
    "infinity": (trace(end_s=INFINITY), "too large or not finite"),
    "an end before the start": (trace(end_s=-4.0), "a span ends before it starts"),
    "a peer that is none": (trace(peer=7), "a span's peer is none"),
    "a time of all ages": (trace(end_s=1e300), "end_s of a span = 1e+300: give a finite number"),
    "too many ranks": (trace() | {"metadata": {"ranks": 10**12}}, "give 1 to 131,072"),
    "a list as metadata": (trace() | {"metadata": [1]}, "its metadata is [1], not an object"),
    "wires of nothing": (trace() | {"metadata": {"ranks": 1, "wires": [5]}}, "wires of a trace: 5"),
    "a gap of text": (trace() | {"metadata": {"ranks": 1, "op_gap_s": "x"}}, "op_gap_s = 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("content, said", TRACES.values(), ids=TRACES)
def test_a_trace_with_a_wrong_field(why, content, said):
    status, (line,), _ = why(content)
    assert status == 2 and said in line and len(line) < 2000


def test_the_unchanged_trace_is_read(why):
    assert why(trace())[0] == 0
    assert why(profile())[0] == 0


def test_the_clocks_of_two_machines_may_differ(why):
    """A message begins by the one and ends by the other, so it may seem to end first."""
    content = trace()
    content["metadata"]["ranks"] = 2
    content["spans"].append([0, "send", "0F0", 1.001, 1.0, 8, 1, "message", 0, "", 0, "F", ""])
    assert Trace.from_dict(copy.deepcopy(content)).messages()
    content["spans"][-1][3] = 2.0
    assert Trace.from_dict(copy.deepcopy(content)).messages()
    assert why(content)[0] == 0


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_a_device_is_not_read(path, capsys):
    assert main(["why", path]) == 2
    assert "it is a device or a pipe" in capsys.readouterr().err


def test_the_folder_that_realrun_writes_into_stands_for_its_run(tmp_path, capsys):
    """Beside the run's folder there are realrun's own files, one of which is JSON with a dot."""
    (tmp_path / ".realrun.json").write_text('{"runs": ["1f1b"]}')
    (tmp_path / "1f1b").mkdir()
    (tmp_path / "1f1b" / "measured.json").write_text(json.dumps(trace()))
    assert main(["why", str(tmp_path)]) == 0
    assert "1 ranks, a step of 3.000 s" in capsys.readouterr().out
    (tmp_path / "gpipe").mkdir()
    (tmp_path / "gpipe" / "measured.json").write_text(json.dumps(trace()))
    assert main(["why", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "holds 2 runs: give the folder of one" in err and str(tmp_path / "gpipe") in err
