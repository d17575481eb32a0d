"""Step times, bubbles and memory of the schedules against closed forms and published figures."""

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlab import Link, OpTimes, bubble, busy_s, generate, peak_memory, simulate
from simlab.errors import InputError
from simlab.schedules import SCHEDULES, closed_bubble_s

UNIT = {"forward_s": 1.0, "input_grad_s": 1.0, "weight_grad_s": 1.0}
duration = st.floats(0.1, 10.0)


def split(program, forward_s, input_grad_s, weight_grad_s, pair_s=None):
    """`OpTimes` of stages that divide a rank's time equally."""
    part = len(program.ranks) / program.stages
    times = {"forward_s": forward_s, "input_grad_s": input_grad_s, "weight_grad_s": weight_grad_s}
    times |= {} if pair_s is None else {"pair_s": pair_s}
    return OpTimes(
        backward_s=(input_grad_s + weight_grad_s) * part,
        **{field: value * part for field, value in times.items()},
    )


def run(name, stages, microbatches, times, link=None, **options):
    program = generate(name, stages, microbatches, **options)
    return simulate(program, split(program, **times), link=link)


def unit(seconds):
    """F = I = W."""
    return dict.fromkeys(UNIT, seconds)


def longest_bubble_s(trace):
    """The idle seconds of the rank whose span, first start to last end, is the longest, inside that
    span."""
    found = []
    for rank in range(trace.ranks):
        spans = trace.compute(rank)
        span_s = max(span.end_s for span in spans) - min(span.start_s for span in spans)
        found.append((span_s, span_s - sum(span.end_s - span.start_s for span in spans)))
    return max(found)[1]


def seconds(value):
    return pytest.approx(value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "makespan"),
    [
        ("gpipe", {}, 33), ("1f1b", {}, 33), ("eager-1f1b", {}, 33), ("zb-h1", {}, 27), ("zb-h2", {}, 27), ("zb-v", {}, 25.5),
        ("interleaved-1f1b", {"chunks": 2}, 28.5), ("interleaved-1f1b", {"chunks": 3}, 27), ("interleaved-1f1b", {"chunks": 4}, 26.25),
    ],
)  # fmt: skip
def test_with_unit_times_4_ranks_and_8_microbatches_take(name, options, makespan):
    assert run(name, 4, 8, UNIT, **options).step_s == pytest.approx(makespan, rel=1e-12)


# Qi et al. 2023 (arXiv 2401.10241): times of Table 9 in ms (F, I, W, message), bubble rates of
# Table 5
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


@pytest.mark.parametrize(("size", "rate"), [((8, 24), 0.1055), ((16, 48), 0.1104)])
def test_interleaving_with_3_chunks_has_about_the_bubble_rate_of_the_papers_1f1b_i(size, rate):
    """About: the paper measured it, with first and last stages of other work than the rest."""
    forward, input_grad, weight_grad, message = PAPER[size]
    times = {"forward_s": forward, "input_grad_s": input_grad, "weight_grad_s": weight_grad}
    trace = run("interleaved-1f1b", *size, times, Link(latency_s=message), chunks=3)
    assert bubble(trace).longest_stage == pytest.approx(rate, abs=0.004)


@given(
    st.integers(1, 8),
    st.integers(1, 24),
    duration,
    duration,
    st.sampled_from(["gpipe", "1f1b", "eager-1f1b"]),
)
def test_without_splitting_or_interleaving_the_bubble_is_p_minus_1_times_f_plus_b(
    p, m, forward, backward, name
):
    times = {"forward_s": forward, "input_grad_s": backward / 2, "weight_grad_s": backward / 2}
    assert longest_bubble_s(run(name, p, m, times)) == seconds((p - 1) * (forward + backward))


@given(st.integers(1, 8), st.integers(1, 24), st.integers(1, 4), duration, duration)
def test_interleaving_divides_the_bubble_by_the_chunks_and_so_does_looped_bfs_from_p_microbatches_on(
    p, more, v, forward, backward
):
    times = {"forward_s": forward, "input_grad_s": backward, "weight_grad_s": 0.0}
    for name, m in (("interleaved-1f1b", -(-more // 6) * p), ("looped-bfs", p + more - 1)):
        trace = run(name, p, m, times, chunks=v)
        assert trace.step_s == pytest.approx((m + (p - 1) / v) * (forward + backward))
    assert peak_memory(trace) == [m * v] * p


@given(st.integers(2, 8), st.integers(0, 24), duration, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_zb_h1_leaves_the_bubble_that_w_does_not_fill(p, more, input_grad, w_share, f_share):
    # W <= I: else I waits for W, and the closed form does not hold
    m, weight_grad = 2 * p + more, input_grad * w_share
    forward = weight_grad + f_share * input_grad  # F >= W
    trace = run(
        "zb-h1",
        p,
        m,
        {"forward_s": forward, "input_grad_s": input_grad, "weight_grad_s": weight_grad},
    )
    busy = m * (forward + input_grad + weight_grad)
    assert trace.step_s == pytest.approx(busy + (p - 1) * (forward + input_grad - weight_grad))


@given(st.integers(1, 8), st.integers(0, 16), duration, st.floats(0.0, 1.0))
def test_zb_h2_leaves_a_bubble_of_p_minus_1_times_f_plus_i_minus_2w_if_f_and_i_are_equal(
    p, more, forward, w_share
):
    weight_grad = forward * w_share
    trace = run(
        "zb-h2",
        p,
        2 * p + more,
        {"forward_s": forward, "input_grad_s": forward, "weight_grad_s": weight_grad},
    )
    assert longest_bubble_s(trace) == seconds((p - 1) * (2 * forward - 2 * weight_grad))


@given(st.integers(1, 8), st.integers(0, 16), duration)
def test_zb_v_has_no_bubble_from_2p_minus_1_microbatches_on_if_f_i_and_w_are_equal(p, more, each):
    assert longest_bubble_s(run("zb-v", p, 2 * p - 1 + more, unit(each))) == seconds(0)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 5), st.integers(0, 8), duration)
def test_v_half_has_half_of_1f1bs_bubble_if_f_i_and_w_are_equal_and_at_odd_p_half_an_op_less(
    half, more, each
):
    for p, less in ((2 * half, 0.0), (2 * half + 1, 0.5)):
        bubble_s = longest_bubble_s(run("v-half", p, 2 * p + more, unit(each)))
        assert bubble_s == seconds((p - 1) * 3 * each / 2 - less * each)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 12), st.integers(0, 8))
def test_v_min_has_more_than_half_and_at_most_three_quarters_of_1f1bs_bubble_if_f_i_and_w_are_equal(
    p, more
):
    share = longest_bubble_s(run("v-min", p, 2 * p + more, UNIT)) / ((p - 1) * 3)
    assert 0.5 <= share <= 0.75


@given(st.integers(1, 5), st.integers(0, 8), duration, st.floats(0.0, 1.0))
def test_dualpipe_has_the_bubble_of_its_papers_table_2_if_a_pair_takes_f_plus_b(
    half, more, forward, w_share
):
    weight_grad = forward * w_share
    backward = forward + weight_grad
    times = {"forward_s": forward, "input_grad_s": forward, "weight_grad_s": weight_grad}
    turn = (forward + backward) + backward - 3 * weight_grad
    assert longest_bubble_s(run("dualpipe", 2 * half, 4 * half + 2 * more, times)) == seconds(
        (half - 1) * turn
    )
    assert longest_bubble_s(run("dualpipe-v", half, 2 * half + more, times)) == seconds(
        (half - 1) * turn / 2
    )


@given(st.integers(1, 5), st.integers(0, 8), duration, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_shorter_pair_shortens_dualpipes_step_to_its_formula_beyond_the_work_of_a_rank_with_the_most_pairs(
    half, more, forward, w_share, hidden
):
    weight_grad = forward * w_share
    backward = forward + weight_grad
    pair = forward + backward - hidden * forward  # F hides behind B at best altogether
    times = {
        "forward_s": forward,
        "input_grad_s": forward,
        "weight_grad_s": weight_grad,
        "pair_s": pair,
    }
    for name, p, m, size in (
        ("dualpipe", 2 * half, 4 * half + 2 * more, 1),
        ("dualpipe-v", half, 2 * half + more, 1 / 2),
    ):
        trace = run(name, p, m, times)
        pairs = [
            len(generate(name, p, m).paired.intersection(ops)) for ops in generate(name, p, m).ranks
        ]
        work = [m * (forward + backward) - size * count * hidden * forward for count in pairs]
        assert busy_s(trace) == seconds(work)
        assert trace.step_s == seconds(
            min(work) + size * (half - 1) * (pair + backward - 3 * weight_grad)
        )


# F, I, W and F&B: equal, W short, none, not equal, W too long, and a pair shorter than F + B and
# than B alone
TIMES = [(1, 1, 1, None), (2, 2, 0.5, None), (1, 1, 0, None), (1, 2, 0.5, None), (2, 1, 1, None), (1, 1, 2, None), (1, 1, 1, 2.25),
         (2, 2, 0.5, 3), (1, 1, 1, 0.5), (1, 1, 1, 4)]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "zb-auto"])
@pytest.mark.parametrize("p", range(1, 9))
def test_where_there_is_a_closed_form_it_is_the_bubble_of_the_simulation(name, p):
    known = set()
    for m in (p, 2 * p - 1, 2 * p, 2 * p + 3):
        for options in [{"chunks": 1}, {"chunks": 3}] if SCHEDULES[name].chunked else [{}]:
            try:
                program = generate(name, p, m, **options)
            except InputError:
                continue
            for times in TIMES:
                closed = closed_bubble_s(program, *times)
                if closed is not None:
                    trace = simulate(
                        program, split(program, *map(float, times[:3]), pair_s=times[3])
                    )
                    assert longest_bubble_s(trace) == seconds(closed), (m, options, times)
                    known.add(times)
    assert bool(known) == (name != "v-min" and not (name in ("v-half", "dualpipe") and p % 2))


@pytest.mark.parametrize(
    ("name", "p", "m", "times"),
    [
        ("v-half", 3, 6, (1, 1, 1)), ("v-half", 4, 7, (1, 1, 1)), ("v-half", 4, 8, (1, 1, 2)), ("v-min", 4, 8, (1, 1, 1)),
        ("zb-v", 4, 6, (1, 1, 1)), ("zb-v", 4, 8, (1, 1, 0.5)), ("zb-h1", 4, 7, (1, 1, 1)), ("zb-h1", 4, 8, (1, 1, 2)),
        ("zb-h2", 4, 8, (2, 1, 1)), ("dualpipe", 4, 8, (2, 1, 1)), ("dualpipe", 4, 8, (1, 1, 1, 1.5)), ("dualpipe", 4, 8, (1, 1, 1, 3.5)),
        ("interleaved-1f1b", 4, 9, (1, 1, 1)), ("interleaved-1f1b", 4, 3, (1, 1, 1)),
    ],
)  # fmt: skip
def test_where_a_papers_conditions_do_not_hold_there_is_no_closed_form(name, p, m, times):
    assert closed_bubble_s(generate(name, p, m), *times) is None


# a search keeps the stages of interleaved 1F1B equal, but for the ends
STEADY = [name for name, its in SCHEDULES.items() if its.steady and name != "interleaved-1f1b"]


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("slow, by", [(0, 1.0), (0, 1.05), (1, 1.3), (2, 1.05), (3, 1.3)])
def test_a_steady_schedule_is_steady_with_unequal_stages_too(name, slow, by):
    steps, held = {}, {}
    for m in (8, 12, 64):
        program = generate(name, 4, m)
        work = [by if stage == slow else 1.0 for stage in range(program.stages)]
        times = {field: tuple(work) for field in UNIT} | {"backward_s": tuple(2 * w for w in work)}
        trace = simulate(program, OpTimes(**times))
        steps[m], held[m] = trace.step_s, peak_memory(trace)
    assert steps[64] == pytest.approx(steps[8] + (steps[12] - steps[8]) * 14)
    assert held[64] == held[8]


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


@pytest.mark.parametrize("p", range(2, 17))
def test_v_half_holds_half_of_1f1bs_activations_and_one_more_on_every_rank(p):
    # its stages are halves
    peaks = {count / 2 for count in peak_memory(run("v-half", p, 3 * p, UNIT))}
    assert peaks == {p / 2 + 1} if p % 2 == 0 else peaks == {(p + 1) / 2}


@pytest.mark.parametrize("p", range(2, 17))
def test_v_min_holds_a_third_of_1f1bs_activations_and_two_thirds_rounded_up(p):
    halves = peak_memory(run("v-min", p, 3 * p, UNIT))
    assert max(halves) / 2 == ceil((p + 2) / 3)
    assert max(halves) - min(halves) <= 2


@pytest.mark.parametrize("p", range(2, 17, 2))
def test_dualpipe_holds_p_plus_1_microbatches_on_every_rank_and_dualpipe_v_half_a_one_less(p):
    times = {**UNIT, "pair_s": 2.5}
    assert peak_memory(run("dualpipe", p, 3 * p, times)) == [p + 1] * p
    # of stages half the size
    assert peak_memory(run("dualpipe-v", p, 3 * p, times)) == [2 * p + 1] * p


@pytest.mark.parametrize("p", range(2, 9))
def test_eager_1f1b_holds_more_and_hides_messages_that_1f1b_waits_for(p):
    link = Link(latency_s=0.4)
    eager, plain = run("eager-1f1b", p, 4 * p, UNIT, link), run("1f1b", p, 4 * p, UNIT, link)
    assert peak_memory(eager) == [2 * (p - rank) - 1 for rank in range(p)]
    assert eager.step_s < plain.step_s


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (
            ("interleaved-1f1b", 4, 9),
            {"group": 4},
            "last group of 1, fewer than the 4 ranks: give 8 or 12",
        ),
        (
            ("interleaved-1f1b", 4, 8),
            {"group": 3},
            "groups of 3 microbatches on 4 ranks.*at least 4",
        ),
        (("dualpipe-v", 4, 7), {}, "8 stages"),
        (("dualpipe", 3, 12), {}, "e.g. 4 ranks and 12"),
        (("dualpipe", 4, 9), {}, "e.g. 4 ranks and 10"),
        (
            ("1f1b", 4, 8),
            {"chunks": 2},
            "has no chunks to choose: leave it out, or take one of interleaved-1f1b, looped-bfs",
        ),
        (("looped-bfs", 4, 8), {"chunks": 0}, "0 chunks"),
    ],
)
def test_what_a_schedule_cannot_do_is_an_error_that_says_what_it_can(arguments, options, says):
    with pytest.raises(InputError, match=says):
        generate(*arguments, **options)
