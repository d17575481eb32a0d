"""A trace written as profiles has what readers of profiles ask for, and says the same to ours."""

import json
import re

import pytest

import simlab as sl
from simlab.cli.main import main
from simlab.diagnosis import diagnose, profile_graph, read, trace_graph
from simlab.views.viewers.profiles import profiles


@pytest.fixture
def trace():
    times = sl.OpTimes(forward_s=0.02, backward_s=0.04)
    return sl.simulate(sl.generate("1f1b", 4, 8), times, link=sl.Link(latency_s=0.002))


def test_a_profile_has_what_holistic_trace_analysis_asks_of_one(trace):
    """Its trace_file.py finds the rank by this expression; its parser needs dur and cat of each slice,
    and stream and correlation of each kernel, whose launch has the same correlation."""
    for rank, text in enumerate(profiles(trace)):
        assert re.search(r'"rank":\s+(\d+)', text)[1] == str(rank)
        events = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
        assert all(event["dur"] >= 0 and event["cat"] and event["ts"] >= 0 for event in events)
        kernels = [event["args"] for event in events if event["cat"] == "kernel"]
        launches = [event["args"] for event in events if event["cat"] == "cuda_runtime"]
        assert [one["correlation"] for one in kernels] == [one["correlation"] for one in launches]
        assert all(one["stream"] > 0 for one in kernels)
        assert sum(event["name"].startswith("ProfilerStep#") for event in events) == 1
        names = {event["name"] for event in events if event["cat"] == "kernel"}
        assert any(name.startswith("nccl") for name in names)


def test_slices_of_a_stream_do_not_overlap_so_that_perfetto_drops_none(trace):
    for text in profiles(trace):
        ends = {}
        for event in json.loads(text)["traceEvents"]:
            if event.get("cat") == "kernel" and not event["name"].startswith("nccl"):
                assert event["ts"] >= ends.get(event["tid"], 0)
                ends[event["tid"]] = round(event["ts"] + event["dur"], 3)


def test_what_the_profiles_say_is_what_the_trace_says(trace):
    ours = diagnose(trace_graph(trace))
    theirs = diagnose(profile_graph([json.loads(text) for text in profiles(trace)]))
    assert theirs.step_s == pytest.approx(ours.step_s, abs=1e-8)
    for mine, its in zip(ours.spent_by_rank, theirs.spent_by_rank):
        assert its.compute == pytest.approx(mine.compute, abs=1e-6)
    assert theirs.bottleneck == ours.bottleneck


def test_layers_and_collectives_become_kernels_of_their_streams():
    plan = sl.Plan(dp=2, tp=2, pp=2, zero=3, microbatches=4)
    cluster = sl.load_cluster("dgx-a100", nodes=1)
    trace = sl.layer_trace(sl.load_model("gpt2"), plan, cluster)
    graph = profile_graph([json.loads(text) for text in profiles(trace)])
    assert {"tp", "dp", "pp"} <= {work.part for work in graph.works}
    assert all("A mean of so few" in note for note in graph.notes)
    assert graph.replay().step_s == pytest.approx(graph.step_s)


def test_collectives_that_cannot_be_matched_are_told():
    """Each rank has its two collectives in another order, under names that do not tell them apart."""

    def of(rank, order):
        kernels = [
            {"ph": "X", "cat": "kernel", "name": f"nccl {kind}", "pid": 0, "tid": 7, "ts": at, "dur": 10, "args": {"Collective name": kind}}
            for at, kind in zip((100, 300), order)
        ] + [{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 150, "dur": 100}]  # fmt: skip
        return {"traceEvents": kernels, "distributedInfo": {"rank": rank, "world_size": 2}}

    graph = profile_graph([of(0, ("broadcast", "reduce")), of(1, ("reduce", "broadcast"))])
    assert "could not be matched" in graph.notes[-1]


def test_the_command_writes_them(trace, tmp_path, capsys):
    trace.save(tmp_path / "step.json")
    assert main(["why", str(tmp_path / "step.json"), "--profiles", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert [one.kind for one in read([tmp_path / "out"])] == ["profile"] * 4
