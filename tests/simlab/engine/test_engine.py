"""The simulator against closed forms, a published step time and an independent walk along the
dependencies."""

import math
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab_oracles import (
    SECONDS,
    cross_rank_dependencies,
    op_times,
    plans,
    seconds_of_kinds,
    start_times,
)

from simlab import (
    DeadlockError,
    InputError,
    Link,
    Op,
    OpTimes,
    Program,
    busy_s,
    generate,
    idle_s,
    memory_curve,
    peak_memory,
    simulate,
)

SCHEDULES = ("gpipe", "1f1b")
UNIT = OpTimes(forward_s=1, backward_s=2, input_grad_s=1, weight_grad_s=1)


def close(seconds):
    return pytest.approx(seconds, rel=1e-9, abs=1e-12)


def starts_and_ends(trace):
    spans = trace.compute()
    return {Op.parse(span.op): span.start_s for span in spans}, {
        Op.parse(span.op): span.end_s for span in spans
    }


# closed forms
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", range(1, 9))
def test_without_communication_a_step_takes_m_plus_p_minus_1_times_f_plus_b(name, stages):
    for microbatches in range(1, 33):
        trace = simulate(
            generate(name, stages, microbatches), OpTimes(forward_s=0.02, backward_s=0.04)
        )
        assert trace.step_s == pytest.approx((microbatches + stages - 1) * (0.02 + 0.04), rel=1e-9)


GARBAGE_OF_A_RUN = """
import gc
from simlab import Link, OpTimes, generate, simulate
program = generate("1f1b", 4, 64)
link = Link(latency_s=0.1, bandwidth_bytes_per_s=10, sharing="{sharing}")
gc.collect()
simulate(program, OpTimes(forward_s=1, backward_s=2), link=link, message_bytes=3)
print(gc.collect())
"""


@pytest.mark.parametrize("sharing", ["serial", "fair"])
def test_a_run_leaves_next_to_nothing_for_the_garbage_collector(sharing):
    """In a process of its own: the collector counts the garbage of everything that runs in one."""
    script = GARBAGE_OF_A_RUN.format(sharing=sharing)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert int(found.stdout) < 50, found.stderr


@pytest.mark.parametrize("name, step_s", [("gpipe", 0.690), ("1f1b", 0.740)])
def test_latency_of_5_ms_costs_1f1b_more_than_gpipe(name, step_s):
    trace = simulate(
        generate(name, 4, 8), OpTimes(forward_s=0.02, backward_s=0.04), link=Link(latency_s=0.005)
    )
    assert trace.step_s == pytest.approx(step_s, rel=1e-9)


@pytest.mark.parametrize("stages", range(1, 9))
def test_gpipe_holds_all_m_microbatches_on_every_rank(stages):
    for microbatches in (1, 3, 8, 32):
        assert (
            peak_memory(simulate(generate("gpipe", stages, microbatches), UNIT))
            == [microbatches] * stages
        )


@pytest.mark.parametrize("stages", range(1, 9))
def test_1f1b_keeps_at_most_p_minus_rank_activations(stages):
    for microbatches in (1, 3, 8, 32):
        peaks = peak_memory(simulate(generate("1f1b", stages, microbatches), UNIT))
        assert peaks == [min(microbatches, stages - rank) for rank in range(stages)]


# independent walk
# -----------------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(SCHEDULES), st.integers(1, 6), st.integers(1, 10), SECONDS)
def test_schedules_with_any_stage_times_and_latency_start_each_op_when_a_dependency_walk_says(
    data, name, stages, microbatches, hop_s
):
    program = generate(name, stages, microbatches)
    seconds = data.draw(seconds_of_kinds(program))
    expected = start_times(program.ranks, seconds, lambda source, destination: (hop_s, 0.0, 0.0))
    trace = simulate(program, op_times(seconds), link=Link(latency_s=hop_s), message_bytes=10**6)
    assert starts_and_ends(trace) == (close(expected[0]), close(expected[1]))


@given(st.data(), plans())
def test_random_plans_on_serial_links_of_any_speed_start_each_op_when_a_dependency_walk_says(
    data, program
):
    seconds = data.draw(seconds_of_kinds(program))
    pairs = [(a, b) for a in range(len(program.ranks)) for b in range(len(program.ranks)) if a != b]
    wires = {
        pair: data.draw(st.tuples(SECONDS, st.floats(1e-4, 0.1), SECONDS), label=f"link {pair}")
        for pair in pairs
    }
    links = {
        pair: Link(latency_s=hop_s, bandwidth_bytes_per_s=1000 / on_link_s, overhead_s=overhead_s)
        for pair, (hop_s, on_link_s, overhead_s) in wires.items()
    }
    expected = start_times(program.ranks, seconds, lambda *pair: wires[pair])
    trace = simulate(program, op_times(seconds), link=links, message_bytes=1000)
    assert starts_and_ends(trace) == (close(expected[0]), close(expected[1]))


def test_an_op_that_takes_no_time_ends_as_it_starts_and_not_a_rounding_earlier():
    """Rank 1 stands at 0.0101 s until the result of 0F1, which comes third, at 0.0301 s: the
    difference is rounded."""
    trace = simulate(
        Program.from_text("0F0 0F2 0F1 0B0 0B1 0B2\n1F0 1B0 1F1 1F2 1B1 1B2"),
        OpTimes(forward_s=0, backward_s=0),
        link=Link(latency_s=0.0001, bandwidth_bytes_per_s=1e5),
        message_bytes=1000,
    )
    assert all(span.start_s == span.end_s for span in trace.compute())


def test_messages_of_one_direction_queue_and_those_of_the_other_do_not_wait_for_them():
    link = Link(latency_s=0.5, bandwidth_bytes_per_s=1.0)
    trace = simulate(
        Program.from_text("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1"), UNIT, link=link, message_bytes=3
    )
    assert [
        (span.op, span.start_s, span.end_s)
        for span in sorted(trace.messages(), key=lambda span: span.start_s)
    ] == [
        ("0F0", 1.0, 4.5),
        ("0F1", 2.0, 7.5),  # 0F0 is on the link until 4, and then it takes 3 s
        ("1B0", 10.5, 14.0),  # 1F1 runs from 7.5 to 8.5
        ("1B1", 12.5, 17.0),
    ]
    assert trace.step_s == 19.0


def test_messages_on_a_fair_link_share_it():
    times = OpTimes(forward_s=1, backward_s=100)
    program = Program.from_text("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1")

    def arrivals(sharing):
        link = Link(bandwidth_bytes_per_s=1, sharing=sharing, latency_s=0.25)
        trace = simulate(program, times, link=link, message_bytes=10)
        return {span.op: span.end_s for span in trace.messages() if span.rank == 0}

    assert arrivals("serial") == {"0F0": close(11.25), "0F1": close(21.25)}
    # from 1 to 2 alone, then at half speed: 9 left take 18; the other has then had 9 of its 10
    assert arrivals("fair") == {"0F0": close(20.25), "0F1": close(21.25)}


def test_a_send_keeps_the_sender_from_its_next_op_for_the_overhead():
    trace = simulate(
        Program.from_text("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1"),
        UNIT,
        link=Link(latency_s=0.5, overhead_s=0.25),
    )
    starts = {span.op: span.start_s for span in trace.compute()}
    # 1B0 ends at 5.75 and its send keeps 1B1 until 6; 0B0 sends nothing, so 0B1 waits only for 1B1,
    # which arrives at 8.5
    assert starts == {
        "0F0": 0,
        "0F1": 1.25,
        "1F0": 1.5,
        "1F1": 2.75,
        "1B0": 3.75,
        "1B1": 6.0,
        "0B0": 6.25,
        "0B1": 8.5,
    }


# pairs
# ----------------------------------------------------------------------------------------------------


def spans_of(trace):
    return {span.op: (span.start_s, span.end_s) for span in trace.compute()}


def test_a_pair_starts_when_its_backward_could_and_sends_both_results_when_it_ends():
    program = Program.from_text("0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2")
    trace = simulate(
        program, OpTimes(forward_s=1, backward_s=2, pair_s=2.4), link=Link(latency_s=0.5)
    )
    assert spans_of(trace) == {op: close(span) for op, span in {
        "0F0": (0, 1), "0F1": (1, 2), "1F0": (1.5, 2.5), "1B0": (2.5, 4.5), "1F1": (4.5, 5.5), "1B1": (5.5, 7.5),
        # both could at 5, when 1B0's gradient is there; drawn one after the other, in proportion
        "0F2": (5, 5.8), "0B0": (5.8, 7.4),
        # 0F2 left when the pair ended, at 7.4
        "1F2": (7.9, 8.9), "1B2": (8.9, 10.9), "0B1": (8, 10), "0B2": (11.4, 13.4),
    }.items()}  # fmt: skip
    assert {span.op: span.start_s for span in trace.messages()}["0F2"] == close(7.4)


def test_a_pair_starts_when_its_forward_could_though_its_backward_could_before():
    program = Program.from_text("0F0 0F1 0B0 0B1\n1F0 (1F1;1B0)OVERLAP_F_B 1B1")
    trace = simulate(program, OpTimes(forward_s=(3, 1), backward_s=(2, 2), pair_s=2.4))
    assert spans_of(trace) == {op: close(span) for op, span in {
        "0F0": (0, 3), "0F1": (3, 6), "1F0": (3, 4), "1F1": (6, 6.8), "1B0": (6.8, 8.4), "1B1": (8.4, 10.4), "0B0": (8.4, 10.4),
        "0B1": (10.4, 12.4),
    }.items()}  # fmt: skip


@given(st.data(), st.integers(1, 3), st.integers(0, 4))
def test_pairs_that_take_as_long_as_their_ops_change_nothing_but_when_they_start_and_send(
    data, half, more
):
    program = generate("dualpipe", 2 * half, 4 * half + 2 * more)
    times = OpTimes(forward_s=1, backward_s=2, input_grad_s=1, weight_grad_s=1)
    paired, alone = simulate(program, times), simulate(program.unpaired(), times)
    assert paired.step_s == close(simulate(program, OpTimes(**{**vars(times), "pair_s": 3})).step_s)
    assert paired.step_s >= alone.step_s - 1e-9 and busy_s(paired) == close(busy_s(alone))
    shorter = simulate(program, OpTimes(**{**vars(times), "pair_s": data.draw(st.floats(2, 3))}))
    assert shorter.step_s <= paired.step_s + 1e-9


def test_a_pair_that_waits_for_what_comes_of_its_own_forward_is_a_deadlock():
    program = Program.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1\n1F0 1F1 1B0 1B1")
    with pytest.raises(
        DeadlockError, match="rank 1 waits at 1F1 for 0F1, which rank 0 has not run"
    ):
        simulate(program, UNIT)
    assert simulate(program.unpaired(), UNIT).step_s == 9


# time between ops
# -----------------------------------------------------------------------------------------


def test_the_second_of_two_ops_ends_after_f_and_the_gap_and_b():
    trace = simulate(
        Program.from_text("0F0 0B0"), OpTimes(forward_s=1, backward_s=2), op_gap_s=0.25
    )
    assert spans_of(trace) == {"0F0": (0, 1), "0B0": (1.25, 3.25)}


def test_the_gap_holds_up_the_ranks_next_op_but_no_message_and_hides_in_idle_time():
    trace = simulate(
        generate("gpipe", 2, 2),
        OpTimes(forward_s=1, backward_s=2),
        link=Link(latency_s=0.5),
        op_gap_s=0.25,
    )
    assert spans_of(trace) == {
        "0F0": (0, 1), "0F1": (1.25, 2.25), "1F0": (1.5, 2.5), "1F1": (2.75, 3.75), "1B0": (4, 6), "1B1": (6.25, 8.25),
        "0B0": (6.5, 8.5), "0B1": (8.75, 10.75),
    }  # fmt: skip


def test_the_gap_comes_on_top_of_the_overhead_of_a_send():
    trace = simulate(generate("gpipe", 2, 2), UNIT, link=Link(overhead_s=0.5), op_gap_s=0.25)
    assert spans_of(trace)["0F1"] == (1.75, 2.75)


def test_there_is_no_gap_within_a_pair():
    times = OpTimes(forward_s=1, backward_s=3, pair_s=3)
    trace = simulate(Program.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1"), times, op_gap_s=0.25)
    assert spans_of(trace) == {"0F0": (0, 1), "0F1": (1.25, 2), "0B0": (2, 4.25), "0B1": (4.5, 7.5)}


@given(st.data(), plans(), SECONDS)
def test_the_gap_lengthens_a_single_ranks_step_by_one_less_than_its_ops(data, program, gap_s):
    times = op_times(data.draw(seconds_of_kinds(program)))
    alone = Program([sorted(program.rank_of, key=lambda op: order_of(op, program.stages))])
    gaps_s = (len(alone.ranks[0]) - 1) * gap_s
    assert simulate(alone, times, op_gap_s=gap_s).step_s == close(
        simulate(alone, times).step_s + gaps_s
    )
    assert (
        simulate(program, times, op_gap_s=gap_s).step_s >= simulate(program, times).step_s - 1e-12
    )


def order_of(op, stages):
    """Sorted by this, ops run one microbatch after the other: down through the stages, then up."""
    return op.microbatch, op.stage if op.kind == "F" else 2 * stages - op.stage, op.kind


# invariants
# -----------------------------------------------------------------------------------------------

LINKS = st.builds(
    Link,
    latency_s=SECONDS,
    overhead_s=SECONDS,
    bandwidth_bytes_per_s=st.floats(1e4, 1e9),
    sharing=st.sampled_from(["serial", "fair"]),
)
CLUSTERS = st.fixed_dictionaries(
    {
        "link": LINKS,
        "message_bytes": st.integers(0, 10**4),
        "cores": st.one_of(st.none(), st.floats(0.5, 6)),
    }
)


@given(st.data(), plans(), CLUSTERS)
def test_on_every_cluster_a_run_keeps_the_rules(data, program, cluster):
    times = op_times(data.draw(seconds_of_kinds(program)))
    trace = simulate(program, times, **cluster)

    # each op once
    assert Counter(Op.parse(span.op) for span in trace.compute()) == Counter(program.rank_of.keys())
    start, end = starts_and_ends(trace)
    latency_s = cluster["link"].latency_s
    for op, rank in program.rank_of.items():
        for need in program.needs(op):
            hop_s = 0 if program.rank_of[need] == rank else latency_s
            assert start[op] >= end[need] + hop_s - 1e-12
    for rank, ops in enumerate(program.ranks):
        # in the program's order
        assert [Op.parse(span.op) for span in trace.compute(rank)] == list(ops)
        # one at a time
        assert all(end[before] <= start[after] + 1e-12 for before, after in pairwise(ops))
        times_s, amounts = memory_curve(trace, rank)
        assert amounts[0] == amounts[-1] == 0 and min(amounts) == 0
        assert times_s == sorted(times_s)
    lengths = [
        sum(span.end_s - span.start_s for span in trace.compute(rank))
        for rank in range(trace.ranks)
    ]
    assert busy_s(trace) == close(lengths)
    assert [busy + idle for busy, idle in zip(busy_s(trace), idle_s(trace))] == [
        close(max(end.values()) - min(start.values()))
    ] * trace.ranks
    assert (
        sum(span.bytes for span in trace.spans)
        == cross_rank_dependencies(program.ranks) * cluster["message_bytes"]
    )
    assert all(
        program.rank_of[program.user(Op.parse(span.op))] == span.peer != span.rank
        for span in trace.messages()
    )
    assert simulate(program, times, **cluster) == trace


# processors shared
# ----------------------------------------------------------------------------------------


@given(st.data(), plans(), SECONDS)
def test_a_processor_for_every_rank_is_as_good_as_no_sharing(data, program, hop_s):
    times, link = op_times(data.draw(seconds_of_kinds(program))), Link(latency_s=hop_s)
    alone = simulate(program, times, link=link)
    for cores in (len(program.ranks), len(program.ranks) + 1.5):
        assert starts_and_ends(simulate(program, times, link=link, cores=cores)) == tuple(
            map(close, starts_and_ends(alone))
        )


@given(st.data(), plans())
def test_one_core_and_free_messages_take_the_sum_of_all_work(data, program):
    seconds = data.draw(seconds_of_kinds(program))
    work_s = sum(seconds[op.kind][op.stage] for op in program.rank_of)
    assert simulate(program, op_times(seconds), cores=1).step_s == close(work_s)


def test_two_ranks_on_one_core_run_at_half_speed_while_both_compute():
    trace = simulate(
        Program.from_text("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1"),
        OpTimes(forward_s=1, backward_s=2),
        cores=1,
    )
    spans = {span.op: (span.start_s, span.end_s) for span in trace.compute()}
    assert spans == {
        "0F0": (0, 1), "0F1": (1, 3), "1F0": (1, 3), "1F1": (3, 4), "1B0": (4, 6),
        "0B0": (6, 10), "1B1": (6, 10), "0B1": (10, 12),
    }  # fmt: skip


# what is refused
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault, quoted", [
    ({"cores": 0}, "0 cores"), ({"cores": -2}, "-2 cores"), ({"cores": math.nan}, "nan cores"),
    ({"op_gap_s": -0.5}, "-0.5 s between ops"), ({"op_gap_s": math.nan}, "nan s between ops"), ({"op_gap_s": math.inf}, "inf s between"),
    ({"message_bytes": -1}, "-1 bytes"), ({"message_bytes": math.nan}, "nan bytes"),
    ({"link": {}}, "no link from rank 0 to rank 1"), ({"link": {(0, 1): Link()}}, "no link from rank 1 to rank 0"),
])  # fmt: skip
def test_a_cluster_that_cannot_be_is_refused(fault, quoted):
    with pytest.raises(InputError, match=quoted):
        simulate(generate("gpipe", 2, 1), UNIT, **fault)


@pytest.mark.parametrize("fault", [
    {"latency_s": -1e-3}, {"latency_s": math.nan}, {"latency_s": math.inf}, {"overhead_s": -1e-3}, {"overhead_s": math.nan},
    {"bandwidth_bytes_per_s": 0}, {"bandwidth_bytes_per_s": math.nan}, {"sharing": "random"},
])  # fmt: skip
def test_a_link_that_cannot_be_is_refused_and_quoted(fault):
    with pytest.raises(InputError) as raised:
        Link(**fault)
    assert repr(*fault.values()) in str(raised.value)


def test_an_idle_link_takes_latency_plus_size_over_bandwidth():
    assert Link(latency_s=0.25, bandwidth_bytes_per_s=8).seconds(4) == 0.75
    assert Link(latency_s=0.25).seconds(10**12) == 0.25


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, (0.1, -0.1), [0.1, math.nan]])
def test_op_times_that_cannot_be_are_refused(value):
    with pytest.raises(
        InputError, match=r"backward_s = .*: give a finite number of seconds, 0 or more"
    ):
        OpTimes(forward_s=1, backward_s=value)


@pytest.mark.parametrize("times, message", [
    (OpTimes(forward_s=1), "the program has B ops, but backward_s is not given"),
    (OpTimes(forward_s=1, backward_s=(1, 2)), "backward_s has 2 stages, but the program has a stage 2"),
])  # fmt: skip
def test_op_times_that_do_not_cover_the_program_are_refused(times, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        simulate(generate("gpipe", 3, 1), times)
