"""Processor sharing against hand-made cases and an independent fluid simulation."""

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st
from simlab_oracles import fluid_finish_times

from simlab.engine.sharing import FairShare, FairWire, SerialWire, Wires
from simlab.spec.hardware import Link

JOBS = st.lists(
    st.tuples(st.floats(0, 10), st.one_of(st.just(0.0), st.floats(1e-6, 10))),
    min_size=1,
    max_size=12,
)


def finish_times(jobs, capacity):
    """When `FairShare` is done with each of `jobs` (arrival, work)."""
    env, done = simpy.Environment(), {}
    share = FairShare(env, capacity)

    def job(number, arrival_s, work_s):
        yield env.timeout(arrival_s)
        yield share.serve(work_s)
        done[number] = env.now

    for number, (arrival_s, work_s) in enumerate(jobs):
        env.process(job(number, arrival_s, work_s))
    env.run()
    return [done[number] for number in range(len(jobs))]


def arrivals(wire, sends, **link):
    """When messages (sent at, bytes) arrive over a `wire` class with `Link(**link)`."""
    env, arrived = simpy.Environment(), {}
    line = wire(
        env, Link(**link), lambda message, sent_s, arrival_s: arrived.update({message: arrival_s})
    )

    def sender(number, at_s, size_bytes):
        yield env.timeout(at_s)
        line.send(number, size_bytes, env.now)

    for number, (at_s, size_bytes) in enumerate(sends):
        env.process(sender(number, at_s, size_bytes))
    env.run()
    return [arrived[number] for number in range(len(sends))]


@pytest.mark.parametrize("jobs, capacity, expected", [
    ([(0, 3)], 1, [3]),
    ([(0, 3)], 4, [3]),  # one job cannot use more than one core
    ([(0, 3), (0, 3)], 1, [6, 6]),
    ([(0, 3), (0, 3)], 2, [3, 3]),
    ([(0, 3), (0, 3), (0, 3)], 2, [4.5, 4.5, 4.5]),
    ([(0, 2), (1, 2)], 1, [3, 4]),
    ([(0, 1), (5, 1)], 1, [1, 6]),
    ([(0, 1)], 0.5, [2]),
    ([(0, 0), (2, 0)], 1, [0, 2]),
])  # fmt: skip
def test_jobs_share_equally_and_no_job_gets_more_than_one_core(jobs, capacity, expected):
    assert finish_times(jobs, capacity) == pytest.approx(expected, rel=1e-12)


@given(JOBS, st.floats(0.3, 8))
def test_random_jobs_are_done_when_a_fluid_simulation_says(jobs, capacity):
    assert finish_times(jobs, capacity) == pytest.approx(
        fluid_finish_times(jobs, capacity), rel=1e-9, abs=1e-9
    )


@given(JOBS)
def test_with_a_core_for_every_job_nobody_waits(jobs):
    assert finish_times(jobs, len(jobs)) == pytest.approx(
        [arrival + work for arrival, work in jobs], rel=1e-9
    )


def test_two_messages_at_once_take_twice_as_long_on_a_fair_link_and_queue_on_a_serial_one():
    sends = [(0, 100), (0, 100)]
    assert arrivals(FairWire, sends, bandwidth_bytes_per_s=100, latency_s=0.25) == pytest.approx(
        [2.25, 2.25]
    )
    assert arrivals(SerialWire, sends, bandwidth_bytes_per_s=100, latency_s=0.25) == pytest.approx(
        [1.25, 2.25]
    )


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1000)), min_size=1, max_size=12),
    st.floats(1, 1000),
)
def test_messages_on_a_fair_link_arrive_when_a_fluid_simulation_says(sends, bandwidth):
    expected = fluid_finish_times([(at_s, size / bandwidth) for at_s, size in sends], 1.0)
    arrived = arrivals(FairWire, sends, bandwidth_bytes_per_s=bandwidth, latency_s=0.5)
    assert arrived == pytest.approx([time_s + 0.5 for time_s in expected], rel=1e-9, abs=1e-9)


def wire_ends(jobs):
    """When `Wires` is done with each of `jobs` (begins, wires, share, seconds alone)."""
    env = simpy.Environment()
    wires, ended = Wires(env), {}

    def job(number, begins_s, names, share, seconds):
        yield env.timeout(begins_s)
        yield wires.serve(tuple(names), share, seconds)
        ended[number] = env.now

    for number, one in enumerate(jobs):
        env.process(job(number, *one))
    env.run()
    return [ended[number] for number in range(len(jobs))]


@pytest.mark.parametrize("jobs, ends_s", [
    ([(0, "a", 1.0, 2.0)], [2]),
    ([(0, "a", 1.0, 2.0), (0, "a", 1.0, 2.0)], [4, 4]),
    ([(0, "a", 1.0, 2.0), (1, "a", 1.0, 2.0)], [3, 4]),  # one second alone, two at half the rate; then the other, alone again
    ([(0, "a", 0.5, 2.0), (0, "a", 0.5, 2.0)], [2, 2]),  # there is room for both
    ([(0, "a", 0.5, 2.0), (0, "a", 0.5, 2.0), (0, "a", 0.5, 2.0)], [3, 3, 3]),
    ([(0, "ab", 1.0, 2.0), (0, "b", 1.0, 1.0)], [3, 2]),  # b is shared until the short one is done; a waits for b
    ([(0, "a", 1.0, 2.0), (0, "b", 1.0, 2.0), (5, "a", 1.0, 0.0)], [2, 2, 5]),
])  # fmt: skip
def test_jobs_on_wires_slow_each_other_where_their_shares_are_more_than_the_wire(jobs, ends_s):
    assert wire_ends(jobs) == pytest.approx(ends_s)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 5), st.sampled_from(["a", "b", "ab"]), st.floats(0.1, 1), st.floats(0, 3)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_wire_carries_all_that_is_asked_of_it_and_nobody_is_faster_than_alone(jobs):
    ended = wire_ends(jobs)
    for number, (begins_s, _, _, seconds) in enumerate(jobs):
        assert ended[number] >= begins_s + seconds - 1e-9
    for wire in "ab":
        asked_s = sum(share * seconds for _, names, share, seconds in jobs if wire in names)
        assert max(ended) >= asked_s - 1e-9
    assert (
        max(ended)
        <= max(begins for begins, *_ in jobs) + sum(seconds for *_, seconds in jobs) + 1e-9
    )
