"""The Chrome trace: its slices, tracks, arrows and counters are those of the trace."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab_oracles import op_times, plans, seconds_of_kinds
from timelines import (
    TIMES,
    split_trace,
)

import simlab
from simlab import (
    Link,
    Trace,
    generate,
    simulate,
)
from simlab.views import timeline


def events_of(trace):
    """{phase: its events} of the Chrome trace of `trace`."""
    phases = {}
    for event in json.loads(timeline(trace, renderer="perfetto"))["traceEvents"]:
        phases.setdefault(event["ph"], []).append(event)
    return phases


def tracks(events):
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events["M"]
        if event["name"] == "thread_name"
    }


def test_chrome_slices_are_the_spans_in_microseconds():
    trace = split_trace()
    slices = Counter(
        (event["pid"], event["name"], event["ts"], event["dur"]) for event in events_of(trace)["X"]
    )
    label = {"compute": "", "send": "send "}
    assert slices == Counter(
        (
            span.rank,
            label[span.stream] + span.op,
            round(span.start_s * 1e6, 3),
            round((span.end_s - span.start_s) * 1e6, 3),
        )
        for span in trace.spans
    )


def test_chrome_ranks_have_a_compute_track_and_one_per_destination():
    events = events_of(simulate(generate("1f1b", 3, 2), TIMES, link=Link(latency_s=1e-6)))
    assert sorted((rank, name) for (rank, _), name in tracks(events).items()) == [
        (0, "compute"), (0, "send to rank 1"),
        (1, "compute"), (1, "send to rank 0"), (1, "send to rank 2"),
        (2, "compute"), (2, "send to rank 1"),
    ]  # fmt: skip
    names = tracks(events)
    assert all(
        (event["name"].startswith("send")) == names[event["pid"], event["tid"]].startswith("send")
        for event in events["X"]
    )


@pytest.mark.parametrize("pp", [1, 2])
def test_chrome_names_every_track_that_has_a_slice_with_its_stream(pp):
    """With pp = 1 there are no messages: the names of the streams once hung on them."""
    plan = simlab.Plan(dp=4 // pp, tp=2, pp=pp, microbatches=2)
    cluster = simlab.load_cluster("dgx-a100", nodes=1)
    trace = simlab.layer_trace(simlab.load_model("gpt2"), plan, cluster)
    events = json.loads(timeline(trace, renderer="perfetto"))["traceEvents"]
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    named = [event for event in events if event["name"] == "thread_name"]
    assert len(named) == len(names), "a track is named once"
    for event in events:
        if event["ph"] == "X":
            name = names[event["pid"], event["tid"]]
            assert name == "compute" or name == event["cat"] or name.startswith("send to rank ")
    assert {"compute", "tp", "dp"} <= set(names.values())


@given(st.data(), plans(), st.floats(0, 0.3), st.sampled_from(["serial", "fair"]))
def test_chrome_slices_of_one_track_never_overlap_for_perfetto_would_drop_them(
    data, program, latency_s, sharing
):
    """https://perfetto.dev/docs/faq: X events of one thread may nest, not overlap. Compared in
    whole nanoseconds."""
    link = Link(latency_s=latency_s, sharing=sharing, bandwidth_bytes_per_s=1e5)
    trace = simulate(
        program, op_times(data.draw(seconds_of_kinds(program))), link=link, message_bytes=1000
    )
    free_at_ns = {}
    for event in sorted(events_of(trace)["X"], key=lambda event: (event["ts"], event["dur"])):
        start_ns, track = round(event["ts"] * 1e3), (event["pid"], event["tid"])
        assert start_ns >= free_at_ns.get(track, 0)
        free_at_ns[track] = start_ns + round(event["dur"] * 1e3)


def test_chrome_arrows_go_from_the_op_that_made_a_message_through_it_to_its_user():
    trace = split_trace()
    events = events_of(trace)
    where = {(event["pid"], event["tid"], event["ts"]): event["name"] for event in events["X"]}
    arrows = {}
    for phase in "stf":
        for event in events[phase]:
            arrows.setdefault(event["id"], []).append(
                where[event["pid"], event["tid"], event["ts"]]
            )
    assert sorted(arrows.values()) == [
        ["0F0", "send 0F0", "1F0"], ["0F1", "send 0F1", "1F1"], ["1B1", "send 1B1", "0B1"], ["1I0", "send 1I0", "0I0"],
    ]  # fmt: skip


def test_chrome_arrows_of_messages_whose_user_never_ran_are_left_out():
    trace = split_trace()
    broken = Trace(
        [span for span in trace.spans if (span.stream, span.op) != ("compute", "1F1")],
        trace.memory,
        trace.metadata,
    )
    events = events_of(broken)
    assert len(events["s"]) == len(events["t"]) == len(events["f"]) == 3


def test_chrome_counters_are_the_memory_points():
    trace = split_trace()
    counters = [
        (event["pid"], event["name"], event["ts"], event["args"]) for event in events_of(trace)["C"]
    ]
    units = trace.metadata["units"]
    assert counters == [
        (rank, f"{category} ({units[category]})", round(time_s * 1e6, 3), {category: amount})
        for rank, category, time_s, amount in trace.memory
    ]
