from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab_oracles import needs, op_times, plans, seconds_of_kinds

import simlab
from simlab import (
    Gap,
    InputError,
    Link,
    Op,
    OpTimes,
    Program,
    Span,
    Trace,
    critical_path,
    gaps,
    generate,
    idle_s,
    simulate,
)

RECORDED = Path(simlab.__file__).parents[1] / "assets" / "recorded"
TIMES = OpTimes(forward_s=0.02, backward_s=0.04, input_grad_s=0.02, weight_grad_s=0.02)
ONE_MICROBATCH = Program.from_text("0F0 0B0\n1F0 1B0")


def step(name, *, latency_s=0.005, **link):
    return simulate(generate(name, 4, 8), TIMES, link=Link(latency_s=latency_s, **link))


def as_measured(trace, *, delay_s=0.0):
    """`trace` as an executor records it: every op starts `delay_s` late, a message's span ends when
    its user starts."""
    late = {span.op: span._replace(start_s=span.start_s + delay_s) for span in trace.compute()}
    program = Program.from_trace(trace)
    sent = [
        span._replace(end_s=late[str(program.user(Op.parse(span.op)))].start_s)
        for span in trace.messages()
    ]
    return Trace([*late.values(), *sent], [], trace.metadata | {"source": "measured"})


def ops(path):
    """The ops of a critical path, a message as '->'."""
    return " ".join("->" if span.stream == "send" else span.op for span in path)


links = st.builds(
    Link,
    latency_s=st.one_of(st.just(0.0), st.floats(1e-4, 0.3)),
    bandwidth_bytes_per_s=st.sampled_from([float("inf"), 1e5]),
    sharing=st.sampled_from(["serial", "fair"]),
)


# gaps
# -----------------------------------------------------------------------------------------------------


def test_the_gaps_of_one_microbatch_on_two_ranks():
    found = gaps(simulate(ONE_MICROBATCH, TIMES, link=Link(latency_s=0.005)))
    assert [
        gap._replace(start_s=round(gap.start_s, 9), end_s=round(gap.end_s, 9)) for gap in found
    ] == [
        Gap(0, 0.02, 0.09, "0B0", "1B0", 1, "computing"),
        Gap(1, 0, 0.025, "1F0", "0F0", 0, "computing"),
        Gap(1, 0.085, 0.13, None, None, None, "done"),
    ]


def test_a_gap_whose_larger_part_is_the_way_of_the_message_is_the_messages():
    _, arriving, _ = gaps(simulate(ONE_MICROBATCH, TIMES, link=Link(latency_s=0.03)))
    assert arriving[3:] == ("1F0", "0F0", 0, "message")  # 20 ms of computing, 30 ms on the way


def test_a_gap_in_which_only_the_senders_overhead_passes_waited_for_nothing():
    trace = simulate(
        Program.from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"), TIMES, link=Link(overhead_s=0.003)
    )
    assert next(gap for gap in gaps(trace) if gap.rank == 0) == Gap(
        0, 0.02, 0.023, "0F1", None, None, "overhead"
    )


def test_gaps_are_sentences():
    found = gaps(simulate(ONE_MICROBATCH, TIMES, link=Link(latency_s=0.03)))
    found.append(Gap(0, 0.02, 0.023, "0F1", None, None, "overhead"))
    assert [*map(str, found)] == [
        "rank 0 idle 120.0 ms from 20.0 ms: 0B0 waited for 1B0 on rank 1 (computing)",
        "rank 1 idle 50.0 ms from 0 µs: 1F0 waited for 0F0 from rank 0 (message)",
        "rank 1 idle 70.0 ms from 110.0 ms: no more ops (done)",
        "rank 0 idle 3.0 ms from 20.0 ms: nothing that 0F1 needs was missing (overhead)",
    ]


@given(st.data(), plans(), links)
def test_gaps_add_up_to_the_idle_time_of_each_rank_and_come_in_order(data, program, link):
    trace = simulate(
        program, op_times(data.draw(seconds_of_kinds(program))), link=link, message_bytes=1000
    )
    found = gaps(trace)
    assert found == sorted(found, key=lambda gap: (gap.rank, gap.start_s))
    for rank, idle in enumerate(idle_s(trace)):
        added = sum(gap.end_s - gap.start_s for gap in found if gap.rank == rank)
        assert added == pytest.approx(idle, abs=1e-7 * trace.step_s)


@given(st.data(), plans(), links)
def test_without_overhead_every_gap_ends_as_what_it_waited_for_arrives_and_its_reason_is_the_larger_part(
    data, program, link
):
    trace = simulate(
        program, op_times(data.draw(seconds_of_kinds(program))), link=link, message_bytes=1000
    )
    every = {op for row in program.ranks for op in row}
    made = {span.op: span for span in trace.compute()}
    came_s = {(span.op, span.peer): span.end_s for span in trace.messages()}
    for rank, start_s, end_s, op, waited_for, holder, reason in gaps(trace):
        if op is None:
            assert (waited_for, holder, reason, end_s) == (None, None, "done", trace.end_s)
            continue
        assert Op.parse(waited_for) in needs(Op.parse(op), every, program.stages)
        assert holder == made[waited_for].rank != rank
        assert came_s[waited_for, rank] == end_s == made[op].start_s
        computing_s, message_s = made[waited_for].end_s - start_s, end_s - made[waited_for].end_s
        if computing_s != pytest.approx(message_s):
            assert reason == ("computing" if computing_s > message_s else "message")


def test_gaps_that_are_not_longer_than_asked_for_are_left_out():
    trace = step("1f1b")
    assert (
        [gap for gap in gaps(trace) if gap.end_s - gap.start_s > 0.05]
        == gaps(trace, least_s=0.05)
        != gaps(trace)
    )


def test_a_rank_without_ops_is_done_from_the_start():
    trace = Trace([Span.of_op((0, "F", 0), 1, 3, 5)], [], {"ranks": 2})
    assert gaps(trace) == [Gap(0, 3, 5, None, None, None, "done")]


# measured traces
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved-1f1b"])
def test_of_a_measured_trace_the_gaps_and_the_path_are_found_although_it_does_not_say_when_messages_came(
    name,
):
    trace = step(name)
    measured = as_measured(trace)
    assert measured.messages() != trace.messages()
    assert gaps(measured) == gaps(trace)
    assert ops(critical_path(measured)) == ops(critical_path(trace))


def test_a_message_that_lay_there_while_its_receiver_was_busy_is_not_waited_for():
    measured = as_measured(
        simulate(Program.from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"), TIMES), delay_s=0.001
    )
    (gap,) = [gap for gap in gaps(measured) if gap.op == "1F1"]
    assert gap[3:] == ("1F1", None, None, "overhead")
    assert ops(critical_path(measured)) == "0F0 -> 1F0 1B0 1F1 1B1 -> 0B1"


def test_in_a_recorded_run_every_long_wait_of_1f1b_is_for_computing_and_the_path_covers_the_step():
    trace = Trace.load(RECORDED / "1f1b-measured.json")
    assert {gap.reason for gap in gaps(trace, least_s=0.01)} == {"computing", "done"}
    path = critical_path(trace)
    assert (path[0].op, path[-1].op) == ("0F0", "0B7")
    assert sum(span.end_s - span.start_s for span in path) == pytest.approx(trace.step_s, rel=0.01)


# critical path
# --------------------------------------------------------------------------------------------


def test_the_critical_path_of_1f1b_runs_down_along_the_last_rank_and_up_if_messages_are_free():
    busy = " ".join(f"3F{m} 3B{m}" for m in range(8))
    assert (
        ops(critical_path(step("1f1b", latency_s=0)))
        == f"0F0 -> 1F0 -> 2F0 -> {busy} -> 2B7 -> 1B7 -> 0B7"
    )


def test_the_critical_path_of_1f1b_comes_back_through_all_ranks_if_messages_take_time():
    assert ops(critical_path(step("1f1b"))) == (
        "0F0 -> 1F0 -> 2F0 -> 3F0 3B0 -> 2B0 -> 1B0 -> 0B0 "
        "0F4 -> 1F4 -> 2F4 -> 3F4 3B4 -> 2B4 -> 1B4 "
        "1F7 -> 2F7 -> 3F7 3B7 -> 2B7 -> 1B7 -> 0B7"
    )


@given(st.data(), plans(), links, st.sampled_from([None, 1, 1.5]))
def test_the_critical_path_is_a_chain_without_holes_whose_durations_add_up_to_the_makespan(
    data, program, link, cores
):
    trace = simulate(
        program,
        op_times(data.draw(seconds_of_kinds(program))),
        link=link,
        message_bytes=1000,
        cores=cores,
    )
    path, near = critical_path(trace), 1e-7 * trace.step_s
    assert (
        path[0].start_s == pytest.approx(trace.start_s, abs=near) and path[-1].end_s == trace.end_s
    )
    for span, after in pairwise(path):
        assert after.start_s == pytest.approx(span.end_s, abs=near)
        assert after.rank == (span.rank if span.peer < 0 else span.peer)
    assert sum(span.end_s - span.start_s for span in path) == pytest.approx(trace.step_s, abs=near)


def makespan(program, seconds, latency_s):
    """The end of `program` if each op takes `seconds[op]` and each message `latency_s`: op after
    op, where all it needs is done."""
    rank_of = {op: rank for rank, row in enumerate(program.ranks) for op in row}
    ends, at = {}, [0] * len(program.ranks)
    while sum(at) < len(rank_of):
        for rank, row in enumerate(program.ranks):
            while at[rank] < len(row) and all(
                need in ends for need in needs(row[at[rank]], rank_of, program.stages)
            ):
                op = row[at[rank]]
                ready = [
                    ends[need] + latency_s * (rank_of[need] != rank)
                    for need in needs(op, rank_of, program.stages)
                ]
                before = [ends[row[at[rank] - 1]]] if at[rank] else []
                ends[op] = max([0.0, *before, *ready]) + seconds[op]
                at[rank] += 1
    return max(ends.values())


@given(st.data(), plans(), st.one_of(st.just(0.0), st.floats(1e-4, 0.3)))
def test_any_op_of_the_critical_path_that_takes_longer_lengthens_the_step_by_as_much(
    data, program, latency_s
):
    seconds = data.draw(seconds_of_kinds(program))
    longer_s = data.draw(st.floats(1e-3, 1))
    trace = simulate(program, op_times(seconds), link=Link(latency_s=latency_s))
    each = {op: seconds[op.kind][op.stage] for row in program.ranks for op in row}
    assert makespan(program, each, latency_s) == pytest.approx(trace.step_s)
    for span in critical_path(trace):
        if span.stream == "compute":
            op = Op.parse(span.op)
            assert makespan(program, each | {op: each[op] + longer_s}, latency_s) == pytest.approx(
                trace.step_s + longer_s
            )


def test_what_a_senders_overhead_takes_is_missing_from_the_critical_path():
    trace = simulate(
        Program.from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"), TIMES, link=Link(overhead_s=0.003)
    )
    path = critical_path(trace)
    assert ops(path) == "0F0 -> 1F0 1B0 1F1 1B1 -> 0B1"
    # rank 1's, after 1B0
    assert trace.step_s - sum(span.end_s - span.start_s for span in path) == pytest.approx(0.003)


# odd traces
# -----------------------------------------------------------------------------------------------


def test_where_nothing_ran_there_is_no_gap_and_no_path():
    assert (gaps(Trace([], [], {"ranks": 2})), critical_path(Trace([], [], {"ranks": 2}))) == (
        [],
        [],
    )


def test_a_trace_without_messages_counts_a_result_as_there_when_it_is_made():
    trace = simulate(ONE_MICROBATCH, TIMES)
    bare = Trace(trace.compute(), [], trace.metadata)
    assert gaps(bare) == gaps(trace)
    assert ops(critical_path(bare)) == "0F0 1F0 1B0 0B0"


def test_a_broken_run_is_explained_as_far_as_it_went():
    whole = step("1f1b")
    trace = Trace(
        [span for span in whole.spans if span.end_s < 0.3 and span.op != "3F0"], [], whole.metadata
    )
    assert {gap.rank for gap in gaps(trace)} == {0, 1, 2, 3}
    assert critical_path(trace)[-1].end_s == trace.end_s


def test_ops_that_need_each_other_in_a_circle_have_no_critical_path():
    spans = [
        Span.of_op((0, "B", 0), 0, 0, 1),
        Span.of_op((0, "F", 0), 0, 1, 2),
        Span.of_op((1, "F", 0), 1, 3, 4),
        Span.of_op((1, "B", 0), 1, 4, 5),
    ]
    with pytest.raises(
        InputError, match=r"^not the trace of a step: ops need each other in a circle$"
    ):
        critical_path(Trace(spans, [], {"ranks": 2}))
