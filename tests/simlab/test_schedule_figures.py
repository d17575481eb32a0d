"""Step times, bubbles and memory of the schedules against closed forms and published figures."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlab import Link, OpTimes, bubble, generate, peak_memory, simulate
from simlab.errors import InputError

UNIT = {"forward_s": 1.0, "input_grad_s": 1.0, "weight_grad_s": 1.0}
duration = st.floats(0.1, 10.0)


def split(program, forward_s, input_grad_s, weight_grad_s):
    """`OpTimes` of stages that divide a rank's time equally."""
    part = len(program.ranks) / program.stages
    times = {"forward_s": forward_s, "input_grad_s": input_grad_s, "weight_grad_s": weight_grad_s}
    return OpTimes(backward_s=(input_grad_s + weight_grad_s) * part, **{field: value * part for field, value in times.items()})


def run(name, stages, microbatches, times, link=None, **options):
    program = generate(name, stages, microbatches, **options)
    return simulate(program, split(program, **times), link=link)


@pytest.mark.parametrize(
    ("name", "options", "makespan"),
    [
        ("gpipe", {}, 33), ("1f1b", {}, 33), ("eager-1f1b", {}, 33), ("zb-h1", {}, 27), ("zb-h2", {}, 27), ("zb-v", {}, 25.5),
        ("interleaved-1f1b", {"chunks": 2}, 28.5), ("interleaved-1f1b", {"chunks": 3}, 27), ("interleaved-1f1b", {"chunks": 4}, 26.25),
    ],
)  # fmt: skip
def test_with_unit_times_4_ranks_and_8_microbatches_take(name, options, makespan):
    assert run(name, 4, 8, UNIT, **options).step_s == pytest.approx(makespan, rel=1e-12)


# Qi et al. 2023 (arXiv 2401.10241): times of Table 9 in ms (F, I, W, message), bubble rates of Table 5
PAPER = {(8, 24): (18.522, 18.086, 9.337, 0.601), (16, 48): (11.347, 11.248, 8.132, 0.377)}


@pytest.mark.parametrize(
    ("name", "size", "rate"),
    [("1f1b", (8, 24), 0.2431), ("zb-h1", (8, 24), 0.1585), ("zb-h2", (8, 24), 0.1083),
     ("1f1b", (16, 48), 0.2552), ("zb-h1", (16, 48), 0.1397), ("zb-h2", (16, 48), 0.0672)],
)  # fmt: skip
def test_the_bubble_rate_is_the_zero_bubble_papers(name, size, rate):
    forward, input_grad, weight_grad, message = PAPER[size]
    times = {"forward_s": forward, "input_grad_s": input_grad, "weight_grad_s": weight_grad}
    assert round(bubble(run(name, *size, times, Link(latency_s=message))).longest_stage, 4) == rate


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), duration, duration)
def test_interleaving_divides_the_bubble_by_the_chunks(p, rounds, v, forward, backward):
    m = rounds * p
    trace = run("interleaved-1f1b", p, m, {"forward_s": forward, "input_grad_s": backward, "weight_grad_s": 0.0}, chunks=v)
    assert trace.step_s == pytest.approx((m + (p - 1) / v) * (forward + backward))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8), st.integers(1, 24), st.integers(1, 4), duration, duration)
def test_looped_bfs_has_the_bubble_of_interleaving_from_p_microbatches_on(p, more, v, forward, backward):
    m = p + more - 1
    trace = run("looped-bfs", p, m, {"forward_s": forward, "input_grad_s": backward, "weight_grad_s": 0.0}, chunks=v)
    assert trace.step_s == pytest.approx((m + (p - 1) / v) * (forward + backward))
    assert peak_memory(trace) == [m * v] * p


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 8), st.integers(0, 24), duration, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_zb_h1_leaves_the_bubble_that_w_does_not_fill(p, more, input_grad, w_share, f_share):
    m, weight_grad = 2 * p + more, input_grad * w_share  # W <= I: else I waits for W, and the closed form does not hold
    forward = weight_grad + f_share * input_grad  # F >= W
    trace = run("zb-h1", p, m, {"forward_s": forward, "input_grad_s": input_grad, "weight_grad_s": weight_grad})
    busy = m * (forward + input_grad + weight_grad)
    assert trace.step_s == pytest.approx(busy + (p - 1) * (forward + input_grad - weight_grad))


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("name", ["zb-h2", "zb-v"])
def test_no_rank_waits_inside_zb_h2_and_zb_v_if_f_i_and_w_are_equal(name, p):
    assert bubble(run(name, p, 3 * p, UNIT)).longest_stage == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("p", range(2, 9))
@pytest.mark.parametrize("v", [2, 3, 4])
def test_interleaving_holds_pv_plus_p_minus_1_chunks_on_rank_0(p, v):
    assert peak_memory(run("interleaved-1f1b", p, 4 * p, UNIT, chunks=v))[0] == p * v + p - 1


@pytest.mark.parametrize("p", range(2, 9))
def test_zb_v_holds_as_much_on_every_rank_as_1f1b_on_its_first(p):
    halves = peak_memory(run("zb-v", p, 4 * p, UNIT))
    assert [count / 2 for count in halves] == [peak_memory(run("1f1b", p, 4 * p, UNIT))[0]] * p


@pytest.mark.parametrize("p", range(2, 9))
def test_eager_1f1b_holds_more_and_hides_messages_that_1f1b_waits_for(p):
    link = Link(latency_s=0.4)
    eager, plain = run("eager-1f1b", p, 4 * p, UNIT, link), run("1f1b", p, 4 * p, UNIT, link)
    assert peak_memory(eager) == [2 * (p - rank) - 1 for rank in range(p)]
    assert eager.step_s < plain.step_s


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("interleaved-1f1b", 4, 9), {"group": 4}, "last group of 1, fewer than the 4 ranks: give 8 or 12"),
        (("interleaved-1f1b", 4, 8), {"group": 3}, "groups of 3 microbatches on 4 ranks.*at least 4"),
        (("dualpipe-v", 4, 7), {}, "8 stages"),
        (("dualpipe", 3, 12), {}, "e.g. 4 ranks and 12"),
        (("dualpipe", 4, 9), {}, "e.g. 4 ranks and 10"),
        (("1f1b", 4, 8), {"chunks": 2}, "has no chunks to choose: leave it out, or take one of interleaved-1f1b, looped-bfs"),
        (("looped-bfs", 4, 8), {"chunks": 0}, "0 chunks"),
    ],
)
def test_what_a_schedule_cannot_do_is_an_error_that_says_what_it_can(arguments, options, says):
    with pytest.raises(InputError, match=says):
        generate(*arguments, **options)
