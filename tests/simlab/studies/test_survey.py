"""Every schedule beside the others: each row is what simulating that schedule alone says."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlab import InputError, Link, OpTimes, bubble, generate, simulate, survey, survey_table
from simlab.schedules import SCHEDULES
from simlab.studies.survey import parameter_shares, rank_shares

TIMES = OpTimes(forward_s=0.02, backward_s=0.04, input_grad_s=0.02, weight_grad_s=0.02)


def by_name(*arguments, **options):
    return {row.schedule: row for row in survey(*arguments, **options)}


def test_there_is_a_row_of_each_schedule_and_two_of_zb_auto_with_caps_of_p_and_2p():
    names = [name for name in SCHEDULES if name != "zb-auto"]
    assert [row.schedule for row in survey(4, 8, TIMES)] == [
        *names,
        "zb-auto, cap 4",
        "zb-auto, cap 8",
    ]
    assert [row.schedule for row in survey(4, 8, TIMES, options={"cap": 2.5})] == [
        *names,
        "zb-auto, cap 2.5",
    ]


@settings(max_examples=8)
@given(st.integers(1, 4), st.integers(1, 10), st.floats(0.0, 0.01))
def test_a_row_is_what_simulating_the_schedule_alone_says(ranks, microbatches, latency_s):
    link = Link(latency_s=latency_s)
    for row in survey(ranks, microbatches, TIMES, link=link):
        if row.refused is None and "auto" not in row.schedule:
            program = generate(row.schedule, ranks, microbatches)
            part = ranks / program.stages
            alone = simulate(program, OpTimes(**{field: getattr(TIMES, field) * part for field in
                             ("forward_s", "backward_s", "input_grad_s", "weight_grad_s")}), link=link)  # fmt: skip
            assert (row.stages, row.messages, row.bubble) == (
                program.stages,
                len(alone.messages()),
                pytest.approx(bubble(alone)),
            )
            assert row.step_s == pytest.approx(alone.step_s)


def test_figures_of_4_ranks_and_8_microbatches_with_equal_f_i_and_w():
    rows = by_name(4, 8, TIMES)
    bubbles = {
        "gpipe": 0.18,
        "1f1b": 0.18,
        "interleaved-1f1b": 0.09,
        "zb-h1": 0.06,
        "zb-h2": 0,
        "zb-v": 0,
        "v-half": 0.09,
        "v-min": 0.11,
    }
    assert {name: rows[name].bubble_s for name in bubbles} == pytest.approx(bubbles, abs=1e-12)
    assert {name: rows[name].closed_form_s for name in bubbles if name != "v-min"} == pytest.approx(
        {name: value for name, value in bubbles.items() if name != "v-min"}, abs=1e-12
    )
    assert rows["v-min"].closed_form_s is None
    held = {
        "gpipe": 8,
        "1f1b": 4,
        "eager-1f1b": 7,
        "zb-v": 4,
        "v-half": 3,
        "v-min": 2,
        "dualpipe": 5,
        "dualpipe-v": 4.5,
    }
    assert {name: max(rows[name].peak_activations) for name in held} == pytest.approx(held)


def test_zb_auto_stays_under_its_cap_and_is_no_worse_than_what_is_handcrafted():
    rows = by_name(4, 8, TIMES, weight_grad_memory=1.0)
    assert (
        max(rows["zb-auto, cap 4"].peak_activations) <= 4
        and rows["zb-auto, cap 4"].bubble_s <= rows["zb-h1"].bubble_s + 1e-12
    )
    assert (
        max(rows["zb-auto, cap 8"].peak_activations) <= 8
        and rows["zb-auto, cap 8"].bubble_s <= rows["zb-h2"].bubble_s + 1e-12
    )


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_dualpipe_has_two_shares_of_the_parameters_and_all_others_one(ranks):
    shares = {row.schedule: set(row.parameters) for row in survey(ranks, 2 * ranks, TIMES)}
    assert shares.pop("dualpipe") == {2}
    assert all(share == {1} for share in shares.values())
    assert parameter_shares(generate("dualpipe", ranks, 2 * ranks)) == [2] * ranks


def test_stages_of_a_rank_share_its_time_and_its_memory():
    times, memory = rank_shares(
        generate("zb-v", 2, 4), OpTimes(forward_s=2, backward_s=4, pair_s=5, seed=9), 0.25
    )
    assert times == OpTimes(forward_s=1, backward_s=2, pair_s=2.5, seed=9)
    assert (memory.activations, memory.weight_grad) == (0.5, 0.125)


def test_what_a_schedule_cannot_do_is_in_its_row_and_under_the_table():
    rows = survey(3, 8, TIMES)
    (refused,) = [row for row in rows if row.refused]
    assert refused.schedule == "dualpipe" and (refused.step_s, refused.trace, refused.bubble) == (
        None,
        None,
        None,
    )
    lines = survey_table(rows).splitlines()
    assert lines[-1] == f"dualpipe: not here: {refused.refused}"
    # a head; columns that line up
    assert len(lines) == len(rows) + 1 and len({len(line) for line in lines[:-1]}) == 1


def test_options_reach_the_schedules_that_take_them():
    rows = by_name(4, 8, TIMES, options={"chunks": 3})
    assert {name: row.stages for name, row in rows.items() if row.stages == 12} == {
        "interleaved-1f1b": 12,
        "looped-bfs": 12,
    }
    assert by_name(4, 8, TIMES, options={"group": 3})["interleaved-1f1b"].refused.startswith(
        "groups of 3 microbatches"
    )


@pytest.mark.parametrize("changed", [
    {"link": Link(latency_s=0.001)}, {"times": OpTimes(forward_s=1, backward_s=2, input_grad_s=1, weight_grad_s=1, jitter=0.1)},
    {"times": OpTimes(forward_s=1, backward_s=3, input_grad_s=1, weight_grad_s=1)},
])  # fmt: skip
def test_there_is_no_closed_form_with_messages_or_jitter_or_a_backward_of_other_length_than_its_halves(
    changed,
):
    assert {row.closed_form_s for row in survey(4, 8, **{"times": TIMES} | changed)} == {None}


def test_a_backward_that_is_not_given_is_the_sum_of_its_halves():
    steps = [
        [row.step_s for row in survey(4, 8, times)]
        for times in (TIMES, replace(TIMES, backward_s=None))
    ]
    assert steps[0] == pytest.approx(steps[1])


@pytest.mark.parametrize("arguments, says", [
    ((0, 8, TIMES), "^0 pipeline stages"), ((4, 0, TIMES), "^0 microbatches"),
    ((4, 8, OpTimes(forward_s=1)), "^the program has B ops, but backward_s is not given"),
    ((2, 4, OpTimes(forward_s=(1, 2), backward_s=2, input_grad_s=1, weight_grad_s=1)), r"^forward_s = \(1, 2\)"),
])  # fmt: skip
def test_what_no_schedule_can_do_is_an_error(arguments, says):
    with pytest.raises(InputError, match=says):
        survey(*arguments)
