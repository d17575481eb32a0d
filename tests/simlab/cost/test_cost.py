"""What ops take and hold: op times given, scaled, weighted and drawn; memory of split backwards."""

import math
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab_oracles import op_times, plans, seconds_of_kinds

from simlab import (
    InputError,
    OpMemory,
    OpTimes,
    Program,
    generate,
    memory_curve,
    peak_memory,
    simulate,
)
from simlab.trace import ACTIVATIONS

UNIT = OpTimes(forward_s=1.0, backward_s=2.0, input_grad_s=1.0, weight_grad_s=1.0)


def length_of(trace):
    return {span.op: span.end_s - span.start_s for span in trace.compute()}


# memory
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("m_b, m_w", [(1.0, 0.5), (3.0, 1.0), (34.0, 32.0), (2.0, 0.0)])
def test_worker_i_of_zb_h1_holds_p_minus_i_plus_1_m_b_and_i_minus_1_m_w(p, m_b, m_w):
    """Qi et al. 2023 (arXiv 2401.10241), section 2.3.1; i counts from 1."""
    trace = simulate(
        generate("zb-h1", p, 3 * p), UNIT, memory=OpMemory(activations=m_b, weight_grad=m_w)
    )
    assert peak_memory(trace, ACTIVATIONS) == pytest.approx(
        [(p - i + 1) * m_b + (i - 1) * m_w for i in range(1, p + 1)]
    )


def test_f_takes_at_its_start_i_leaves_m_w_and_w_the_rest_at_their_ends():
    trace = simulate(
        Program.from_text("0F0 0F1 0I0 0B1 0W0"),
        UNIT,
        memory=OpMemory(activations=5.0, weight_grad=2.0),
    )
    assert memory_curve(trace, 0, ACTIVATIONS) == ([0, 0, 1, 3, 5, 6], [0, 5, 10, 7, 2, 0])


def test_each_stage_holds_its_own_and_half_of_it_from_i_to_w_unless_told_otherwise():
    program = Program.from_text("0F0 0I0 0W0\n1F0 1I0 1W0")
    curves = [
        memory_curve(
            simulate(program, UNIT, memory=OpMemory(activations=(4.0, 10.0))), rank, ACTIVATIONS
        )[1]
        for rank in (0, 1)
    ]
    assert curves == [[0, 4, 2, 0], [0, 10, 5, 0]]


def test_without_a_memory_model_a_microbatch_takes_1_on_a_ranks_equal_share_of_the_model():
    trace = simulate(generate("interleaved-1f1b", 2, 4, chunks=4), UNIT)
    assert peak_memory(trace, ACTIVATIONS) == [live / 4 for live in peak_memory(trace)]


@given(st.data(), plans(), st.floats(0.0, 9.0), st.floats(0.0, 9.0))
def test_whatever_runs_all_memory_is_given_back(data, program, activations, weight_grad):
    times = op_times(data.draw(seconds_of_kinds(program)))
    trace = simulate(
        program, times, memory=OpMemory(activations=activations, weight_grad=weight_grad)
    )
    for rank in range(trace.ranks):
        assert memory_curve(trace, rank, ACTIVATIONS)[1][-1] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("fields, quoted", [
    ({"activations": -1.0}, "activations = -1.0"), ({"activations": math.inf}, "activations = inf"),
    ({"activations": (1.0, math.nan)}, "activations = nan"), ({"weight_grad": -0.5}, "weight_grad = -0.5"),
    ({"weight_grad": [0.1, -2]}, "weight_grad = -2"),
])  # fmt: skip
def test_memory_that_cannot_be_is_refused_and_quoted(fields, quoted):
    with pytest.raises(InputError, match=f"^{quoted}: give "):
        OpMemory(**fields)


def test_memory_of_too_few_stages_is_refused():
    with pytest.raises(
        InputError, match=r"^activations has 2 stages, but the program has a stage 2$"
    ):
        simulate(generate("gpipe", 3, 1), UNIT, memory=OpMemory(activations=(1.0, 2.0)))


# jitter
# ---------------------------------------------------------------------------------------------------

JITTERY = OpTimes(
    forward_s=0.02, backward_s=0.04, input_grad_s=0.03, weight_grad_s=0.01, jitter=0.2, seed=7
)


@given(plans(), st.floats(0.0, 2.0), st.integers())
def test_one_seed_gives_one_trace(program, jitter, seed):
    times = OpTimes(
        forward_s=1, backward_s=2, input_grad_s=1, weight_grad_s=1, jitter=jitter, seed=seed
    )
    assert simulate(program, times) == simulate(program, times)


def test_another_seed_gives_other_times():
    program = generate("1f1b", 3, 4)
    first, second = (
        length_of(simulate(program, OpTimes(forward_s=1, backward_s=2, jitter=0.1, seed=seed)))
        for seed in (1, 2)
    )
    assert all(first[op] != second[op] for op in first)


@pytest.mark.parametrize("name, other", [("gpipe", "1f1b"), ("zb-h1", "zb-h2"), ("zb-v", "v-half")])
def test_an_op_has_the_same_luck_in_every_schedule(name, other):
    first, second = (
        length_of(simulate(generate(schedule, 4, 8), JITTERY)) for schedule in (name, other)
    )
    assert first == pytest.approx(second)


@given(st.data(), plans())
def test_without_jitter_every_op_takes_exactly_its_time(data, program):
    seconds = data.draw(seconds_of_kinds(program))
    assert op_times(seconds).durations(program) == [
        [seconds[op.kind][op.stage] for op in ops] for ops in program.ranks
    ]


@pytest.mark.parametrize("jitter", [0.05, 0.3])
def test_the_factors_of_many_ops_have_mean_1_and_the_variation_asked_for(jitter):
    durations = OpTimes(forward_s=1.0, backward_s=1.0, jitter=jitter).durations(
        generate("gpipe", 5, 1000)
    )
    factors = [factor for its in durations for factor in its]
    assert min(factors) > 0
    # four standard deviations of the mean
    assert fmean(factors) == pytest.approx(1, abs=4 * jitter / len(factors) ** 0.5)
    assert pstdev(factors) == pytest.approx(jitter, rel=0.05)


# scaled, weighted
# -----------------------------------------------------------------------------------------


@given(plans(), st.floats(0.0, 8.0))
def test_scaled_times_scale_the_step_and_everything_in_it(program, factor):
    times = OpTimes(
        forward_s=1.5,
        backward_s=(1, 2, 3, 4, 5),
        input_grad_s=1,
        weight_grad_s=(5, 4, 3, 2, 1),
        jitter=0.3,
    )
    trace, scaled = simulate(program, times), simulate(program, times.scaled(factor))
    assert length_of(scaled) == pytest.approx(
        {op: length * factor for op, length in length_of(trace).items()}
    )
    assert scaled.step_s == pytest.approx(trace.step_s * factor)


def test_scaled_times_scale_pairs_too_and_leave_out_what_is_not_known():
    assert OpTimes(forward_s=2.0, backward_s=(4.0, 6.0), pair_s=5.0, seed=3).scaled(0.5) == OpTimes(
        forward_s=1.0, backward_s=(2.0, 3.0), pair_s=2.5, seed=3
    )


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8), st.floats(0.01, 10.0))
def test_weighted_times_are_as_the_work_of_the_stages_and_keep_the_mean(work, forward):
    found = OpTimes(forward_s=forward, backward_s=2 * forward).weighted(work)
    assert fmean(found.forward_s) == pytest.approx(forward)
    assert [time_s / found.forward_s[0] for time_s in found.forward_s] == pytest.approx(
        [part / work[0] for part in work]
    )
    assert found.backward_s == pytest.approx([2 * time_s for time_s in found.forward_s])
    assert found.input_grad_s is None


@pytest.mark.parametrize("times, work, says", [
    ({"pair_s": 3.0}, [1, 2], "no one time of a pair: leave out pair_s"),
    ({"forward_s": (1, 2)}, [1, 2], r"forward_s = \(1, 2\) has a time of each stage already"),
    ({}, [0.0, 0], r"stages of work \[0.0, 0\]: give at least one that has some"),
    ({}, [2, -1.5], "work of a stage = -1.5"), ({}, [math.nan], "work of a stage = nan"),
])  # fmt: skip
def test_weights_that_have_no_meaning_are_refused_and_quoted(times, work, says):
    with pytest.raises(InputError, match=says):
        OpTimes(**{"forward_s": 1.0, "backward_s": 2.0} | times).weighted(work)


# pairs
# ----------------------------------------------------------------------------------------------------


def test_the_ops_of_a_pair_take_their_parts_of_its_time_and_others_their_own():
    program = Program.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1")
    assert OpTimes(forward_s=1.0, backward_s=3.0, pair_s=2.0).durations(program) == [
        [1.0, 0.5, 1.5, 3.0]
    ]
    assert OpTimes(forward_s=1.0, backward_s=3.0).durations(program) == [[1.0, 1.0, 3.0, 3.0]]
    assert OpTimes(forward_s=0.0, backward_s=0.0, pair_s=2.0).durations(program) == [
        [0.0, 1.0, 1.0, 0.0]
    ]
    assert OpTimes(forward_s=1.0, backward_s=3.0, pair_s=2.0).durations(program.unpaired()) == [
        [1.0, 1.0, 3.0, 3.0]
    ]


@pytest.mark.parametrize("fields, quoted", [
    ({"pair_s": -1.0}, "pair_s = -1.0"), ({"pair_s": math.inf}, "pair_s = inf"), ({"jitter": -0.1}, "jitter = -0.1"),
    ({"jitter": math.nan}, "jitter = nan"), ({"forward_s": (1, -2)}, "forward_s = -2"),
])  # fmt: skip
def test_times_that_cannot_be_are_refused_and_quoted(fields, quoted):
    with pytest.raises(InputError, match=f"^{quoted}: give "):
        OpTimes(**fields)
