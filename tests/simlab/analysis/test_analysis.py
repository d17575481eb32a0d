from itertools import pairwise

import pytest

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
    generate,
    idle_s,
    memory_curve,
    peak_memory,
    simulate,
)


def by_hand():
    """Rank 0 computes from 1 to 4 and from 5 to 6, rank 1 from 2 to 4; the clock does not begin at
    0."""
    spans = [
        Span.of_op((0, "F", 0), 0, 1, 4),
        Span.of_op((0, "B", 0), 0, 5, 6),
        Span.of_op((1, "F", 0), 1, 2, 4),
        Span(0, "send", "0F0", 4, 9, 1, 1),
    ]
    memory = [
        MemoryPoint(0, "live_microbatches", 1, 1),
        MemoryPoint(0, "activations", 1, 700),
        MemoryPoint(0, "live_microbatches", 6, 0),
    ]
    return Trace(spans, memory, {"ranks": 2})


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_is_p_minus_1_over_m_of_ideal_and_p_minus_1_over_m_plus_p_minus_1_of_makespan(name):
    for stages in range(1, 9):
        for microbatches in (1, 2, 7, 32):
            found = bubble(
                simulate(
                    generate(name, stages, microbatches), OpTimes(forward_s=0.02, backward_s=0.04)
                )
            )
            assert found.idle_over_ideal == pytest.approx(
                (stages - 1) / microbatches, rel=1e-9, abs=1e-12
            )
            assert found.idle_over_makespan == pytest.approx(
                (stages - 1) / (microbatches + stages - 1), rel=1e-9, abs=1e-12
            )


@pytest.mark.parametrize("stages, microbatches, forward, backward, hop, rate", [
    (8, 24, 18.522, 18.086 + 9.337, 0.601, 0.2431),
    (16, 48, 11.347, 11.248 + 8.132, 0.377, 0.2552),
])  # fmt: skip
def test_longest_stage_reproduces_the_1f1b_rates_of_the_zero_bubble_paper(
    stages, microbatches, forward, backward, hop, rate
):
    """Qi et al. 2023, arXiv 2401.10241: times of table 9 (ms), rates of table 5."""
    times = OpTimes(forward_s=forward / 1e3, backward_s=backward / 1e3)
    trace = simulate(generate("1f1b", stages, microbatches), times, link=Link(latency_s=hop / 1e3))
    assert round(bubble(trace).longest_stage, 4) == rate


def test_the_three_bubbles_of_a_trace_made_by_hand():
    # step 5 s on 2 ranks, busy 4 + 2; the longest stage is rank 0: idle 1 of 5
    found = bubble(by_hand())
    assert found == pytest.approx((4 / 6, 4 / 10, 1 / 5))


def test_busy_and_idle_of_a_trace_made_by_hand():
    assert (busy_s(by_hand()), idle_s(by_hand())) == ([4, 2], [1, 3])


def test_the_longest_stage_is_measured_over_its_own_span():
    trace = Trace(
        [
            Span.of_op((0, "F", 0), 0, 0, 1),
            Span.of_op((1, "F", 0), 1, 2, 3),
            Span.of_op((1, "B", 0), 1, 9, 10),
        ],
        [],
        {"ranks": 2},
    )
    # of rank 1's 8 s, not of the makespan of 10 s
    assert bubble(trace).longest_stage == pytest.approx(6 / 8)


@pytest.mark.parametrize(
    "trace",
    [Trace([], [], {"ranks": 2}), Trace([Span.of_op((0, "F", 0), 0, 1, 1)], [], {"ranks": 1})],
)
def test_where_nothing_takes_time_there_is_no_bubble_to_speak_of(trace):
    with pytest.raises(InputError, match="no op takes any time"):
        bubble(trace)


def test_peak_and_curve_are_of_one_category_and_rank():
    assert peak_memory(by_hand()) == [1, 0]
    assert peak_memory(by_hand(), "activations") == [700, 0]
    assert memory_curve(by_hand(), 0) == ([1, 1, 6], [0, 1, 0])
    assert memory_curve(by_hand(), 1) == ([1], [0])


def test_split_backwards_hold_their_microbatch_until_the_weight_gradient_ends():
    times = OpTimes(forward_s=1, input_grad_s=1, weight_grad_s=1)
    trace = simulate(Program.from_text("0F0 0I0 0F1 0W0 0I1 0W1"), times)
    assert memory_curve(trace, 0) == ([0, 0, 2, 4, 6], [0, 1, 2, 1, 0])


def test_rounding_does_not_make_idle_time_negative():
    """Twelve times summed up by 0.1: what lies between them adds up to more than the whole."""
    ends = [0.1]
    for _ in range(11):
        ends.append(ends[-1] + 0.1)
    spans = [
        Span.of_op((0, "F", at), 0, start, end) for at, (start, end) in enumerate(pairwise(ends))
    ]
    trace = Trace(spans, metadata={"ranks": 1})
    assert sum(busy_s(trace)) > trace.step_s
    assert bubble(trace)[:2] == (0, 0)
